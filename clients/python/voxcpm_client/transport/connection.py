"""The channel to a server, and the deadline, retries and errors of its calls."""

from __future__ import annotations

import asyncio
import copy
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from voxcpm_client.errors import SpeechError, Unavailable, UnusableClient, from_rpc
from voxcpm_client.status import trailers_of
from voxcpm_client.transport import forks
from voxcpm_client.transport.core_log import quiet
from voxcpm_client.transport.diagnosis import diagnose
from voxcpm_client.transport.retry import Attempts
from voxcpm_client.transport.security import Security, checked, lower_case
from voxcpm_client.transport.target import parse
from voxcpm_client.transport.text_window import BLOCK_CHARS, NO_LIMIT
from voxcpm_client.transport.tracing import Metadata, with_trace
from voxcpm_grpc.network.credentials import CHANNEL_OPTIONS
from voxcpm_grpc.network.proxies import DIRECT, Proxy, proxy_of
from voxcpm_grpc.v1 import admin_pb2_grpc, tts_pb2_grpc
from voxcpm_grpc.v1 import tts_pb2 as pb

OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.enable_retries", 0),  # the client retries by itself: it knows which calls can be repeated
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 60_000),  # pings detect a server that is gone without closing the connection
)
DEFAULT_TEXT_LIMIT = 20_000  # characters, if a server does not tell its limit
LEAST_TEXT_LIMIT = 4 * BLOCK_CHARS
SERVING = 1  # the number is that of grpc.health.v1.HealthCheckResponse.ServingStatus
T = TypeVar("T")


@dataclass(slots=True)
class _Server:
    """The channel to a server and the knowledge about it, which connections with different metadata share."""

    channel: Any = None
    stub: Any = None
    reached: bool = False
    text_limit: int | None = None
    streams: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet[Any])  # they have started
    closed: bool = False
    loop: asyncio.AbstractEventLoop | None = None  # the channel uses it
    process: int = 0


