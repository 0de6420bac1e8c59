"""The gRPC server of a process, from the opening of its port to the end of its drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import grpc

from voxcpm_grpc.errors import Reason, StartupError, Unavailable
from voxcpm_grpc.network.addresses import bound, check_unix, is_unix, listen_address, unix_path
from voxcpm_grpc.network.credentials import CHANNEL_OPTIONS
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.operation.loop_load import LoopLoad
from voxcpm_server.operation.metrics import Metrics
from voxcpm_server.operation.recent import RecentCalls
from voxcpm_server.rpc import tls
from voxcpm_server.rpc.open_calls import OpenCalls
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.services.contract import Contract
from voxcpm_server.services.deferred import VOXCPM, DeferredServices
from voxcpm_server.services.health import Health
from voxcpm_server.services.reflection import Reflection
from voxcpm_server.wire.statistics import Phase

log = logging.getLogger(__name__)

START_SECONDS = 1.0  # seconds that a start without an estimate is expected to take
CUT_OFF_SECONDS = 2.0  # seconds for the statuses of calls that are cut off
STOP_SECONDS = 1.0  # seconds from the end of the last call to the end of its connection
QUIET_SECONDS = 0.05  # seconds without a new call, before the listener is closed
QUIET_WAIT_SECONDS = 1.0  # seconds to wait for such a moment
MAX_MILLISECONDS = 2**31 - 1  # milliseconds of an option of gRPC, which then means no limit
# The event loop has not accepted these calls. Beyond the limit gRPC resets new calls at random, without a reason. With
# its default of 1,000 it does so in bursts that the server can refuse with a reason within seconds.
MAX_PENDING = 5_000
CLIENT_PING_SECONDS = 5.0  # many clients send a ping every 10 s; a client that sends them faster than this is cut off


class RpcServer:
    """A port with the speech service, health and reflection.

    `open` opens the port. Calls are refused with UNAVAILABLE until `serve`, health is NOT_SERVING, reflection works.
    `withdraw` and then `drain` end it without failing a call; `cut_off` ends it at once, and tells the callers; `stop`
    does not.

    expected_seconds: the expected time until `serve`, for the refusals
    metrics: counts all calls
    tracing: traces all calls
    contracts: services beside the speech service

    `calls` are the open ones, `recent` those that have ended, `load` is that of the event loop, `step` is that of the
    start.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        expected_seconds: Callable[[], float] = lambda: START_SECONDS,
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
        contracts: Sequence[Contract] = (),
    ) -> None:
        names = [VOXCPM.full_name, *(contract.descriptor.full_name for contract in contracts)]
        self.calls = OpenCalls()
        self.recent = RecentCalls(metrics)
        self.load = LoopLoad(_more_fronts(settings))
        self.health = Health(names)
        self.step = "the server is starting"
        self.max_streams = settings.limits.max_streams
        self._settings = settings
        self._expected_seconds = expected_seconds
        self._reflections = OpenCalls()
        self._ends: float | None = None
        self._served = False
        self._services = DeferredServices(self.calls, settings.limits.write_seconds, self.recent, tracing, contracts)
        served = options(settings, shared=settings.fronts_share_port)
        self._server = grpc.aio.server(options=served)
        self._server.add_generic_rpc_handlers((self._services,))
        self.health.register(self._server)
        pools = [contract.descriptor.file.pool for contract in contracts]
        Reflection(self._reflections, names, pools).register(self._server)
        self.calls.refuse_with(self._not_ready)

    async def open(self, local: str | None = None) -> str:
        """Open the port, and return its address with the real port. Raises StartupError.

        local: a Unix socket for other processes of this server, which gRPC also listens on, without encryption
        """
        if local is not None:
            bind(self._server, local, None)
        credentials, shared = tls.credentials(self._settings.tls), self._settings.fronts_share_port
        address = bind(self._server, self._settings.listen, credentials, shared=shared)
        if (path := unix_path(address)) is not None and self._settings.listen_mode is not None:
            path.chmod(int(self._settings.listen_mode, 8))
        await self._server.start()
        return address

    @property
    def phase(self) -> Phase:
        if self._ends is not None:
            return Phase.DRAINING
        if not self._served:
            return Phase.STARTING
        return Phase.SERVING if self.health.ready else Phase.NO_ENGINE

    def report_start(self, step: str) -> None:
        """Name the step of the start in the refusals of calls."""
        self.step = step

    def serve(
        self, service: tts_pb2_grpc.VoxCPMServiceServicer, contracts: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Serve calls from now on. `contracts` has what runs the RPCs of each contract, by its name."""
        self._services.serve(service, contracts)
        self._served = True
        self.calls.admit()

    def set_ready(self, ready: bool) -> None:
        """Report to load balancers whether the server is ready for calls."""
        self.health.set(ready=ready)

    async def withdraw(self) -> None:
        """Report NOT_SERVING, and serve new calls for `drain_delay_seconds`, in which load balancers react."""
        self._begin_end()
        delay = min(self._settings.drain_delay_seconds, self._settings.drain_seconds)
        log.info("health serving=False; new calls are served for another %g s", delay)
        await asyncio.sleep(delay)

    async def drain(self) -> None:
        """Refuse new calls and connections, wait for the calls in progress, end those that take too long, and stop."""
        ends, seconds = self._begin_end(), self._settings.drain_seconds
        await self._quiet_moment(ends)
        self._refuse()
        if self.calls:
            log.info("draining calls=%d seconds=%g", len(self.calls), max(0.0, ends - _now()))
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                # This closes the listener and sends GOAWAY, after which clients send new calls on other connections.
                group.create_task(self._server.stop(seconds + STOP_SECONDS))
                await asyncio.sleep(0)  # the task closes it in this moment
                self._end_watches()  # the watches would stay open until `ends`
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(ends):
                        await self.calls.idle()
                self.calls.end(seconds)
                limit.reschedule(_now() + STOP_SECONDS)
        await self.stop()

    async def cut_off(self) -> None:
        """End the calls in progress at once, also those of a drain, each with a status that says why, and stop."""
        self._begin_end()
        self._refuse()
        if self.calls:
            log.warning("open calls are cut off calls=%d", len(self.calls))
        self._end_watches()
        self.calls.end(None)
        await self._server.stop(CUT_OFF_SECONDS)

    def _refuse(self) -> None:
        self.calls.refuse("the server is shutting down; retry elsewhere", retry_after=0.0)

    def _end_watches(self) -> None:
        """End the calls that last until the server ends."""
        self.health.end_watches()
        self._reflections.end(None)

    async def stop(self) -> None:
        """End all calls and connections at once."""
        await self._server.stop(None)

    def _not_ready(self) -> Unavailable:
        seconds = self._expected_seconds()
        text = f"{self.step}; the server is not ready yet, try again in about {seconds:.0f} s"
        return Unavailable(text, retry_after=seconds, reason=Reason.NOT_READY)

    async def _quiet_moment(self, ends: float) -> None:
        """Serve new calls until none has arrived for a moment, if there is one soon.

        gRPC's server loses a call that arrives in the milliseconds in which it stops: the caller sees CANCELLED, or
        waits for its deadline (github.com/grpc/grpc/issues/41785).
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(ends, _now() + QUIET_WAIT_SECONDS)):
                await self.calls.quiet(QUIET_SECONDS)

    def _begin_end(self) -> float:
        """Report NOT_SERVING. Returns the time of the event loop at which the calls in progress are ended."""
        if self._ends is None:
            self.health.shut_down()
            self._ends = _now() + self._settings.drain_seconds
        return self._ends


