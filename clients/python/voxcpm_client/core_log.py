"""The log of gRPC's C core."""

from __future__ import annotations

import importlib
import os

LEVEL = "GRPC_VERBOSITY"


def import_grpc() -> None:
    """Import grpc, and keep its C core from writing to stderr.

    The lines of the core repeat the errors that calls raise. It reads its level when grpc is imported, so the level is
    set for the time of the import. Programs that import grpc before the client, or set GRPC_VERBOSITY or GRPC_TRACE,
    keep a level of their own; child processes do not inherit this one.
    """
    if LEVEL in os.environ or "GRPC_TRACE" in os.environ:
        return
    os.environ[LEVEL] = "NONE"
    try:
        importlib.import_module("grpc")
    finally:
        del os.environ[LEVEL]
