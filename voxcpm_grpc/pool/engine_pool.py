"""The engines as a front uses them: the pool chooses a replica for each call and retries calls of lost engines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from pathlib import Path
from time import monotonic

import numpy as np

from voxcpm_grpc import logs, progress
from voxcpm_grpc.errors import (
    Aborted,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    QueueFull,
    QueueTooLong,
    Reason,
    StartupError,
)
from voxcpm_grpc.ipc.messages import Check, Decode, Encode, Submit
from voxcpm_grpc.logs import LogLine, LogOptions
from voxcpm_grpc.pool.adapters import AdapterCatalog, AdapterRegistry, describe, name_in_use
from voxcpm_grpc.pool.background import close_all
from voxcpm_grpc.pool.balancer import Balancer, Room, prefix_of, work_of, work_of_coding
from voxcpm_grpc.pool.engine_call import WAIT_SECONDS, EngineCall
from voxcpm_grpc.pool.handle import HandleFactory, process_factories
from voxcpm_grpc.pool.lora_holders import LoraHolders
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.pool.restarts import Restarts
from voxcpm_grpc.pool.standby import Standby
from voxcpm_grpc.pool.waiting_calls import WaitingCalls
from voxcpm_grpc.pool.warm_up import try_out
from voxcpm_grpc.request import CodecChunk, Event, LoraInfo, ModelInfo, Request
from voxcpm_grpc.settings.engine import EngineSettings, SupervisionSettings

logger = logging.getLogger(__name__)

LEAD_CHUNKS = 128  # about 20 s of speech


class EnginePool:
    """Engines that serve the same model. Created and used on one event loop.

    Each call goes to the replica with the least work left. If an engine dies, calls that have delivered nothing are
    retried on another engine with the same seed; requests that have delivered audio end with Aborted. Each replica
    restarts its engine; see `supervisor`. While no engine can take a call, it waits if the next one is expected in time
    and the queue has room. Otherwise it ends at once, with Unavailable and the time to wait, or with Exhausted.
    """

    def __init__(
        self,
        factories: Iterable[HandleFactory],
        supervision: SupervisionSettings | None = None,
        registry: AdapterRegistry | None = None,
        restarts: Iterable[Restarts] | None = None,
        standby: Standby | None = None,
    ) -> None:
        """`registry`, `restarts`: the LoRA adapters and the restarts of engines that another process owns.

        `standby` is closed with the pool.
        """
        self._registry = registry or AdapterCatalog()
        self._name = uuid.uuid4().hex[:8]  # part of ids, because an engine may serve several pools
        self._loras = LoraHolders(partial(self._registry.release, self._name))
        self._registry.attach_front(self._name, self._loras.update)
        self._supervision = supervision or SupervisionSettings()
        self._replicas = [self._replica(*pair) for pair in zip(factories, restarts or repeat(None), strict=False)]
        self._waiting = WaitingCalls(self._replicas)
        self._standby = standby
        self._balancer = Balancer(Replica.load)
        self._info: ModelInfo | None = None
        self._numbers = count()
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._closing = False

    @classmethod
    def of_processes(
        cls,
        directory: Path,
        name: str,
        engines: Mapping[str, EngineSettings],
        supervision: SupervisionSettings | None = None,
        *,
        log: LogOptions = logs.DEFAULT,
    ) -> EnginePool:
        """A pool of engines in processes of their own, for the checkpoint in `directory`. `start` starts them."""
        supervision = supervision or SupervisionSettings()
        standby = Standby.of_engines([directory], supervision.standby, log=log)
        factories = process_factories(directory, name, engines, log, standby=standby)
        return cls(factories.values(), supervision, standby=standby)

    async def start(self) -> None:
        """Wait until every engine is ready. If one cannot start, stops all and raises StartupError."""
        try:
            async with asyncio.TaskGroup() as group:
                for replica in self._replicas:
                    group.create_task(replica.supervisor.start())
        except BaseException as error:
            await self.close()
            raise (error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error) from None

    async def warm_up(self) -> None:
        """Generate a short piece of speech on each replica that is ready. Raises StartupError if one fails."""
        progress.report("a first request runs on each engine")
        ready = [replica for replica in self._replicas if replica.ready]
        try:
            async with asyncio.TaskGroup() as group:
                for replica in ready:
                    group.create_task(try_out(replica, self.info, self._new_id))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def add(self, make_handle: HandleFactory) -> Replica:
        """Add a replica. It takes calls when its engine is ready; a start that fails is tried again.

        Raises StartupError if the pool is closed.
        """
        if self._closing:
            raise StartupError("the pool is closed and would not stop an engine that is added now")
        replica = self._replica(make_handle)
        self._replicas.append(replica)
        replica.supervisor.start_in_background()
        return replica

    async def remove(self, replica: Replica, *, seconds: float) -> None:
        """Remove a replica: it gets no new calls, has `seconds` to finish its own, and its engine stops.

        Raises if the engine cannot be stopped; may then be called again.
        """
        replica.draining = True
        self._on_change(replica)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await replica.idle()
        await replica.close()
        if replica in self._replicas:
            self._replicas.remove(replica)
        self._on_change(replica)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return tuple(self._replicas)

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
        lead_chunks: int = LEAD_CHUNKS,
        grant_on_read: bool = True,
        seconds_left: float | None = None,
        max_wait: float = WAIT_SECONDS,
    ) -> EngineCall[Event]:
        """Start a request. Its events are Admitted, then AudioChunks in order, then Finished.

        The request is sent to an engine at once; iteration raises its errors. The engine makes up to `lead_chunks`
        chunks ahead of the reader. Reading a chunk lets it make another one, unless `grant_on_read` is false; then only
        `EngineCall.grant` does. A new stream that would wait for a slot for longer than `seconds_left`, the time until
        its caller's deadline, ends with QueueTooLong at once. The request waits for an engine that restarts for up to
        `max_wait` seconds. Closing the call (see contextlib.aclosing) or dropping it cancels the request.
        """
        credit = max(1, lead_chunks)
        work = work_of(request, self.info)
        plays_until = monotonic() + request.lead_seconds

        def submit(id: str, log_id: str) -> Submit:
            lead = max(0.0, plays_until - monotonic())  # the call may have waited for an engine
            return Submit(replace(request, id=id, log_id=log_id, lead_seconds=lead), credit, work)

        call: EngineCall[Event] = EngineCall(
            request.id,
            submit,
            work=work,
            credit=credit,
            grant_on_read=grant_on_read,
            prefix=prefix_of(request),
            is_new=not request.continues,
            is_batch=request.is_batch,
            deadline=None if seconds_left is None else monotonic() + seconds_left,
            lora=request.lora,
            wait_until=monotonic() + max_wait,
        )
        if any(one.name == call.name and one.is_stream for replica in self._replicas for one in replica.calls):
            call.fail(InvalidRequest(f"request id {request.id!r} is in use; choose another", field="request_id"))
        else:
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
            "check", lambda id, log_id: Check(replace(request, id=id, log_id=log_id)), whole=True
        )
        self._start(call)
        async with contextlib.aclosing(call) as pieces:
            async for _ in pieces:
                pass

    async def encode(self, waveform: np.ndarray, *, pad_left: bool) -> np.ndarray:
        """Encode a mono waveform, float32 [samples] at the model's input rate, into latents float32 [patches, P, D].

        Zeros fill the first patch if `pad_left` is true, as prompts need, and otherwise the last one, as references do.
        """
        work = work_of_coding(len(waveform) // self.info.samples_per_patch)
        call: EngineCall[CodecChunk] = EngineCall(
            "encode", lambda id, log_id: Encode(id, waveform, pad_left, log_id), work=work, whole=True
        )
        self._start(call)
        async with contextlib.aclosing(call) as pieces:
            arrays = [piece.array async for piece in pieces if piece.array.size]
        shape = (0, self.info.patch_size, self.info.latent_dim)
        return np.concatenate(arrays) if arrays else np.zeros(shape, np.float32)

    async def decode(self, latents: np.ndarray) -> AsyncGenerator[np.ndarray]:
        """Decode latents [patches, P, D], and yield pieces of audio, float32 [samples] at the output rate."""
        call: EngineCall[CodecChunk] = EngineCall(
            "decode", lambda id, log_id: Decode(id, latents, log_id), work=work_of_coding(len(latents))
        )
        self._start(call)
        async with contextlib.aclosing(call) as pieces:
            async for piece in pieces:
                if piece.array.size:
                    yield piece.array

    def loras(self) -> tuple[LoraInfo, ...]:
        """The LoRA adapters that new streams may choose, in the order of their registration."""
        return self._loras.registered

    def lora(self, name: str) -> AbstractContextManager[str]:
        """Hold an adapter for a stream, until the end of the block; gives the id for `Request.lora`.

        An adapter that is unregistered meanwhile stays usable. An empty name gives an empty id, the model alone. Raises
        NotFound.
        """
        return self._loras.hold(name)

    def find_lora(self, name: str) -> LoraInfo:
        """The adapter that new streams get for a name. Raises NotFound."""
        return self._loras.find(name)

    def require_new_lora(self, name: str) -> None:
        """Raise AlreadyExists if an adapter has the name, so that a registration would fail."""
        if any(info.name == name for info in self.loras()):
            raise name_in_use(name)

    def streams_with(self, id: str) -> int:
        """The number of streams that hold the adapter with this id, also one that was unregistered."""
        return self._loras.streams_with(id)

    async def register_lora(self, name: str, source: str, directory: Path) -> LoraInfo:
        """Let all engines read the adapter in `directory`. Returns when streams may choose it.

        Raises InvalidRequest for its files, AlreadyExists for its name, FailedPrecondition if the engines take none,
        and Unavailable without engines. Then, and if it is cancelled, no engine keeps it.
        """
        info = await describe(name, source, directory)
        await self._registry.register(info)
        return info

    async def unregister_lora(self, name: str) -> LoraInfo:
        """Withdraw an adapter from new streams. Engines free it when no stream of any front holds it.

        Raises NotFound.
        """
        info = self._loras.find(name)
        try:
            await self._registry.unregister(info.id)
        except NotFound as error:
            error.details["lora"] = name
            raise
        return info

    async def close(self) -> None:
        """Stop all engines. Calls in progress end as if the engines were lost."""
        self._closing = True
        await close_all(replica.close() for replica in self._replicas)
        if self._standby:
            await self._standby.close()
        self._over.set()
        self._start_waiting()

    def _replica(self, make_handle: HandleFactory, restarts: Restarts | None = None) -> Replica:
        return Replica(
            make_handle,
            self._supervision,
            check=self._check,
            on_change=self._on_change,
            reassign=self._reassign,
            registry=self._registry,
            restarts=restarts,
        )

    def _start(self, call: EngineCall, *, lost: Replica | None = None) -> None:
        """Start a call on a replica, on another one than `lost` if possible."""
        ready = [replica for replica in self._replicas if replica.ready and not self._closing]
        able = [replica for replica in ready if replica.has_lora(call.lora)]
        replicas = [replica for replica in able if replica is not lost] or able
        if not replicas:
            self._wait_for_engine(call, ready)
            return
        if call.is_new and all(replica.load(is_batch=call.is_batch)[0] is Room.NONE for replica in replicas):
            # The engines would refuse it, too, but only after the step that runs.
            logger.debug(
                LogLine(
                    "refused: the queues of all engines are full",
                    request_id=call.log_id,
                    call=call.name,
                    engines=len(replicas),
                )
            )
            queued = min(replica.queued(is_batch=call.is_batch) for replica in replicas)
            call.fail(QueueFull(queued, self.info.max_queue or 0))
            return
        chosen = self._balancer.choose(replicas, call.prefix, partial(Replica.load, is_batch=call.is_batch))
        if call.is_new and call.deadline is not None and (wait := chosen.queue_seconds(is_batch=call.is_batch)):
            remaining = call.deadline - monotonic()
            if remaining < wait:
                logger.debug(
                    LogLine(
                        "refused: the deadline ends before a slot is free",
                        request_id=call.log_id,
                        call=call.name,
                        wait=wait,
                        remaining=remaining,
                    )
                )
                call.fail(QueueTooLong(wait, remaining))
                return
        id = self._new_id(call)
        if logger.isEnabledFor(logging.DEBUG):
            room, steps = chosen.load(is_batch=call.is_batch)
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
        chosen.start(id, call)

    def _wait_for_engine(self, call: EngineCall, ready: list[Replica]) -> None:
        failed = [any(one.id == call.lora for one in replica.loras.failed) for replica in ready]
        if ready and (all(failed) or not self._loras.may_name(call.lora)):
            text = "no engine has the LoRA adapter of this request; its operator must register it again"
            call.fail(FailedPrecondition(text, field="lora", reason=Reason.LORA_LOST))
        else:
            self._waiting.add(call)

    def _start_waiting(self) -> None:
        """Start the calls that wait for an engine. Those that no engine can take go on waiting, or end."""
        for call in self._waiting.take():
            self._start(call)

    def _new_id(self, call: EngineCall) -> str:
        """An id that is never used again, because an engine may still report on a call that was cancelled."""
        return f"{call.name}.{self._name}.{next(self._numbers)}"

    def _check(self, info: ModelInfo) -> None:
        if self._info is None:
            self._info = info
        elif info.fingerprint != self._info.fingerprint:
            raise StartupError("the engines serve different models; give all of them the same checkpoint")

    def _on_change(self, replica: Replica) -> None:
        if not replica.ready:
            self._balancer.forget(replica)
        self._changed.set()
        self._changed = asyncio.Event()
        if self._replicas and all(one.given_up for one in self._replicas):
            self._over.set()
        self._start_waiting()

    def _reassign(self, replica: Replica, calls: list[EngineCall]) -> None:
        """Retry the calls of a lost engine on other replicas, or end them."""
        for call in calls:
            if call.has_output:
                call.fail(
                    Aborted("the engine was lost after audio was sent; what was sent is good, ask again for the rest")
                )
            elif call.retries_left > 0:
                call.retries_left -= 1
                logger.debug(
                    LogLine("retried: its engine is lost", request_id=call.log_id, call=call.name, engine=replica.name)
                )
                self._start(call, lost=replica)
            else:
                call.fail(self._waiting.no_engine(call))
