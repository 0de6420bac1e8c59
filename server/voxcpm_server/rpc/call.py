"""One RPC in progress, its sender, the messages of its caller, and the admission of RPCs."""

from __future__ import annotations

import asyncio
import ipaddress
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import grpc

from voxcpm_grpc import logs
from voxcpm_grpc.errors import Exhausted, InvalidRequest, Reason, VoxCPMError
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_server.auth.principal import Caller
from voxcpm_server.rpc.delivery import ReplyWriter
from voxcpm_server.rpc.tracing import RpcTrace
from voxcpm_server.speech.timing import Playback
from voxcpm_server.values.outputs import Summary

IPV6_PREFIX = 64  # a host usually has all addresses of such a network
PEERS = 4096  # the addresses of so many connections are kept, because each has many calls


@dataclass(frozen=True, slots=True)
class Peer:
    """The sender of an RPC, as far as its connection tells.

    caller: key of a caller: an IPv4 address, the /64 network of an IPv6 address, or `unix` for all Unix sockets
    connection: key of one connection of the caller; empty if connections cannot be told apart
    """

    caller: str
    connection: str

    def __str__(self) -> str:
        return self.connection or self.caller

    @classmethod
    @lru_cache(maxsize=PEERS)
    def of(cls, address: str) -> Peer:
        """The peer at an address as gRPC writes it, such as `ipv4:192.0.2.1:50123`."""
        kind, _, rest = unquote(address).partition(":")
        if kind not in ("ipv4", "ipv6"):
            return cls(caller=kind, connection="")
        host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
        try:
            parsed = ipaddress.ip_address(host)
        except ValueError:
            return cls(caller=host, connection=rest)
        if isinstance(parsed, ipaddress.IPv6Address):
            mapped = parsed.ipv4_mapped
            caller = str(mapped or ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))
        else:
            caller = str(parsed)
        return cls(caller=caller, connection=rest)


STREAMS_RETRY_SECONDS = 1.0
LINGER_SECONDS = 0.25
UPLOAD_LINGER_SECONDS = 2.0
UPLOAD_BYTES = 64 << 10  # bytes in LINGER_SECONDS; neither text of a language model nor live audio is that fast


@dataclass(slots=True)
class Call:
    """One RPC, as its status and its log line describe it.

    model: name of the model; empty for a call that uses none
    logs_model: True if the log line has the model, because the server has several
    voice: name or id of the voice; empty for none
    characters: length of the text so far; None for calls without text
    summary: the counters of its stream of speech, which has ended; None for calls without one
    arrival_to_audio_seconds: from the arrival of the call to its first audio
    playback: the estimate of the gaps that a listener hears; None for calls without audio
    trace: None if the call is not traced
    admitted: True once the server has identified the caller and found room for the call
    told: an error that the reply itself tells, because callers of its service expect it there and not in the status
    """

    method: str
    context: grpc.aio.ServicerContext
    peer: Peer
    replies: ReplyWriter
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    model: str = ""
    logs_model: bool = False
    voice: str = ""
    characters: int | None = None
    summary: Summary | None = None
    arrival_to_audio_seconds: float | None = None
    playback: Playback | None = None
    trace: RpcTrace | None = None
    told: VoxCPMError | None = None
    audio_seconds: float = 0.0
    admitted: bool = False
    started: float = field(default_factory=time.monotonic)
    caller: Caller = field(init=False)

    def __post_init__(self) -> None:
        self.caller = Caller(self.peer.caller)
        logs.request_id.set(self.request_id)

    def identify(self, request_id: str) -> None:
        """Use the request id of the caller's config from now on, unless it is empty."""
        if request_id:
            self.request_id = request_id
            logs.request_id.set(request_id)


class MalformedMessage:
    """Takes the place of a message whose bytes could not be parsed."""

    def error(self) -> InvalidRequest:
        return InvalidRequest("a message is not a valid protobuf message of its type; check the client's stubs")


