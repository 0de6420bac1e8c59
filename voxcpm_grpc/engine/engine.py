"""Continuous batching over one model on one device. Knows no model family and no transport."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from time import monotonic

import numpy as np
import torch
from msgspec.structs import replace

from voxcpm_grpc.engine.blocks import BlockManager, page_keys
from voxcpm_grpc.engine.codec_jobs import CodecJobs
from voxcpm_grpc.engine.host_copy import HostCopy
from voxcpm_grpc.engine.kv_cache import allocate_kv, count_pages
from voxcpm_grpc.engine.runner import OUT_OF_MEMORY, EntryFault, InFlight, Runner, working_memory
from voxcpm_grpc.engine.scheduler import Batch, PrefillBudget, Scheduler
from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.engine.slots import Slots
from voxcpm_grpc.engine.warm_up import STEPS, codec_inputs, warm_up_requests
from voxcpm_grpc.errors import FailedPrecondition, Internal, InvalidRequest, Unavailable, VoxCPMError
from voxcpm_grpc.models.base import SpeechModel
from voxcpm_grpc.request import Admitted, AudioChunk, CodecChunk, Event, Finished, FinishReason, Request, Stats
from voxcpm_grpc.settings.schema import EngineSettings

logger = logging.getLogger(__name__)

UNLIMITED = 1 << 62
PREFILL = {"cuda": PrefillBudget(2048, 4096), "cpu": PrefillBudget(256, 256)}  # milliseconds of a GPU, steps of a CPU
FAULTS_BEFORE_GIVING_UP = 3  # launches that fail in a row: the device is not coming back


Result = tuple[str, Event | CodecChunk | VoxCPMError]


class Engine:
    """Add requests, call `step` while `busy`, deliver what it returns. Not thread-safe: one loop owns it.

    A round is launched when the audio of the one before has been read. A GPU still runs that one's language models
    then, so it does not idle. A stream that has ended makes no further step; a request that came meanwhile joins.
    """

    def __init__(
        self, model: SpeechModel, settings: EngineSettings, device: torch.device, *, graphs: bool = False
    ) -> None:
        info = model.info
        slots, max_len = info.max_slots, info.max_model_len
        given = settings.prefill_tokens
        budget = PrefillBudget(given, given) if given else PREFILL[device.type]
        self.model = model
        self.info = info
        self.prefix_caching = settings.prefix_caching
        on_device = Slots.allocate(model, slots, -(-max_len // settings.page_size), device)
        working = (
            working_memory(model, on_device, settings.page_size, budget.most, graphs=graphs)
            if device.type == "cuda"
            else 0
        )
        pages = count_pages(model.layout, settings, device, slots=slots, max_len=max_len, working=working)
        kv = allocate_kv(model.layout, pages, settings.page_size, device)
        self.scheduler = Scheduler(
            slots=slots,
            blocks=BlockManager(pages),
            page_size=settings.page_size,
            budget=budget,
            max_queue=settings.max_queue,
            max_len=max_len,
            step_seconds=info.samples_per_step / info.output_sample_rate,
        )
        self.runner = Runner(model, on_device, kv, graph_tokens=budget.most if graphs else None)
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: InFlight | None = None  # its frames are still to be read
        self._keeping: deque[tuple[Sequence, Finished, HostCopy]] = deque()  # ended, their latents still on the way
        self._jobs = CodecJobs(device)
        self._results: list[Result] = []
        self._faults_in_a_row = 0
        self._counts = dict.fromkeys(
            ("steps", "prefix_hit_tokens", "prefill_tokens", "finished", "cancelled", "failed"), 0
        )

    def warm_up(self) -> float:
        """Speak, encode and decode a little, so that no caller waits for what is made on first use.

        Returns the seconds of the longest step of a full house. Leaves no trace; call before anything else.
        """
        patches, counts = min(self.scheduler.budget.most, self.scheduler.max_len // 4), self.info.timesteps
        self._run_warm_up(counts, streams=1, patches=patches)
        self.scheduler.blocks.forget()
        slowest = self._run_warm_up([max(counts)], streams=self.info.max_slots, patches=patches)
        self.scheduler.blocks.forget()
        self.scheduler.preemptions = 0
        self._counts = dict.fromkeys(self._counts, 0)
        return slowest

    def add(self, request: Request, credit: int = UNLIMITED) -> None:
        """Queue a request. `credit` is how many chunks its listener takes before it must `grant` more.

        Raises InvalidRequest, TooLong, FailedPrecondition or Exhausted; nothing is kept then.
        """
        if request.id in self._sequences or request.id in self._jobs:
            raise InvalidRequest(f"request id {request.id!r} is in use; choose another", field="request_id")
        timesteps = request.sampling.inference_timesteps
        if timesteps not in self.info.timesteps:
            raise FailedPrecondition(
                f"inference_timesteps is {timesteps}; this server allows {', '.join(map(str, self.info.timesteps))}",
                field="inference_timesteps",
            )
        prompt = self.model.prompt(request)
        keys = []
        if self.prefix_caching:
            shared = slice(0, prompt.cacheable)
            keys = page_keys(prompt.tokens[shared], prompt.audio[shared], prompt.patches, self.scheduler.page_size)
        sequence = Sequence(
            request=request,
            prompt=prompt,
            keys=keys,
            credit=credit,
            max_steps=prompt.max_steps,
            arrived=monotonic(),
        )
        self.scheduler.add(sequence)
        self._sequences[request.id] = sequence

    def cancel(self, id: str) -> None:
        """Forget a request or codec job: no step launched from now on contains it, and what was read of it is dropped.

        Unknown ids are ignored.
        """
        self._jobs.cancel(id)
        self._results = [result for result in self._results if result[0] != id]
        if sequence := self._sequences.get(id):
            self._counts["cancelled"] += 1
            self._end(sequence)

    def grant(self, id: str, chunks: int) -> None:
        """The listener of a request takes `chunks` more."""
        if sequence := self._sequences.get(id):
            sequence.credit += chunks

    def encode(self, id: str, waveform: np.ndarray, *, pad_left: bool) -> None:
        """Start encoding a waveform; its latents come as CodecChunks out of `step`, beside the running streams."""
        self._jobs.add(id, self.runner.codec.encode(waveform, pad_left=pad_left))

    def decode(self, id: str, latents: np.ndarray) -> None:
        """Start decoding latents; the audio comes as CodecChunks out of `step`."""
        self._jobs.add(id, self.runner.codec.decode(latents))

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do now. Streams whose listeners give no credit do not count."""
        return bool(self._in_flight or self._keeping or self._jobs or self._results) or self.scheduler.runnable

    def collect(self) -> None:
        """Wait for the audio of the last round and read it. `step`, which does this first, returns it.

        A request that is added between the two can be in the very next round.
        """
        in_flight, self._in_flight = self._in_flight, None
        if in_flight:
            self._deliver(in_flight)

    def step(self) -> list[Result]:
        """Launch a round and a piece of a codec job; returns what has arrived of earlier ones."""
        self.collect()
        batch = self.scheduler.schedule(monotonic())
        if batch:
            self._launch(batch)
        if self._in_flight and self._in_flight.ready():
            self.collect()  # a CPU is done by now
        idle = not (batch or self._results)
        self._results += self._jobs.advance(wait=idle)
        while self._keeping and (idle or self._keeping[0][2].ready()):
            self._hand_over(*self._keeping.popleft())
        results, self._results = self._results, []
        return results

    def stats(self) -> Stats:
        scheduler = self.scheduler
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            slots_used=self.info.max_slots - len(scheduler.free_slots),
            slots_total=self.info.max_slots,
            pages_used=scheduler.blocks.used,
            pages_total=scheduler.blocks.total,
            preemptions=scheduler.preemptions,
            **self._counts,
        )

    def _run_warm_up(self, timesteps: Iterable[int], *, streams: int, patches: int) -> float:
        """Run as many requests as `streams` for each count of timesteps, and the codec; returns the seconds of the
        longest step."""
        waveform, latents = codec_inputs(self.info)
        self.encode("warm-up encode", waveform, pad_left=True)
        self.decode("warm-up decode", latents)
        slowest = 0.0
        for count in timesteps:
            for request in warm_up_requests(self.info, streams=streams, timesteps=count, patches=patches):
                self.add(request, STEPS)
            while self.busy:
                started = monotonic()
                self.step()
                slowest = max(slowest, monotonic() - started)
        return slowest

    def _launch(self, batch: Batch) -> None:
        for sequence in batch.opened:
            self._counts["prefix_hit_tokens"] += sequence.cached
            event = Admitted(
                queue_seconds=sequence.admitted - sequence.arrived,
                prompt_tokens=len(sequence.prompt),
                cached_tokens=sequence.cached,
            )
            self._results.append((sequence.id, event))
        self._counts["prefill_tokens"] += sum(chunk.stop - chunk.start for chunk in batch.chunks)
        self._counts["steps"] += bool(batch.steps)
        try:
            self._in_flight = self._run(batch)
            self._faults_in_a_row = 0
        except OUT_OF_MEMORY:
            raise
        except Exception:
            self._faults_in_a_row += 1
            innocent = [sequence for sequence in batch.sequences if not sequence.ended]
            logger.exception("a step failed; it ends the requests %s", ", ".join(one.id for one in innocent))
            for sequence in innocent:
                self._fail(sequence, Unavailable("the engine failed while others spoke too; try again"))
            self.scheduler.blocks.forget()
            if self._faults_in_a_row >= FAULTS_BEFORE_GIVING_UP:
                raise

    def _run(self, batch: Batch) -> InFlight:
        """Launch a batch; what fails while prompts enter ends those alone whose prompts fail one by one too."""
        try:
            return self.runner.launch(batch)
        except EntryFault as fault:
            self.scheduler.blocks.forget()
            for sequence in {*batch.opened, *(chunk.sequence for chunk in batch.chunks)}:
                self._enter_alone(sequence, batch)
            if all(sequence.ended for sequence in batch.sequences):
                raise fault.__cause__ or fault from None
            return self.runner.launch(Batch(steps=[sequence for sequence in batch.steps if not sequence.ended]))

    def _enter_alone(self, sequence: Sequence, batch: Batch) -> None:
        chunks = [chunk for chunk in batch.chunks if chunk.sequence is sequence]
        try:
            self.runner.enter(Batch(opened=[one for one in batch.opened if one is sequence], chunks=chunks))
        except OUT_OF_MEMORY:
            raise
        except Exception:
            logger.exception("the prompt of request %s cannot be entered", sequence.id)
            self._fail(sequence, Internal())

    def _deliver(self, in_flight: InFlight) -> None:
        for group, copy in in_flight.frames:
            frames = copy.wait()
            audio, stop, finite = frames[:, :-2], frames[:, -2], frames[:, -1]
            for row, sequence in enumerate(group):
                if sequence.ended:
                    continue
                if not finite[row]:
                    logger.error("request %s made audio that is not finite at step %d", sequence.id, sequence.delivered)
                    self._fail(sequence, Internal())
                    continue
                index = sequence.delivered
                sequence.speaking_since = sequence.speaking_since or monotonic()
                sequence.delivered += 1
                self._results.append((sequence.id, AudioChunk(index=index, samples=audio[row])))
                if stop[row] and index > sequence.request.sampling.min_steps:
                    self._finish(sequence, FinishReason.STOP)
                elif sequence.delivered == sequence.max_steps:
                    self._finish(sequence, FinishReason.MAX_STEPS)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._counts["finished"] += 1
        event = Finished(reason=reason, steps=sequence.delivered, engine_seconds=monotonic() - sequence.admitted)
        if sequence.request.keep_latents:
            self._keeping.append((sequence, event, self.runner.generated(sequence)))
        else:
            self._results.append((sequence.id, event))
        self._end(sequence)

    def _hand_over(self, sequence: Sequence, event: Finished, copy: HostCopy) -> None:
        self._results.append((sequence.id, replace(event, latents=copy.wait())))

    def _fail(self, sequence: Sequence, error: VoxCPMError) -> None:
        self._counts["failed"] += 1
        self._results.append((sequence.id, error))
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        sequence.ended = True
        del self._sequences[sequence.id]
        self.scheduler.remove(sequence)
