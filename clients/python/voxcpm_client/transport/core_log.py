"""The log of gRPC's C core."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

LEVEL = "GRPC_VERBOSITY"


IMPORTED_BEFORE = "grpc" in sys.modules


def import_grpc() -> None:
    """Import grpc, and keep its C core from writing to stderr.

    The lines of the core repeat the errors that calls raise. Programs that import grpc before the client, or set
    GRPC_VERBOSITY or GRPC_TRACE, keep a level of their own.
    """
    with quiet():
        importlib.import_module("grpc")


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Set the level for the time of a block in which the core reads it. Child processes do not inherit it.

    The core reads it when grpc is imported, and that of old versions of grpcio when the first channel is made.
    """
    if IMPORTED_BEFORE or LEVEL in os.environ or "GRPC_TRACE" in os.environ:
        yield
        return
    os.environ[LEVEL] = "NONE"
    try:
        yield
    finally:
        del os.environ[LEVEL]
