"""A request or codec job in progress."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Generic, TypeVar, cast

from msgspec.structs import replace

from voxcpm_grpc.errors import VoxCPMError
from voxcpm_grpc.ipc.messages import Allow, Append, Cancel, Command
from voxcpm_grpc.logs import request_id
from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.pool.kept_steps import KeptSteps
from voxcpm_grpc.request import RISE_CHUNKS, Admitted, AudioChunk, CodecChunk, Event, Finished, History

T = TypeVar("T")

WAIT_SECONDS = 30.0  # the longest wait for an engine that restarts, unless the caller of the pool names another
MOST_DEATHS = 2  # of engines or their steps, in a row, that a call may be the cause of; more could end all of them
MIN_SHARE_LEFT = 1 / 8  # of the estimated work, which counts until a call ends


class Departure(StrEnum):
    """The reason for which a call leaves its engine before its end."""

    LOST = "its engine is lost"
    MOVED = "its engine leaves service"
    REFUSED = "its engine cannot take it"


@dataclass(eq=False)  # without slots: Python 3.12 leaves out the slot for weak references in a generic class
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
    engine on, if it has delivered something. `step_seconds` is the audio of a chunk.

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
    step_seconds: float = 0.0
    key: Callable[[], bytes] | None = None  # its content, if calls with the same content may be refused
    plays_until: float = field(default_factory=monotonic)  # when a listener has played all that was delivered
    moves: bool = True  # another engine may do its work
    id: str = field(init=False, default="")
    engine: str = field(init=False, default="")  # the name of the latest one
    limit: int = field(init=False)  # chunks that the reader has allowed so far
    log_id: str = field(init=False, default_factory=request_id.get)
    unable: set[object] = field(init=False, default_factory=set[object])
    admitted: bool = field(init=False, default=False)  # by an engine, perhaps one that was lost
    has_slot: bool = field(init=False, default=False)  # given by the present engine, which may take it away for a time
    has_output: bool = field(init=False, default=False)
    dtype: str = field(init=False, default="")  # of the engines that have made its steps
    deaths: int = field(init=False, default=0)  # in a row that it may be the cause of
    on_trial: bool = field(init=False, default=False)  # its engine does no other work that may end it
    continuations: int = field(init=False, default=0)  # behind audio, on another engine
    work_here: float = field(init=False, default=0.0)  # expected steps of the present engine
    ended: bool = field(init=False, default=False)  # the reader has read the last event, or wants no more
    events: PeekableQueue[Event | CodecChunk | VoxCPMError | None] = field(init=False, default_factory=PeekableQueue)
    _loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.get_running_loop)
    _created: float = field(init=False, default_factory=monotonic)
    _waited: float = field(init=False, default=0.0)  # before the present engine
    appended: str = field(init=False, default="")  # to the text of an open request
    text_ended: bool = field(init=False, default=False)
    _post: Callable[[Allow | Append | Cancel], None] | None = field(init=False, default=None)
    _kept: KeptSteps = field(init=False, default_factory=KeptSteps)
    _delivered: int = field(init=False, default=0)  # chunks, or samples of a codec job
    _skipped: int = field(init=False, default=0)  # samples of these that the present engine still makes again
    _steps_made: int = field(init=False, default=0)
    _engine_seconds: float = field(init=False, default=0.0)  # in slots of earlier ones
    _known_limit: int = field(init=False, default=0)  # to the engine
    _admitted_at: float = field(init=False, default=0.0)
    _paused_at: float = field(init=False, default=0.0)
    _paused_seconds: float = field(init=False, default=0.0)
    _held: list[CodecChunk] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.limit = self.window if self.first_limit is None else self.first_limit

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
            case AudioChunk(index=index):
                if self.first_limit is None:
                    self.allow(index + 1 + self.window)
            case None:
                raise StopAsyncIteration
            case VoxCPMError():
                self.ended = True
                try:
                    raise event
                finally:
                    del event  # which refers to this frame
            case Finished() | CodecChunk(last=True):
                self.ended = True
        return cast(T, event)

    def allow(self, limit: int) -> None:
        """Let the engine make up to `limit` chunks in all. A lower limit than before changes nothing.

        The engine gets to know the limit when it has risen by RISE_CHUNKS, or by half of the window. So messages are
        few, the engine never waits for a reader that keeps up, and it knows which readers do not.
        """
        self.limit = max(self.limit, limit)
        rise = self.limit - self._known_limit
        if self._post and (rise >= RISE_CHUNKS or rise * 2 >= self.window):
            if self.paused:
                self._paused_seconds += monotonic() - self._paused_at
            self._known_limit = self.limit
            self._post(Allow(self.id, self.limit))

    def append(self, text: str, *, last: bool = False) -> None:
        """Append to the text of an open request. After the `last` part, the request ends as any other.

        Another engine that takes the call gets the whole text. Does nothing after the end of the call.
        """
        self.appended += text
        self.text_ended = self.text_ended or last
        if self._post and not self.ended:
            self._post(Append(self.id, text, last))

    def cancel(self) -> None:
        """Stop the work and the iteration. Does nothing after the end."""
        if self.ended:
            return
        self.ended = True
        self.events.put(None)  # wakes a reader in another task
        if self._post:
            self._post(Cancel(self.id))

    async def aclose(self) -> None:
        """As `cancel`, for contextlib.aclosing."""
        self.cancel()

    def __del__(self) -> None:
        # A finalizer runs in any thread, and possibly after the loop was closed.
        if not self.ended and self._post and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop is closed at this moment
                self._loop.call_soon_threadsafe(self._post, Cancel(self.id))

    # ---- for the pool

    @property
    def is_stream(self) -> bool:
        """True if the call takes a slot of its engine."""
        return self.window > 0

    @property
    def wait_seconds_left(self) -> float:
        """The time until the call waits for an engine no longer."""
        return self.wait_until - monotonic()

    @property
    def paused(self) -> bool:
        """True if the engine may make no more chunks: the stream then gives its slot to any other that needs one."""
        return self.is_stream and self._steps_made >= self._known_limit

    @property
    def steps_left(self) -> float:
        """The estimated steps until the end."""
        return max(self.work - self._steps_made, self.work * MIN_SHARE_LEFT)

    @property
    def slot_seconds(self) -> float | None:
        """The time since its engine gave it a slot, without pauses; None without a slot."""
        if not self._admitted_at:
            return None
        end = self._paused_at if self.paused else monotonic()
        return end - self._admitted_at - self._paused_seconds

    @property
    def history(self) -> History | None:
        """The steps behind which another engine goes on; None if it begins."""
        return self._kept.history

    @property
    def can_continue(self) -> bool:
        """True if another engine can go on with the call."""
        return self.moves and (not self.has_output or self._kept.complete)

    def leave(self, *, died: bool = False) -> None:
        """Its engine does not work on it any more. `died`: it has ended, or its step has, perhaps by this call."""
        if died:
            self.deaths += 1 if not self.deaths or self.on_trial else 0
        if self._admitted_at:
            self._engine_seconds += monotonic() - self._admitted_at
        self._post, self._admitted_at = None, 0.0
        self.has_slot = self.on_trial = self.is_new = False
        if self.has_output:
            limit = math.inf if self.deadline is None else self.deadline
            self.wait_until = max(self.wait_until, min(monotonic() + self.max_wait, limit))

    def start(self, id: str, engine: str, post: Callable[[Allow | Append | Cancel], None]) -> Command:
        """Start on an engine, the first or another one, which takes commands through `post`; returns the first."""
        self.id, self.engine, self._post = id, engine, post
        self.continuations += self.has_output
        self._steps_made = self._kept.chunks
        self._skipped = 0 if self.is_stream or self.whole else self._delivered
        self.work_here = self.steps_left
        self._known_limit = self.limit
        self._admitted_at = self._paused_seconds = 0.0
        self.has_slot = False
        self._held.clear()
        self._waited = monotonic() - self._created
        return self.command(self)

    def deliver(self, event: Event | CodecChunk) -> None:
        """Queue an event for the reader."""
        match event:
            case AudioChunk(index=index):
                self._steps_made += 1
                now = monotonic()
                if self.paused:
                    self._paused_at = now
                self._survive()
                if index < self._delivered:
                    return  # the last chunk, which another engine has made before
                self._delivered += 1
                self._kept.add(event)
                self.plays_until = max(self.plays_until, now) + self.step_seconds
                self.has_output = True
                self.events.put(event)
            case Admitted():
                if not self.admitted:  # by an engine that was lost
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