def _now() -> float:
    return asyncio.get_running_loop().time()


def _more_fronts(settings: Settings) -> str:
    """The remedy of the operator for a front that uses a whole processor."""
    if settings.pool != "processes":
        return "its event loop uses a whole processor; run another server on the cluster"
    fronts = settings.fronts if settings.several_fronts else 1
    return f"its event loop uses a whole processor; start more than {fronts} with --fronts, or another server"


def options(settings: Settings, *, shared: bool) -> list[tuple[str, int]]:
    """The options of gRPC that follow from the settings. `shared`: other fronts listen on the same port."""
    keepalive, timeout = _milliseconds(settings.keepalive_seconds), _milliseconds(settings.keepalive_timeout_seconds)
    age, grace = settings.max_connection_age_seconds, settings.max_connection_age_grace_seconds
    ages = [] if age is None else [("grpc.max_connection_age_ms", _milliseconds(age))]
    graces = [] if grace is None else [("grpc.max_connection_age_grace_ms", _milliseconds(grace))]
    return [
        *CHANNEL_OPTIONS,
        *ages,
        *graces,
        ("grpc.max_receive_message_length", settings.limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING),
        # Without fronts, two servers on one port would share its calls.
        ("grpc.so_reuseport", int(shared)),
        ("grpc.keepalive_time_ms", keepalive),
        ("grpc.keepalive_timeout_ms", timeout),
        ("grpc.http2.ping_timeout_ms", timeout),  # gRPC's default is a minute, and then the line above has no effect
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # the third ping without audio between them would wait for a minute
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(CLIENT_PING_SECONDS)),
    ]


def _milliseconds(seconds: float) -> int:
    return min(round(1000 * seconds), MAX_MILLISECONDS)


def bind(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None, *, shared: bool = False
) -> str:
    """Bind a server to an address, and return it with the real port. Raises StartupError.

    shared: other processes of this server may have the same port
    """
    if is_unix(listen):
        check_unix(listen)
    else:
        bound(listen, shared=shared).close()  # gRPC does not say why it fails
    try:
        port = server.add_secure_port(listen, credentials) if credentials else server.add_insecure_port(listen)
    except RuntimeError:
        raise StartupError(f"cannot listen on {listen}: gRPC cannot open the address; use another one") from None
    return listen if is_unix(listen) else str(replace(listen_address(listen), port=port))
