"""The engines as a front uses them: the pool chooses a replica for each call and retries calls of lost engines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import count
from time import monotonic
from typing import Any

import numpy as np

from voxcpm_grpc import progress
from voxcpm_grpc.aio.tasks import cancel_and_wait, keep_running
from voxcpm_grpc.errors import (
    FailedPrecondition,
    Reason,
    VoxCPMError,
    broken_off,
)
from voxcpm_grpc.events import CodecChunk, Event
from voxcpm_grpc.ipc.messages import Check, Decode, Encode, Submit
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.pool.adapter_catalog import AdapterCatalog
from voxcpm_grpc.pool.admission import deadline_error, load_for, queue_error
from voxcpm_grpc.pool.balancer import Balancer, prefix_of, work_of, work_of_coding
from voxcpm_grpc.pool.directory import Engines
from voxcpm_grpc.pool.engine_call import MOST_DEATHS, WAIT_SECONDS, Departure, EngineCall
from voxcpm_grpc.pool.refusals import Refusals, arrays_key, key_of, refusal
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.pool.waiting_calls import WaitingCalls
from voxcpm_grpc.pool.warm_up import try_out
from voxcpm_grpc.request import ModelInfo, Request, Role, VoicePart, content_of

logger = logging.getLogger(__name__)

WINDOW_CHUNKS = 128  # chunks, about 20 s of speech


class EnginePool:
    """The engines of one model, as a front uses them. Implements `directory.EngineListener`; belongs to one event loop.

    Each call goes to the replica with the least work left. If an engine dies or leaves service, others continue its
    streams behind the steps that this front has received, with the same seeds, and do its other calls again. While no
    engine can take a call, it waits if the next one is expected in time and the queue has room. Otherwise it ends at
    once, with Unavailable and the time to wait, or with Exhausted; or with Aborted if it has delivered something. So
    does a call with which two engines in a row have ended, and calls of equal content are refused from then on.

    continuations: how many times a stream with audio has gone on on another engine
    """

    def __init__(
        self, engines: Engines, scaling: Callable[[EnginePool], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """scaling: adds and removes engines of a started pool until it is cancelled"""
        self._name = uuid.uuid4().hex[:8]  # ids have it, because an engine may serve several pools
        self._engines = engines
        self._scale = scaling
        self._scaling: asyncio.Task[None] | None = None
        self._replicas: list[Replica] = []
        self.adapters = AdapterCatalog(self._ready, engines.names, self._name)
        self._waiting = WaitingCalls(self._replicas)
        self._refusals = Refusals()
        self.continuations = 0
        self._balancer = Balancer[Replica]()
        self._info: ModelInfo | None = None
        self._numbers = count()
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._closing = False
        engines.watch(self)

    async def start(self) -> None:
        """Wait until the engines serve. If they cannot, closes the pool and raises StartupError."""
        try:
            await self._engines.start()
        except BaseException:
            await self.close()
            raise
        if scale := self._scale:
            self._scaling = keep_running(lambda: scale(self), "the scaling of the pool")

    async def warm_up(self) -> None:
        """Generate a short piece of speech on each replica that is ready. Raises StartupError if one fails."""
        progress.report("a first request runs on each engine")
        ready = self._ready()
        try:
            async with asyncio.TaskGroup() as group:
                for replica in ready:
                    group.create_task(try_out(replica, self.info, self._new_id))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def drain(self, replica: Replica, *, seconds: float) -> None:
        """Give a replica no new calls, move its streams to others, and wait up to `seconds` for the end of the rest."""
        replica.draining = True
        self._on_change(replica)
        if self._ready():
            replica.move_calls()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await replica.idle()

    def drain_engine(self, engine: str, *, restart: bool) -> None:
        """Take an engine out of service when its work is done; with `restart`, start it again then."""
        self._engines.drain(engine, restart=restart)

    def start_engine(self, engine: str) -> None:
        """Start an engine that was taken out of service."""
        self._engines.resume(engine)

    async def changed(self) -> None:
        """Wait until a replica changes."""
        await self._changed.wait()

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return tuple(self._replicas)

    def _ready(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.ready]

    @property
    def info(self) -> ModelInfo:
        """The model that is served. Known after `start`."""
        assert self._info is not None
        return self._info

    @property
    def healthy(self) -> bool:
        """True if an engine takes calls."""
        return any(replica.ready for replica in self._replicas)

    async def health(self) -> AsyncIterator[bool]:
        """Yield `healthy` now and after every change."""
        last: bool | None = None
        while True:
            changed = self._changed
            if (now := self.healthy) is not last:
                last = now
                yield now
            await changed.wait()

    async def closed_or_given_up(self) -> None:
        """Wait until there is no engine and no attempt to start one."""
        await self._over.wait()

    def generate(
        self,
        request: Request,
        *,
        window: int = WINDOW_CHUNKS,
        first_limit: int | None = None,
        seconds_left: float | None = None,
        max_wait: float = WAIT_SECONDS,
    ) -> EngineCall[Event]:
        """Start a request. Its events are Admitted, then AudioChunks in order, then Finished.

        The request is sent to an engine at once; iteration raises its errors. The engine makes up to `window` chunks
        ahead of the reader. Reading a chunk lets it make another one, unless there is a `first_limit`: the engine makes
        so many chunks, and only `EngineCall.allow` raises that. A new stream that would wait for a slot for longer than
        `seconds_left`, the time until its caller's deadline, ends with QueueTooLong at once. The request waits for an
        engine that restarts for up to `max_wait` seconds. An open request gets more text by `EngineCall.append`.
        Closing the call (see contextlib.aclosing) or dropping it cancels the request.
        """
        info = self.info

        def so_far(call: EngineCall[Event], **fields: Any) -> Request:
            return replace(request, text=request.text + call.appended, open=call.text_is_open, **fields)

        def submit(call: EngineCall[Event]) -> Submit:
            named = so_far(
                call,
                id=call.id,
                log_id=call.log_id,
                lead_seconds=max(0.0, call.plays_until - monotonic()),  # the call may have waited for an engine
                continues=not call.is_new,
            )
            return Submit(named, call.limit, call.work_here, call.kept.history)

        call: EngineCall[Event] = EngineCall(
            request.id,
            submit,
            work=work_of(request, info),
            window=window,
            first_limit=first_limit,
            prefix=prefix_of(request),
            is_new=not request.continues,
            is_batch=request.is_batch,
            deadline=None if seconds_left is None else monotonic() + seconds_left,
            adapter=content_of(request.conditioning.adapter),
            wait_until=monotonic() + max_wait,
            max_wait=max_wait,
            heard_seconds=request.heard(info.step_seconds),
            text_is_open=request.open,
            work_with=partial(work_of, request, info),
            plays_until=monotonic() + request.lead_seconds,
            key=lambda call: key_of(so_far(call)),
        )
        self._start(call)
        return call

    def waits_for_slot(self, call: EngineCall[Event]) -> bool:
        """True if the engine of a request has more requests than slots. Only then a slot can be what it waits for."""
        return any(replica.has_queue(is_batch=call.is_batch) for replica in self._replicas if call in replica.calls)

    def waits_for_engine(self, call: EngineCall[Event]) -> bool:
        """True while no engine can take a request. It ends at the end of its `max_wait`."""
        return call in self._waiting

    @property
    def waiting_for_engine(self) -> int:
        """The requests that wait for an engine. For any thread."""
        return self._waiting.streams

    async def check(self, request: Request) -> None:
        """Raise InvalidRequest or TooLong if no engine could run a request, however long it waits."""
        call: EngineCall[CodecChunk] = EngineCall(
            "check", lambda call: Check(replace(request, id=call.id, log_id=call.log_id)), whole=True
        )
        self._start(call)
        async with contextlib.aclosing(call) as pieces:
            async for _ in pieces:
                pass

    async def encode(self, waveform: np.ndarray, role: Role) -> VoicePart:
        """Encode a mono waveform, float32 [samples] at the model's input rate, as a part of a voice without its text.

        Raises InvalidRequest if it is empty.
        """
        work = work_of_coding(len(waveform) // self.info.input_samples_per_step)
        call: EngineCall[CodecChunk] = EngineCall(
            "encode",
            lambda call: Encode(call.id, waveform, role, call.log_id),
            work=work,
            whole=True,
            key=lambda call: arrays_key(role, {"waveform": waveform}),
        )
        self._start(call)
        arrays: defaultdict[str, list[np.ndarray]] = defaultdict(list)
        async with contextlib.aclosing(call) as pieces:
            async for piece in pieces:
                if not piece.last:
                    arrays[piece.name].append(piece.array)
        content = {name: np.concatenate(chunks) for name, chunks in arrays.items()}
        return VoicePart(content=content, tracks=tuple(name for name in self.info.tracks if name in content))

    async def decode(self, part: VoicePart) -> AsyncGenerator[np.ndarray]:
        """Decode a part of a voice, and yield pieces of audio, float32 [samples] at the output rate."""
        call: EngineCall[CodecChunk] = EngineCall(
            "decode",
            lambda call: Decode(call.id, dict(part.content), call.log_id),
            work=work_of_coding(part.steps),
            key=lambda call: arrays_key("decode", part.content),
        )
        self._start(call)
        async with contextlib.aclosing(call) as pieces:
            async for piece in pieces:
                if piece.array.size:
                    yield piece.array

    async def close(self) -> None:
        """Stop all engines, or leave those of a host. Calls in progress end as if the engines were lost."""
        self._closing = True
        await cancel_and_wait(self._scaling)
        for replica in self._replicas:
            replica.draining = True
        await self._engines.close()
        for replica in self._replicas:
            replica.close()
        self._over.set()
        self._start_waiting()

    # ---- the events of the engines

    def on_ready(self, engine: str, info: ModelInfo, restarts: int) -> None:
        self._info = self._info or info
        self._replica(engine).on_ready(self._engines.connect(engine), info, restarts)

    def on_lost(self, engine: str, seconds: float) -> None:
        self._replica(engine).on_lost(seconds)

    def on_draining(self, engine: str) -> None:
        replica = self._replica(engine)
        replica.out_of_service = True
        self._on_change(replica)

    def on_removed(self, engine: str) -> None:
        replica = self._replica(engine)
        self._replicas.remove(replica)
        replica.close()

    def _replica(self, engine: str) -> Replica:
        """The replica of an engine, a new one for an engine that was not known before."""
        for replica in self._replicas:
            if replica.name == engine:
                return replica
        replica = Replica(engine, on_ready=self.adapters.on_ready, on_change=self._on_change, reassign=self._reassign)
        self._replicas.append(replica)
        return replica

    # ---- calls

    def _start(self, call: EngineCall, *, left: Replica | None = None) -> None:
        """Start a call on a replica, on another one than `left` if possible."""
        if self._refusals and call.key is not None and call.key(call) in self._refusals:
            call.fail(refusal())
            return
        ready = [] if self._closing else self._ready()
        able = [replica for replica in ready if replica not in call.unable]
        if ready and not able:
            text = "no engine has the LoRA adapter of this request; its operator must register it again"
            self._give_up(call, FailedPrecondition(text, field="lora", reason=Reason.LORA_LOST))
            return
        if call.has_output:
            able = [replica for replica in able if replica.info and replica.info.dtype == call.dtype]
        replicas = [replica for replica in able if replica is not left] or able
        if not replicas:
            self._waiting.add(call)
            return
        loads = {replica: load_for(call, replica) for replica in replicas}
        if call.is_new and (error := queue_error(call, loads)):
            call.fail(error)
            return
        chosen = self._balancer.choose(loads, call.prefix)
        room, steps = loads[chosen]
        if call.is_new and (error := deadline_error(call, chosen, room)):
            call.fail(error)
            return
        id = self._new_id(call)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                LogLine(
                    "replica",
                    request_id=call.log_id,
                    call=id,
                    engine=chosen.name.removeprefix("engine "),
                    room=room.name.lower(),
                    steps=round(steps),
                    of=len(replicas),
                )
            )
        if chosen.info is not None:
            call.dtype = chosen.info.dtype
        if call.has_output:
            self.continuations += 1
        chosen.start(id, call)

    def _start_waiting(self) -> None:
        """Start the calls that wait for an engine. Those that no engine can take go on waiting, or end."""
        for call in sorted(self._waiting.take(), key=lambda call: (call.is_batch, call.plays_until)):
            self._start(call)

    def _new_id(self, call: EngineCall) -> str:
        """An id that is never used again, because an engine may still report on a call that was cancelled."""
        return f"{call.name}.{self._name}.{next(self._numbers)}"

    def _on_change(self, replica: Replica) -> None:
        if not replica.ready:
            self._balancer.forget(replica)
        self._changed.set()
        self._changed = asyncio.Event()
        if self._ready():
            for leaving in [one for one in self._replicas if one.out_of_service]:
                leaving.move_calls()
        if self._replicas and all(one.given_up for one in self._replicas):
            self._over.set()
        self._start_waiting()

    def _reassign(self, replica: Replica, calls: list[EngineCall], departure: Departure) -> None:
        """Let other replicas continue calls that leave one, or end them."""
        for call in sorted(calls, key=lambda call: (call.is_batch, call.plays_until)):
            names = {"request_id": call.log_id, "call": call.name, "engine": replica.name}
            spent = call.deaths >= MOST_DEATHS
            if spent and departure is Departure.LOST:
                logger.error(LogLine("refused: engines end with it", **names))
                if call.key is not None:
                    self._refusals.add(call.key(call))
                call.fail(refusal())
            elif spent or not call.can_continue:
                self._give_up(call, self._waiting.no_engine(call))
            else:
                logger.debug(LogLine(f"goes on: {departure}", **names))
                self._start(call, left=replica)

    def _give_up(self, call: EngineCall, error: VoxCPMError) -> None:
        """End a call that no engine takes."""
        call.fail(broken_off(error) if call.has_output else error)
