"""Keeps every test process, and the processes it starts, on one thread: the tests are small and run side by side."""

import gc
import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver

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
for name, examples in (("few", 25), ("many", 200)):  # suites choose them by --hypothesis-profile
    settings.register_profile(name, settings.get_profile("any host"), max_examples=examples)
settings.load_profile("any host")

# These files take longest, so they start first: no worker is left with one of them while the others have ended.
LONGEST = (
    "tests/pool/test_losses.py",
    "tests/engine/test_engine.py",
    "tests/test_served_parity.py",
    "tests/embedded/test_model.py",
    "tests/pool/test_adapters.py",
    "tests/test_checkpoint.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Keep the garbage collector from the modules and tests that are collected: they stay, and there are many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000)  # objects; with the default of 700, a twentieth of the time is the collector's
        gc.enable()


def pytest_unconfigure() -> None:
    """End the process that engines of support/doubles/pools.py are forked from, if there is one."""
    forkserver._forkserver._stop()  # pyright: ignore[reportAttributeAccessIssue]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):  # a GPU is quick
        left = [item for item in items if item.get_closest_marker("nightly") and not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    order = {path: place for place, path in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_addoption(parser):
    help = "run the tests with the mark nightly, too"
    parser.addoption("--nightly", action="store_true", help=help)
    help = "HOST:PORT of the server that tests/e2e and tests/conformance shall test; without it they start one"
    parser.addoption("--target", default="", metavar="HOST:PORT", help=help)
    help = (
        "directory of the model that tests/conformance shall serve, or qwen3-base06 or another tiny checkpoint of "
        "tools/qwen3_checkpoint_layout.py, which is made; without it a tiny VoxCPM2. Such a checkpoint is also for "
        "tests/system/fuzz, and several with commas between them for tests/system/clients and tests/system/languages"
    )
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
