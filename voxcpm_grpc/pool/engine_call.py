"""A call of an engine: its window, its reports, and the steps with which another engine can go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Generic, TypeVar, cast

from msgspec.structs import replace

from voxcpm_grpc.aio.peekable_queue import PeekableQueue
from voxcpm_grpc.errors import VoxCPMError
from voxcpm_grpc.events import NOT_SPOKEN, Admitted, AudioChunk, CodecChunk, Event, Finished, History
from voxcpm_grpc.ipc.messages import Allow, Append, Cancel, Command
from voxcpm_grpc.logs import request_id
from voxcpm_grpc.pool.balancer import seconds_of
from voxcpm_grpc.request import RISE_CHUNKS


class KeptSteps:
    """Collects the steps of chunks as they arrive, about half a kilobyte each.

    complete: False if a chunk had none, so that no other engine can go on
    """

    def __init__(self) -> None:
        self.complete = True
        self.chunks = 0
        self._steps = bytearray()
        self._silent = NOT_SPOKEN

    def add(self, chunk: AudioChunk) -> None:
        """Keep the steps of the next chunk, unless it is the last one: another engine makes it again, and ends."""
        if chunk.last:
            return
        if not chunk.steps:
            self.complete = False
        self._steps += chunk.steps
        self._silent = chunk.silent
        self.chunks += chunk.chunks

    @property
    def history(self) -> History | None:
        """The history for the next engine; None if it begins."""
        if not self.chunks:
            return None
        return History(steps=bytes(self._steps), chunks=self.chunks, silent=self._silent)


T = TypeVar("T")

WAIT_SECONDS = 30.0  # seconds to wait for an engine that restarts, unless the caller of the pool names others
MOST_DEATHS = 2  # engines or their steps in a row that a call may have ended; more could end all of them
MIN_SHARE_LEFT = 1 / 8  # this share of the estimated work counts until a call ends


class Departure(StrEnum):
    """The reason for which a call leaves its engine before its end."""

    LOST = "its engine is lost"
    MOVED = "its engine leaves service"
    REFUSED = "its engine cannot take it"


@dataclass(eq=False)  # `slots` is not used: Python 3.12 leaves out the slot for weak references in a generic class
class EngineCall(Generic[T]):
    """A request or codec job in progress: an asynchronous iterator of its events, for one reader.

    Closing the call, cancelling its reader and dropping the last reference to the call all cancel the work. Replicas
    therefore hold weak references to their calls; a task that reads one must be referenced elsewhere, as all tasks.

    `command` makes the command that starts the work of the call on an engine. `work` is the expected number of steps.
    Up to `window` chunks wait for the reader; codec jobs have none. With `first_limit` the engine makes only so many
    chunks until the reader calls `allow`; otherwise reading a chunk allows another one. If `whole` is true, no piece is
    delivered before the last. With `is_new` the call starts a stream, which a full queue refuses. It is also refused if
    it would not get a slot before `deadline`, a monotonic time. With `is_batch` it gives its slot to calls without.
    `adapter` is the fingerprint of its LoRA adapter, and `unable` are the replicas that cannot read that. While no
    engine can take it, it waits until `wait_until`, a monotonic time, or for `max_wait` seconds from the loss of an
    engine on, if it has delivered something. A listener hears a chunk for `heard_seconds`. With `text_is_open` more
    text may follow, and `work_with` estimates the work with so many seconds of speech more. The time in which it
    `needs_text` counts as no other wait.

    If it leaves its engine, another one continues its stream behind the chunks that were delivered.
    """

    name: str
    command: Callable[[EngineCall[T]], Command]
    work: float = 1.0
    window: int = 0
    first_limit: int | None = None
    prefix: int | None = None
    whole: bool = False
    is_new: bool = False
    is_batch: bool = False
    deadline: float | None = None
    adapter: str = ""
    wait_until: float = field(default_factory=lambda: monotonic() + WAIT_SECONDS)
    max_wait: float = WAIT_SECONDS
    heard_seconds: float = 0.0
    key: Callable[[EngineCall[T]], bytes] | None = None  # calls with the same content may be refused
    plays_until: float = field(default_factory=monotonic)  # a listener has played all that was delivered then
    moves: bool = True  # another engine may do its work
    text_is_open: bool = False
    work_with: Callable[[float], float] = lambda appended: 0.0
    is_stream: bool = field(init=False)  # the call takes a slot of its engine
    id: str = field(init=False, default="")
    engine: str = field(init=False, default="")  # the latest engine has this name
    limit: int = field(init=False)  # chunks that the reader has allowed so far
    log_id: str = field(init=False, default_factory=request_id.get)
    unable: set[object] = field(init=False, default_factory=set[object])
    admitted: bool = field(init=False, default=False)  # an engine has admitted it, perhaps one that was lost
    # The present engine has given it, and may take it away for a time.
    has_slot: bool = field(init=False, default=False)
    has_output: bool = field(init=False, default=False)
    # The present engine can make no chunk before more text comes; None: it has not said so far.
    needs_text: bool | None = field(init=False, default=False)
    dtype: str = field(init=False, default="")  # the engines that have made its steps have it
    deaths: int = field(init=False, default=0)  # so many deaths in a row may be its fault
    on_trial: bool = field(init=False, default=False)  # its engine does no other work that may end it
    kept: KeptSteps = field(init=False, default_factory=KeptSteps)
    continuations: int = field(init=False, default=0)  # times that another engine went on behind audio
    work_here: float = field(init=False, default=0.0)  # steps of the present engine, expected
    ended: bool = field(init=False, default=False)  # the reader has read the last event, or wants no more
    # Events, and what ends an iteration: an error, None after a cancel, True for a `forward` that its receiver ends.
    events: PeekableQueue[Event | CodecChunk | Exception | bool | None] = field(
        init=False, default_factory=PeekableQueue
    )
    _loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.get_running_loop)
    _created: float = field(init=False, default_factory=monotonic)
    _waited: float = field(init=False, default=0.0)  # seconds before the present engine
    _needs_text_since: float = field(init=False, default=0.0)
    streams_text: bool = field(init=False)  # its text was not complete at first
    appended: str = field(init=False, default="")  # the text of an open request got it
    _appended_seconds: float = field(init=False, default=0.0)  # seconds of speech of that text
    _post: Callable[[Allow | Append | Cancel], None] | None = field(init=False, default=None)
    _delivered: int = field(init=False, default=0)  # chunks, or samples of a codec job
    _skipped: int = field(init=False, default=0)  # samples of these that the present engine still makes again
    _steps_made: int = field(init=False, default=0)
    _engine_seconds: float = field(init=False, default=0.0)  # seconds in slots of earlier engines
    _known_limit: int = field(init=False, default=0)  # chunks that the engine knows to be allowed
    _admitted_at: float = field(init=False, default=0.0)
    _paused_at: float = field(init=False, default=0.0)
    _paused_seconds: float = field(init=False, default=0.0)
    _held: list[CodecChunk] = field(init=False, default_factory=list)
    _receive: Callable[[T], bool] | None = field(init=False, default=None)  # a `forward` that waits has it

    def __post_init__(self) -> None:
        self.is_stream = self.window > 0
        self.limit = self.window if self.first_limit is None else self.first_limit
        self.streams_text = self.text_is_open

    # ---- for the reader

    def __aiter__(self) -> EngineCall[T]:
        return self

    async def __anext__(self) -> T:
        if self.ended:
            raise StopAsyncIteration
        try:
            event = await self.events.get()
        except BaseException:
            self.cancel()
            raise
        match event:
            case AudioChunk() as chunk:
                if self.first_limit is None:
                    self.allow(chunk.end + self.window)
            case None:
                raise StopAsyncIteration
            case Exception():
                self.ended = True
                try:
                    raise event
                finally:
                    del event  # the event refers to this frame
            case Finished() | CodecChunk(last=True):
                self.ended = True
        return cast(T, event)

    async def forward(self, receive: Callable[[T], bool]) -> bool:
        """Pass the events to `receive`, as an iteration does, until it returns True. Returns False after the last one.

        Chunks are passed when they are delivered, which costs no turn of the event loop. `receive` must not block.
        """
        try:
            while not self.ended:
                if self.events.peek() is None:
                    self._receive = receive
                event = await anext(self, None)
                self._receive = None
                if event is None:
                    return False
                if event is True or receive(event):
                    return True
            return False
        finally:
            self._receive = None

    def _put_chunk(self, chunk: AudioChunk) -> None:
        """Pass a chunk to the receiver of a `forward` that waits, or queue it."""
        if self._receive is None:
            self.events.put(chunk)
            return
        if self.first_limit is None:
            self.allow(chunk.end + self.window)
        try:
            if self._receive(cast(T, chunk)):
                self._receive = None
                self.events.put(True)
        except Exception as error:  # the receiver's task gets it
            self.events.put(error)
            self.cancel()

    def allow(self, limit: int) -> None:
        """Let the engine make up to `limit` chunks in all. A lower limit than before changes nothing.

        The engine gets to know the limit when it has risen by RISE_CHUNKS, or by half of the window. So messages are
        few, the engine never waits for a reader that keeps up, and it knows which readers do not.
        """
        self.limit = max(self.limit, limit)
        rise = self.limit - self._known_limit
        if self._post and (rise >= RISE_CHUNKS or rise * 2 >= self.window):
            if self._is_at_limit:
                self._paused_seconds += monotonic() - self._paused_at
            self._known_limit = self.limit
            self._post(Allow(self.id, self.limit))

    def append(self, text: str, *, last: bool = False) -> None:
        """Append to the text of an open request. After the `last` part, the request ends as any other.

        Another engine that takes the call gets the whole text. Does nothing after the end of the call.
        """
        self.appended += text
        self.text_is_open = self.text_is_open and not last
        self._appended_seconds += seconds_of(text)
        before, self.work = self.work, self.work_with(self._appended_seconds)
        if self._post and not self.ended:
            self._post(Append(self.id, text, last, self.work - before))

    def cancel(self) -> None:
        """Stop the work and the iteration. Does nothing after the end."""
        if self.ended:
            return
        self.ended, self._receive = True, None
        self.events.put(None)  # a reader in another task wakes up
        if self._post:
            self._post(Cancel(self.id))

    async def aclose(self) -> None:
        """Do the same as `cancel`, for contextlib.aclosing."""
        self.cancel()

    def __del__(self) -> None:
        # Any thread may run a finalizer, and possibly after the loop was closed.
        if not self.ended and self._post and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop is closed at this moment
                self._loop.call_soon_threadsafe(self._post, Cancel(self.id))

    # ---- for the pool

    @property
    def wait_seconds_left(self) -> float:
        """The time until the call waits for an engine no longer."""
        return self.wait_until - monotonic()

    @property
    def paused(self) -> bool:
        """True if the engine can make no more chunks: the stream then gives its slot to any other that needs one."""
        return self.is_stream and (self.needs_text is True or self._is_at_limit)

    @property
    def _is_at_limit(self) -> bool:
        return self._steps_made >= self._known_limit

    @property
    def waited_seconds(self) -> float:
        """The time since its start in which it had text for a chunk."""
        return (self._needs_text_since if self.needs_text else monotonic()) - self._created

    @property
    def steps_left(self) -> float:
        """The estimated steps until the end."""
        return max(self.work - self._steps_made, self.work * MIN_SHARE_LEFT)

    @property
    def slot_seconds(self) -> float | None:
        """The time since its engine gave it a slot, without pauses; None without a slot."""
        if not self._admitted_at:
            return None
        end = self._paused_at if self._is_at_limit else monotonic()
        return end - self._admitted_at - self._paused_seconds

    @property
    def can_continue(self) -> bool:
        """True if another engine can go on with the call."""
        return self.moves and (not self.has_output or self.kept.complete)

    def leave(self, *, died: bool = False) -> None:
        """Its engine does not work on it any more. `died`: it has ended, or its step has, perhaps by this call."""
        if died:
            self.deaths += 1 if not self.deaths or self.on_trial else 0
        self.on_needs_text(False)
        if self._admitted_at:
            self._engine_seconds += monotonic() - self._admitted_at
        self._post, self._admitted_at = None, 0.0
        self.has_slot = self.on_trial = self.is_new = False
        if self.has_output:
            self._extend_wait(monotonic() + self.max_wait)

    def on_needs_text(self, needs: bool) -> None:
        """The engine can make no chunk before more text comes, or can again."""
        if needs and not self.needs_text:
            self._needs_text_since = monotonic()
        elif self.needs_text and not needs:
            seconds = monotonic() - self._needs_text_since
            self._created += seconds
            self._extend_wait(self.wait_until + seconds)
        self.needs_text = needs
        self.on_trial = self.on_trial and not needs  # it does nothing that may end the engine

    def _extend_wait(self, end: float) -> None:
        """Let it wait for an engine until a time, not beyond the deadline of its caller."""
        self.wait_until = max(self.wait_until, end if self.deadline is None else min(end, self.deadline))

    def start(self, id: str, engine: str, post: Callable[[Allow | Append | Cancel], None]) -> Command:
        """Start on an engine, the first or another one, which takes commands through `post`; returns the first."""
        self.id, self.engine, self._post = id, engine, post
        self.continuations += self.has_output
        self._steps_made = self.kept.chunks
        self._skipped = 0 if self.is_stream or self.whole else self._delivered
        self.work_here = self.steps_left
        self._known_limit = self.limit
        self._admitted_at = self._paused_seconds = 0.0
        self.has_slot = False
        self.needs_text = None if self.text_is_open else False
        self._held.clear()
        self._waited = self.waited_seconds
        return self.command(self)

    def deliver(self, event: Event | CodecChunk) -> None:
        """Queue an event for the reader."""
        match event:
            case AudioChunk() as chunk:
                self._steps_made += chunk.chunks
                now = monotonic()
                if self._steps_made >= self._known_limit:
                    self._paused_at = now
                if self.deaths:
                    self._survive()
                if chunk.index < self._delivered:
                    return  # another engine has made the last chunk before
                self._delivered += chunk.chunks
                self.kept.add(chunk)
                self.plays_until = max(self.plays_until, now) + chunk.chunks * self.heard_seconds
                self.has_output = True
                self._put_chunk(chunk)
            case Admitted():
                if not self.admitted:  # an engine that was lost may have admitted it
                    self.events.put(replace(event, queue_seconds=self._waited + event.queue_seconds))
                self.admitted = self.has_slot = True
                self._admitted_at = monotonic()
            case Finished():
                self._survive()
                self.events.put(replace(event, engine_seconds=self._engine_seconds + event.engine_seconds))
            case CodecChunk(array, last):
                self._steps_made += 1
                self._survive()
                if not self.whole:
                    again = min(self._skipped, len(array))
                    self._skipped -= again
                    self._delivered += len(array) - again
                    event = replace(event, array=array[again:])
                self._held.append(event)
                if last or not self.whole:
                    for held in self._held:
                        self.events.put(held)
                    self._held.clear()
                    self.has_output = True

    def _survive(self) -> None:
        """Its engine has done a part of the work, and did not end."""
        self.deaths, self.on_trial = 0, False

    def fail(self, error: VoxCPMError) -> None:
        """End the call with an error, which the reader receives after the events that wait."""
        self.events.put(error)
