"""Continuous batching with one model on one device. Independent of model family and transport."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from msgspec.structs import replace as replace_event

from voxcpm_grpc import progress
from voxcpm_grpc.engine.batch import Batch
from voxcpm_grpc.engine.blocks import BlockManager, page_keys
from voxcpm_grpc.engine.codec_jobs import CodecJobs
from voxcpm_grpc.engine.compilation import Compilation
from voxcpm_grpc.engine.host_copy import HostCopy
from voxcpm_grpc.engine.kv_cache import allocate_kv, count_pages
from voxcpm_grpc.engine.places import Places
from voxcpm_grpc.engine.prefill_budget import PrefillBudget
from voxcpm_grpc.engine.runner import OUT_OF_MEMORY, InFlight, PrefillError, Runner, working_memory
from voxcpm_grpc.engine.scheduler import Scheduler
from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.engine.slots import Slots
from voxcpm_grpc.engine.warm_up import STEPS, codec_inputs, warm_up_requests
from voxcpm_grpc.errors import FailedPrecondition, Internal, InvalidRequest, Unavailable, VoxCPMError
from voxcpm_grpc.kernels.precompile import precompile
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.models.base import Adapter, SpeechModel
from voxcpm_grpc.request import (
    Admitted,
    AudioChunk,
    CodecChunk,
    Event,
    Finished,
    FinishReason,
    LoraInfo,
    Request,
    Stats,
)
from voxcpm_grpc.settings.engine import EngineSettings

logger = logging.getLogger(__name__)

UNLIMITED_CREDIT = 1 << 62
PREFILL_BUDGETS = {"cuda": PrefillBudget(2048, 4096), "cpu": PrefillBudget(256, 256)}  # by device type
MAX_CONSECUTIVE_FAULTS = 3  # of launches; the device is then considered lost


Result = tuple[str, Event | CodecChunk | VoxCPMError]


class Engine:
    """Runs requests and codec jobs. Its user adds them, calls `step` while `busy`, and delivers the results of `step`.

    Not thread-safe: a single thread uses it.

    A round is launched as soon as the audio of the previous round has been read. A GPU still runs the language models
    of the previous round then, so it does not idle. The new round contains no stream that has ended, and may contain
    requests that were added in the meantime.
    """

    def __init__(
        self, model: SpeechModel, settings: EngineSettings, device: torch.device, *, graphs: bool = False
    ) -> None:
        info = replace(model.info, max_queue=settings.max_queue)
        slots, max_len = info.max_slots, info.max_model_len
        tokens = settings.prefill_tokens
        budget = PrefillBudget(tokens, tokens) if tokens else PREFILL_BUDGETS[device.type]
        self.model = model
        self.info = info
        self.prefix_caching = settings.prefix_caching
        self.compilation: Compilation | None = None  # of parts for later starts, which its owner may run
        on_device = Slots.allocate(model, slots, -(-max_len // settings.page_size), device)
        if graphs:
            precompile(
                partial(_launch_all, model, on_device, settings.page_size, budget.most), key=repr((info, settings))
            )
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
            places=Places(model.places),
        )
        self.runner = Runner(model, on_device, kv, graph_tokens=budget.most if graphs else None)
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: InFlight | None = None  # the round whose frames are not read yet
        self._awaiting_latents: deque[tuple[Sequence, Finished, HostCopy]] = deque()  # ended sequences
        self._jobs = CodecJobs(device)
        self._results: list[Result] = []
        self._consecutive_faults = 0
        self._counts = dict.fromkeys(
            ("steps", "chunks", "prefix_hit_tokens", "prefill_tokens", "finished", "cancelled", "failed"), 0
        )

    def warm_up(self) -> float:
        """Run short requests and codec jobs, so that no user waits for compilations and first allocations.

        Call it before anything else. Returns the seconds of the longest step with all slots in use.
        """
        progress.report("the engine is warming up")
        patches, counts = min(self.scheduler.budget.most, self.scheduler.max_len // 4), self.info.timesteps
        self._run_warm_up(counts, streams=1, patches=patches)
        self.scheduler.blocks.clear_cache()
        slowest = self._run_warm_up([max(counts)], streams=self.info.max_slots, patches=patches)
        self.scheduler.blocks.clear_cache()
        self.scheduler.preemptions = self.scheduler.swaps = 0
        self._counts = dict.fromkeys(self._counts, 0)
        return slowest

    def add(self, request: Request, credit: int = UNLIMITED_CREDIT) -> None:
        """Queue a request. `credit` is the number of chunks that may be generated before `grant` adds more.

        Raises InvalidRequest, TooLong, FailedPrecondition or Exhausted, and leaves the engine unchanged then.
        """
        if request.id in self._sequences or request.id in self._jobs:
            raise InvalidRequest(f"request id {request.id!r} is in use; choose another", field="request_id")
        timesteps = request.sampling.inference_timesteps
        if timesteps not in self.info.timesteps:
            raise FailedPrecondition(
                f"inference_timesteps is {timesteps}; this server allows {', '.join(map(str, self.info.timesteps))}",
                field="inference_timesteps",
            )
        lora = self.scheduler.places.find(request.lora) if request.lora else None
        prompt = self.model.prompt(request)
        keys = []
        if self.prefix_caching:
            shared = slice(0, prompt.cacheable)
            adapter = lora.info.fingerprint if lora else ""
            keys = page_keys(
                prompt.tokens[shared], prompt.audio[shared], prompt.patches, self.scheduler.page_size, adapter
            )
        sequence = Sequence(
            request=request,
            prompt=prompt,
            keys=keys,
            credit=credit,
            max_steps=prompt.max_steps,
            queued_at=monotonic(),
            lora=lora,
        )
        self.scheduler.add(sequence)
        self._sequences[request.id] = sequence
        if lora:
            lora.requests += 1

    def check(self, request: Request) -> None:
        """Raise InvalidRequest or TooLong if the engine could never run a request. Nothing is queued."""
        prompt = self.model.prompt(request)
        self.scheduler.check(len(prompt), prompt.max_steps)

    def cancel(self, id: str) -> None:
        """End a request or codec job. Later steps do not contain it, and `step` returns no more results of it.

        Unknown ids are ignored.
        """
        self._jobs.cancel(id)
        self._results = [result for result in self._results if result[0] != id]
        if sequence := self._sequences.get(id):
            self._counts["cancelled"] += 1
            self._end(sequence)

    def grant(self, id: str, chunks: int) -> None:
        """Add `chunks` to the credit of a request. Unknown ids are ignored."""
        if sequence := self._sequences.get(id):
            sequence.credit += chunks

    def loras(self) -> tuple[LoraInfo, ...]:
        """The registered LoRA adapters, in the order of their registration."""
        return self.scheduler.places.loras

    def read_lora(self, info: LoraInfo) -> Adapter:
        """Read the files of an adapter. Raises InvalidRequest, for an operator, with all that does not fit.

        Other threads may call it while the engine works.
        """
        if not self.model.places:
            raise FailedPrecondition("this server keeps no memory for LoRA adapters; set engine.max_loras")
        return self.model.read_adapter(Path(info.directory))

    def add_lora(self, info: LoraInfo, adapter: Adapter) -> None:
        """Register an adapter: requests may name its id from now on. Raises InvalidRequest or FailedPrecondition."""
        self.scheduler.places.add(info, adapter)

    def remove_lora(self, id: str) -> None:
        """Forget an adapter. Raises FailedPrecondition if it is unknown, or while requests name it."""
        self.scheduler.places.remove(id)

    def encode(self, id: str, waveform: np.ndarray, *, pad_left: bool) -> None:
        """Start to encode a waveform. `step` returns its latents as CodecChunks."""
        self._jobs.add(id, self.runner.codec.encode(waveform, pad_left=pad_left))

    def decode(self, id: str, latents: np.ndarray) -> None:
        """Start to decode latents. `step` returns the audio as CodecChunks."""
        self._jobs.add(id, self.runner.codec.decode(latents))

    @property
    def busy(self) -> bool:
        """True if `step` has work to do now. Streams without credit do not count."""
        return bool(self._in_flight or self._awaiting_latents or self._jobs or self._results) or self.scheduler.runnable

    def collect(self) -> None:
        """Wait for the audio of the last round and read it. `step` does this first, and returns the audio.

        A request that is added between `collect` and `step` can be in the next round.
        """
        in_flight, self._in_flight = self._in_flight, None
        if in_flight:
            self._read_frames(in_flight)

    def step(self) -> list[Result]:
        """Launch a round and a chunk of a codec job. Returns the results of earlier ones that are available."""
        self.collect()
        batch = self.scheduler.schedule(monotonic())
        if batch:
            self._launch(batch)
        if self._in_flight and self._in_flight.ready():
            self.collect()  # on a CPU the round is complete
        idle = not (batch or self._results)
        self._results += self._jobs.advance(wait=idle)
        while self._awaiting_latents and (idle or self._awaiting_latents[0][2].ready()):
            self._finish_with_latents(*self._awaiting_latents.popleft())
        results, self._results = self._results, []
        return results

    def stats(self) -> Stats:
        scheduler = self.scheduler
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            swapped=len(scheduler.swapped),
            slots_used=self.info.max_slots - len(scheduler.free_slots),
            slots_total=self.info.max_slots,
            pages_used=scheduler.blocks.used,
            pages_total=scheduler.blocks.total,
            page_size=scheduler.page_size,
            preemptions=scheduler.preemptions,
            swaps=scheduler.swaps,
            **self._counts,
        )

    def _run_warm_up(self, timesteps: Iterable[int], *, streams: int, patches: int) -> float:
        """Run the codec and, for each count of timesteps, `streams` requests; returns the longest step in seconds."""
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
                queue_seconds=sequence.admitted_at - sequence.queued_at,
                prompt_tokens=len(sequence.prompt),
                cached_tokens=sequence.cached,
            )
            self._results.append((sequence.id, event))
        self._counts["prefill_tokens"] += sum(chunk.stop - chunk.start for chunk in batch.chunks)
        self._counts["steps"] += bool(batch.steps)
        try:
            for sequence, slot in batch.swapped_out:
                sequence.saved = self.runner.save(slot, sequence)
                logger.debug(LogLine("swapped out", **sequence.names, slot=slot, chunks=sequence.delivered))
            self._in_flight = self._run(batch)
            for sequence in batch.restored:
                sequence.saved = None
                logger.debug(LogLine("restored", **sequence.names, slot=sequence.slot, chunks=sequence.delivered))
            self._consecutive_faults = 0
        except OUT_OF_MEMORY:
            raise
        except Exception:
            self._consecutive_faults += 1
            unsaved = {sequence for sequence, _ in batch.swapped_out if sequence.saved is None}
            affected = [sequence for sequence in batch.sequences | unsaved if not sequence.ended]
            logger.exception("a step failed and ends %d requests", len(affected))
            for sequence in affected:
                self._fail(sequence, Unavailable("the engine failed in a step that served this request; try again"))
            self.scheduler.blocks.clear_cache()
            if self._consecutive_faults >= MAX_CONSECUTIVE_FAULTS:
                raise

    def _run(self, batch: Batch) -> InFlight:
        """Launch a batch. If the prefill fails, only the requests whose own prefill fails again are ended."""
        try:
            return self.runner.launch(batch)
        except PrefillError as fault:
            self.scheduler.blocks.clear_cache()
            for sequence in {*batch.opened, *batch.restored, *(chunk.sequence for chunk in batch.chunks)}:
                self._prefill_alone(sequence, batch)
            if all(sequence.ended for sequence in batch.sequences):
                raise fault.__cause__ or fault from None
            return self.runner.launch(Batch(steps=[sequence for sequence in batch.steps if not sequence.ended]))

    def _prefill_alone(self, sequence: Sequence, batch: Batch) -> None:
        chunks = [chunk for chunk in batch.chunks if chunk.sequence is sequence]
        try:
            opened = [one for one in batch.opened if one is sequence]
            restored = [one for one in batch.restored if one is sequence]
            self.runner.prefill(Batch(opened=opened, restored=restored, loras=batch.loras, chunks=chunks))
        except OUT_OF_MEMORY:
            raise
        except Exception:
            logger.exception(LogLine("the prefill failed", **sequence.names))
            self._fail(sequence, Internal())

    def _read_frames(self, in_flight: InFlight) -> None:
        for group, copy in in_flight.frames:
            frames = copy.wait()
            audio, stop, finite = frames[:, :-2], frames[:, -2], frames[:, -1]
            for row, sequence in enumerate(group):
                if sequence.ended:
                    continue
                if not finite[row]:
                    logger.error(LogLine("the audio is not finite", **sequence.names, step=sequence.delivered))
                    self._fail(sequence, Internal())
                    continue
                index = sequence.delivered
                sequence.first_audio_at = sequence.first_audio_at or monotonic()
                sequence.delivered += 1
                self._counts["chunks"] += 1
                self._results.append((sequence.id, AudioChunk(index=index, samples=audio[row])))
                if stop[row] and index > sequence.request.sampling.min_steps:
                    self._finish(sequence, FinishReason.STOP)
                elif sequence.delivered == sequence.max_steps:
                    self._finish(sequence, FinishReason.MAX_STEPS)
                elif sequence.fell_silent(audio[row]):
                    self._finish(sequence, FinishReason.SILENCE)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._counts["finished"] += 1
        event = Finished(
            reason=reason,
            steps=sequence.delivered,
            engine_seconds=monotonic() - sequence.admitted_at,
            ran_on=sequence.delivered >= sequence.prompt.ran_on_steps,
        )
        if sequence.request.keep_latents:
            self._awaiting_latents.append((sequence, event, self.runner.generated(sequence)))
        else:
            self._results.append((sequence.id, event))
        self._end(sequence)

    def _finish_with_latents(self, sequence: Sequence, event: Finished, copy: HostCopy) -> None:
        self._results.append((sequence.id, replace_event(event, latents=copy.wait())))

    def _fail(self, sequence: Sequence, error: VoxCPMError) -> None:
        self._counts["failed"] += 1
        self._results.append((sequence.id, error))
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        sequence.ended = True
        del self._sequences[sequence.id]
        self.scheduler.remove(sequence)
        if sequence.lora:
            sequence.lora.requests -= 1


def _launch_all(model: SpeechModel, slots: Slots, page_size: int, prefill_tokens: int) -> None:
    """Launch all kernels of an engine with CUDA graphs, without a KV cache."""
    working_memory(model, slots, page_size, prefill_tokens, graphs=True)
    Runner(model, slots, allocate_kv(model.layout, 0, page_size, slots.device), graph_tokens=prefill_tokens)