class RequestStream:
    """Iterates over the messages of a caller. If a read is cancelled, the next read returns its message."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self._reading: asyncio.Future[Any] | None = None
        self._ended = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Any:
        if self._ended:
            raise StopAsyncIteration
        if self._reading is None:
            self._reading = asyncio.ensure_future(anext(self._messages, None))
            # This marks its exception as retrieved: if no task awaits the read, the RPC is over.
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        message = await asyncio.shield(self._reading)
        self._reading = None
        if message is None:
            self._ended = True
            raise StopAsyncIteration
        if isinstance(message, MalformedMessage):
            raise message.error()
        return message

    async def linger(self, *, uploads: Callable[[], bool]) -> None:
        """Read and discard messages for LINGER_SECONDS, and those of an upload for UPLOAD_LINGER_SECONDS.

        A client that is writing when the status arrives may report a broken write instead of the status, and HAProxy
        resets a stream that ends while its client still writes, often before the status.

        uploads: asked after each LINGER_SECONDS; False ends the wait for an upload
        """
        now = asyncio.get_running_loop().time
        ends = now() + UPLOAD_LINGER_SECONDS
        while await self._discard(LINGER_SECONDS) >= UPLOAD_BYTES and uploads() and now() < ends:
            pass

    async def _discard(self, seconds: float) -> int:
        """Read messages for a time. Returns the number of their bytes, or 0 if there will be no more."""
        count = 0
        try:
            async with asyncio.timeout(seconds):
                async for message in self:  # these bytes come before the start of the service
                    count += len(message) if isinstance(message, bytes) else message.ByteSize()
        except TimeoutError:
            return count
        except Exception:  # the message or the connection is broken; the RPC has its error already
            return 0
        return 0

    def close(self) -> None:
        """Stop reading. A read in progress would keep the RPC in memory until its connection ends."""
        self._ended = True
        if self._reading is not None:
            self._reading.cancel()


class AdmissionGate:
    """Admits RPCs: up to a number of streams at once, in all, of a connection and of a caller."""

    def __init__(self, limits: LimitSettings) -> None:
        self._max_streams = limits.max_streams
        self._max_of_connection = limits.streams_per_connection
        self._max_of_caller = limits.streams_per_caller
        self.streams = 0  # so many are open
        self._of_connection: Counter[str] = Counter()
        self._of_caller: Counter[str] = Counter()

    @contextmanager
    def enter(self, caller: str, connection: str, *, stream: bool) -> Iterator[None]:
        """Admit an RPC that lasts as long as the block. Raises Exhausted."""
        if stream:
            self._check(caller, connection)
            self._of_connection[connection] += 1
            self._of_caller[caller] += 1
        self.streams += stream
        try:
            yield
        finally:
            if stream:
                _subtract(self._of_connection, connection)
                _subtract(self._of_caller, caller)
            self.streams -= stream

    def _check(self, caller: str, connection: str) -> None:
        """Raise Exhausted if another stream of this caller and connection does not fit."""
        if self.streams >= self._max_streams:
            reason, count, limit = Reason.TOO_MANY_STREAMS, self.streams, self._max_streams
            text = f"{count} streams are open and the limit is {limit}; retry later"
        elif connection and self._of_connection[connection] >= self._max_of_connection:
            reason, count = Reason.TOO_MANY_STREAMS_OF_CONNECTION, self._of_connection[connection]
            limit = self._max_of_connection
            text = (
                f"this connection has {count} open streams and the limit is {limit}; end one of them, or open another "
                "connection"
            )
        elif self._of_caller[caller] >= self._max_of_caller:
            reason, count, limit = Reason.TOO_MANY_STREAMS_OF_CALLER, self._of_caller[caller], self._max_of_caller
            text = f"this caller has {count} open streams and the limit is {limit}; end one of them, or retry later"
        else:
            return
        raise Exhausted(text, retry_after=STREAMS_RETRY_SECONDS, reason=reason, open=count, limit=limit)


def _subtract(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
