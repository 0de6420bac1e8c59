"""The tasks of a gRPC server."""

from __future__ import annotations

import asyncio


def rpc_tasks() -> list[str]:
    """The names of the tasks of calls that run in this event loop."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name == "rpc_task" or name.startswith("HandleExceptions")]
