"""A process as a member of a Ray cluster: of one that exists, or of one that it starts on its host."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.ray.handle import gist

STORE_BYTES = 256 << 20  # of a cluster of our own, which holds messages under way and nothing else
OF_OUR_OWN = {"address": "local", "include_dashboard": False, "object_store_memory": STORE_BYTES}


class Membership:
    """Membership in the cluster at `address`, or in a new one on this host that ends with the membership.

    Ray is called from one thread that lives as long, for what Ray starts ends with the thread that started it.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._resources: Mapping[str, float] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    async def join(self) -> Mapping[str, float]:
        """What the cluster has, such as CPU and GPU. Raises StartupError if there is none to join.

        To start a cluster Ray forks, so it must come before gRPC has threads in this process.
        """
        if self._resources is not None:
            return self._resources
        with _kept_signals():
            self._resources = resources = await asyncio.get_running_loop().run_in_executor(self._thread, self._join)
        return resources

    async def leave(self) -> None:
        """Safe at any time and more than once."""
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
            raise StartupError("this process belongs to a Ray cluster already; one pool = ray in it is the most")
        try:
            where: dict[str, Any] = {"address": self._address} if self._address else OF_OUR_OWN
            # stdout is the server's; Ray keeps what engines log, node by node
            ray.init(**where, configure_logging=False, log_to_driver=False)
            return ray.cluster_resources()
        except Exception as error:
            ray.shutdown()
            if not self._address:
                raise StartupError(f"Ray does not start on this host: {gist(error)}") from None
            raise StartupError(
                f"the Ray cluster at {self._address} cannot be joined: {gist(error)}; start Ray on this host with "
                "`ray start --address=HOST:PORT` and give the server the same RAY_AUTH_MODE, or leave ray.address out"
            ) from None

    def _leave(self) -> None:
        import ray

        ray.shutdown()


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """Whoever handles SIGTERM goes on doing so: Ray puts a handler before it that prints a stack."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
            signal.siginterrupt(signal.SIGTERM, False)
