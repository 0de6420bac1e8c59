"""The membership of this process in a Ray cluster: an existing one, or one that it starts on its host."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.ray.engine import last_line

STORE_BYTES = 256 << 20  # bytes of a cluster on this host, which stores messages in transit only
LOCAL_CLUSTER = {"address": "local", "include_dashboard": False, "object_store_memory": STORE_BYTES}


class Membership:
    """Membership in the cluster at `address`, or without one in a new cluster on this host.

    A new cluster ends with the membership. One thread makes all calls of Ray, because processes that Ray starts end
    with the thread that started them.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._resources: Mapping[str, float] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    async def join(self) -> Mapping[str, float]:
        """Join the cluster; returns its resources, such as CPU and GPU. Raises StartupError if that fails.

        Must be called before gRPC creates threads in this process, because Ray forks to start a cluster.
        """
        if self._resources is not None:
            return self._resources
        with _signal_handlers_kept():
            self._resources = resources = await asyncio.get_running_loop().run_in_executor(self._thread, self._join)
        return resources

    async def leave(self) -> None:
        """Leave the cluster. May be called at any time and more than once."""
        if self._resources is not None:
            self._resources = None
            await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
        self._thread.shutdown(wait=False)

    def _join(self) -> Mapping[str, float]:
        try:
            import ray
        except ImportError:
            raise StartupError("pool = ray needs Ray on this host: pip install 'voxcpm-grpc[ray]'") from None
        if ray.is_initialized():
            raise StartupError("this process is in a Ray cluster already; only one pool = ray can run in a process")
        try:
            options: dict[str, Any] = {"address": self._address} if self._address else LOCAL_CLUSTER
            # The server uses stdout itself. Ray keeps the logs of engines on their nodes.
            ray.init(**options, configure_logging=False, log_to_driver=False)
            return ray.cluster_resources()
        except Exception as error:
            ray.shutdown()
            if not self._address:
                raise StartupError(f"Ray does not start on this host: {last_line(error)}") from None
            raise StartupError(
                f"the Ray cluster at {self._address} cannot be joined: {last_line(error)}; start Ray on this host with "
                "`ray start --address=HOST:PORT` and give the server the same RAY_AUTH_MODE, or leave ray.address out"
            ) from None

    def _leave(self) -> None:
        import ray

        ray.shutdown()


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces by one that prints a stack."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
            signal.siginterrupt(signal.SIGTERM, False)