class Connection:
    """A channel that is opened at its first use, for the event loop and the process of that use."""

    def __init__(
        self,
        target: str,
        *,
        security: Security,
        metadata: Mapping[str, str] | None = None,
        retries: int | None,
        retry_seconds: float,
    ) -> None:
        self.target = target
        self._parsed = parse(target)
        self._security = security
        self._security.check(self._parsed)
        self._metadata = security.metadata(metadata)
        self._credentials = security.credentials()
        self._retries = retries
        self._retry_seconds = retry_seconds
        self._server = _Server()

    def with_metadata(self, metadata: Mapping[str, str]) -> Connection:
        """A connection over the same channel whose calls also send `metadata`. A name replaces an equal one.

        Raises InvalidArgument for metadata that is too long.
        """
        other = copy.copy(self)
        other._metadata = checked(dict(self._metadata) | lower_case(metadata))
        return other

    @property
    def reached(self) -> bool:
        """True once the server has answered."""
        return self._server.reached

    @reached.setter
    def reached(self, reached: bool) -> None:
        self._server.reached = reached

    @property
    def streams(self) -> weakref.WeakSet[Any]:
        """The streams that end with the client."""
        return self._server.streams

    @property
    def metadata(self) -> Metadata:
        """The metadata of a call that starts now."""
        return with_trace(self._metadata)

    def check(self) -> None:
        """Raise UnusableClient if the client is closed, or belongs to another event loop or process than this one."""
        if self._server.closed:
            raise UnusableClient("the client is closed; make another one")
        forks.check()
        self._check_loop()

    def _check_loop(self) -> None:
        if self._server.loop not in (None, asyncio.get_running_loop()):
            raise UnusableClient(
                "the client belongs to the event loop of its first call; make an AsyncClient for each event loop, or "
                "use a Client, which threads can share"
            )

    @property
    def lost(self) -> bool:
        """True if the event loop of the channel has ended, or is that of the process from which this one was forked."""
        loop = self._server.loop
        return loop is not None and (loop.is_closed() or self._server.process != os.getpid())

    def _open(self) -> _Server:
        self.check()
        server = self._server
        if server.channel is None:
            options = (*OPTIONS, *(() if self._proxy else DIRECT))
            with quiet():
                if self._credentials is None:
                    server.channel = grpc.aio.insecure_channel(self.target, options)
                else:
                    server.channel = grpc.aio.secure_channel(self.target, self._credentials, options)
            forks.register(server.channel)
            server.stub = tts_pb2_grpc.VoxCPMServiceStub(server.channel)
            server.loop, server.process = asyncio.get_running_loop(), os.getpid()
        return server

    @property
    def channel(self) -> Any:
        return self._open().channel

    @property
    def stub(self) -> Any:
        return self._open().stub

    @property
    def admin_stub(self) -> Any:
        return admin_pb2_grpc.VoxCPMAdminServiceStub(self.channel)

    async def close(self) -> None:
        """Cancel the running calls and close the channel.

        Raises UnusableClient in another event loop than that of the channel, as long as that one exists.
        """
        forks.notice()
        server = self._server
        if not self.lost:
            self._check_loop()
        server.closed = True
        channel, server.channel, server.stub = server.channel, None, None  # a fork after this finds no gRPC in use
        if channel is not None and not self.lost:
            await asyncio.gather(*(stream.release() for stream in server.streams))
            await channel.close()

    @property
    def _proxy(self) -> Proxy | None:
        """The proxy of the environment for this server."""
        if self._parsed.is_loopback:
            return None
        return proxy_of(self._parsed.host, self._parsed.port)

    def attempts(self, timeout: float | None) -> Attempts:
        """The attempts of a call that starts now and may take `timeout` seconds."""
        return Attempts(timeout=timeout, retries=self._retries, retry_seconds=self._retry_seconds)

    async def recover(
        self, error: grpc.aio.AioRpcError, attempts: Attempts, request_id: str = "", *, answered: bool = False
    ) -> None:
        """Wait before the next attempt of a call that has failed.

        Raises the SpeechError for `error` if the call cannot be repeated.

        answered: True if the server had sent a message before
        """
        failure = await self.failure(error, attempts, request_id, answered=answered)
        try:
            await attempts.pause(failure, reached=self.reached)
        finally:
            del failure  # the error refers to this frame if it was raised

    async def failure(
        self, error: grpc.aio.AioRpcError, attempts: Attempts, request_id: str = "", *, answered: bool = False
    ) -> SpeechError:
        """The SpeechError for a failed RPC. Raises Unavailable for a wrong configuration that no retry can mend."""
        proxy = self._proxy
        concerned = proxy is not None and not (self.reached and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
        failure = from_rpc(
            error,
            target=self.target,
            request_id=request_id,
            timeout=attempts.timeout,
            answered=answered,
            advice=proxy.advice(self._parsed.host) if proxy and concerned else "",
        )
        error.__traceback__ = error.__context__ = None  # the frames would keep the channel, as long as `failure` exists
        if answered or not _from_network(error):
            self.reached = True
        elif self.reached or attempts.diagnosed or (proxy and proxy.used):
            pass
        elif isinstance(failure, Unavailable):
            attempts.diagnosed = True
            with suppress(TimeoutError):
                async with asyncio.timeout(attempts.remaining()):
                    if fault := await diagnose(self._parsed, self._security):
                        failure = Unavailable(fault, request_id=request_id)
                        failure.about_connection = True
                        raise failure
        return failure

    def explain_cancellation(self) -> None:
        """Raise UnusableClient if a call was cancelled because its client was closed, and not by its caller."""
        task = asyncio.current_task()
        if self._server.closed and not (task is not None and task.cancelling()):
            self.check()

    async def repeat(
        self, attempt: Callable[[float | None], Awaitable[T]], attempts: Attempts, request_id: str = ""
    ) -> T:
        """The result of `attempt(seconds left)`, an RPC that can be repeated as a whole.

        A cancellation that arrives together with the status of a call is lost in grpc.aio, which raises the status. It
        is raised here, so that the cancelled task makes no further attempt.
        """
        before = _cancellations()
        while True:
            try:
                result = await attempt(attempts.remaining())
            except grpc.aio.AioRpcError as error:
                if _cancellations() > before:
                    raise asyncio.CancelledError from None
                failed = error
            except asyncio.CancelledError:
                self.explain_cancellation()
                raise
            else:
                self.reached = True
                return result
            try:
                await self.recover(failed, attempts, request_id)
            finally:
                del failed  # the error refers to this frame

    async def unary(self, method: str, request: Any, attempts: Attempts, *, admin: bool = False) -> Any:
        """The response of a unary RPC of the speech service, or of the admin service."""

        def call(remaining: float | None) -> Awaitable[Any]:  # an error would keep the channel, so this holds none
            stub = self.admin_stub if admin else self.stub
            return getattr(stub, method)(request, timeout=remaining, metadata=self.metadata)

        return await self.repeat(call, attempts)

    async def text_limit(self, attempts: Attempts) -> int:
        """Text of one stream that may wait to be spoken on this server, in code points. It is asked for once.

        If the limit leaves no room for some segments, text is sent without waiting, because the wait might not end.
        """
        if self._server.text_limit is not None:
            return self._server.text_limit
        try:
            info = await self.unary("GetModelInfo", pb.GetModelInfoRequest(), attempts)
        except SpeechError:
            return DEFAULT_TEXT_LIMIT
        limit: int = info.limits.max_buffered_text_chars or DEFAULT_TEXT_LIMIT
        if limit < 2 * info.limits.max_segment_chars + LEAST_TEXT_LIMIT:
            limit = NO_LIMIT
        self._server.text_limit = limit
        return limit

    async def health(self, service: str, attempts: Attempts) -> bool:
        """True if a service is SERVING. Uses grpc.health.v1 without its package: each message has a single field."""
        request = StringValue(value=service).SerializeToString()  # HealthCheckRequest has a string in field 1, too

        def check(remaining: float | None) -> Awaitable[bytes]:
            call = self.channel.unary_unary("/grpc.health.v1.Health/Check")
            return call(request, timeout=remaining, metadata=self.metadata)

        answer = await self.repeat(check, attempts)
        return answer == bytes([0x08, SERVING])


def _cancellations() -> int:
    """The requests to cancel the current task, so far."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _from_network(error: grpc.aio.AioRpcError) -> bool:
    """True if grpc made the status itself, because it has lost the server or found none."""
    unanswered = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return unanswered and not trailers_of(error).keys() & {"grpc-status-details-bin", "grpc-retry-pushback-ms"}
