"""Keeps every test process, and the processes it starts, on one thread: the tests are small and run side by side."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from support.gpu_workers import (  # noqa: F401, hooks
    pytest_runtest_teardown,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A shell starts background jobs with SIGINT ignored, which the processes that tests start and interrupt would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may take as long as the host needs for it, and so may drawing it.
settings.register_profile("any host", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any host")

# These files take longest, so they start first: no worker is left with one of them while the others have ended.
LONGEST = (
    "tests/pool/test_losses.py",
    "tests/engine/test_engine.py",
    "tests/test_served_parity.py",
    "tests/library/test_model.py",
    "tests/pool/test_adapters.py",
    "tests/test_checkpoint.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {path: place for place, path in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_addoption(parser):
    help = "HOST:PORT of the server that tests/e2e and tests/conformance shall test; without it they start one"
    parser.addoption("--target", default="", metavar="HOST:PORT", help=help)
    help = "directory of the model that tests/conformance shall serve; without it a tiny VoxCPM2"
    parser.addoption("--model", default="", metavar="DIR", help=help)
    help = "PEM file of the authority of the server at --target, which uses TLS; for tests/conformance"
    parser.addoption("--ca", default="", metavar="FILE", help=help)
    help = "API key or token for the server at --target; for tests/conformance"
    parser.addoption("--api-key", default="", metavar="KEY", help=help)
    help = "HOST:PORT of the admin service of the server at --target; for tests/conformance"
    parser.addoption("--admin", default="", metavar="HOST:PORT", help=help)
    help = (
        "kinds of voice stores that tests/server shall test: folder, memory, s3; the last needs s3fs and moto[server]"
    )
    parser.addoption("--stores", default="folder,memory", metavar="KIND,...", help=help)
