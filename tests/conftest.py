"""Keeps every test process, and the processes it starts, on one thread: the tests are small and run side by side."""

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


def pytest_addoption(parser):
    help = "HOST:PORT of the server that tests/e2e shall test; without it they start one"
    parser.addoption("--target", default="", metavar="HOST:PORT", help=help)
