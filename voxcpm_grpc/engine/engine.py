"""Continuous batching with one model on one device. Independent of model family and transport."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic

import numpy as np
import torch

from voxcpm_grpc import progress
from voxcpm_grpc.engine.codec_jobs import CodecJobs
from voxcpm_grpc.engine.device.kv_cache import allocate_kv, count_pages
from voxcpm_grpc.engine.device.slots import KeptSpeech, Slots, take_speech
from voxcpm_grpc.engine.faults import LaunchFaults
from voxcpm_grpc.engine.runner import InFlight, PrefillError, Runner, compile_all, working_memory
from voxcpm_grpc.engine.scheduling.adapters import Adapters
from voxcpm_grpc.engine.scheduling.blocks import BlockManager, page_keys
from voxcpm_grpc.engine.scheduling.round import PrefillBudget, Round
from voxcpm_grpc.engine.scheduling.scheduler import Scheduler
from voxcpm_grpc.engine.scheduling.sequence import NO_LIMIT, Sequence
from voxcpm_grpc.engine.start.compilation import Compilation
from voxcpm_grpc.engine.start.warm_up import warm_up
from voxcpm_grpc.errors import Internal, InvalidRequest, VoxCPMError
from voxcpm_grpc.events import CodecChunk, Event, Finished, FinishReason, History
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.models.base import SpeechModel
from voxcpm_grpc.request import Request, Role, Stats, content_of
from voxcpm_grpc.settings.engine import EngineSettings

logger = logging.getLogger(__name__)

# Each type of device has its budget.
PREFILL_BUDGETS = {"cuda": PrefillBudget(2048, 4096), "cpu": PrefillBudget(256, 256)}
# Prompts join rounds of at least so many streams. The audio of fewer streams leaves a GPU no time for the launch.
JOIN_FROM = {"cuda": 9, "cpu": 1}
CAPTURE_SECONDS = 0.5  # seconds between two captures of graphs while requests run; each lengthens a step by up to 0.1 s
NO_PIECE = np.zeros(0, np.float32)  # a job without a result has it

Result = tuple[str, Event | CodecChunk | VoxCPMError]


class Engine:
    """Runs requests and codec jobs. Its user adds them, calls `step` while `busy`, and delivers the results of `step`.

    Not thread-safe: a single thread uses it.

    A round is launched in two parts. The first generates a step of each stream and its audio, and is launched as soon
    as it is known which streams stop with the previous round: the audio says it, or the model before late audio. A GPU
    still runs the language models of the previous round then, so it does not idle. The new round contains no stream
    that stops, and may contain requests that were added in the meantime. The second part runs the language models on
    these steps. While requests arrive, it is launched when a GPU has generated them and decodes them. Prompts of new
    requests may join it then, which costs less than a prefill of their own. Otherwise it is launched with the first
    part.

    The audio of a round is read when the next one was launched, or before that if a stream waits for a slot, a bank or
    pages, which others may free or give up then.
    """

    def __init__(
        self,
        model: SpeechModel,
        settings: EngineSettings,
        device: torch.device,
        *,
        graphs: bool = False,
        some_graphs_later: bool = False,
    ) -> None:
        """With `some_graphs_later`, `step` captures those of intermediate sizes after the warm-up, when it has time."""
        self.info = info = replace(model.info, max_queue=settings.max_queue)
        slots, max_len = info.max_slots, info.max_model_len
        budget = PrefillBudget(tokens, tokens) if (tokens := settings.prefill_tokens) else PREFILL_BUDGETS[device.type]
        self.model, self.prefix_caching = model, settings.prefix_caching
        self.compilation: Compilation | None = None  # its owner may compile parts for later starts with it
        on_device = Slots.allocate(model, slots, -(-max_len // settings.page_size), device)
        sized = (model, on_device, settings.page_size, budget.most)
        if graphs:
            compile_all(*sized, key=repr((info, settings)))
        working = working_memory(*sized, graphs=graphs) if device.type == "cuda" else 0
        pages = count_pages(model.layout, settings, device, slots=slots, max_len=max_len, working=working)
        kv = allocate_kv(model.layout, pages, settings.page_size, device)
        self.adapters = Adapters(model.banks, model.read_adapter)
        self.scheduler = Scheduler(
            slots=slots,
            blocks=BlockManager(pages),
            page_size=settings.page_size,
            budget=budget,
            max_queue=settings.max_queue,
            max_len=max_len,
            step_seconds=info.step_seconds,
            adapters=self.adapters,
            separate_beside=model.separate_beside,
        )
        self.runner = Runner(
            model, on_device, kv, graph_tokens=budget.most if graphs else None, some_graphs_later=some_graphs_later
        )
        self._graphs_wait = False  # `step` captures them
        self._captured_at = 0.0
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: InFlight | None = None  # the last launched round, whose frames are not read yet
        self._unread: InFlight | None = None  # they are read next; another round may be in flight
        self._generating: list[Sequence] = []  # the steps of that round wait here while its second part is not launched
        self.join_from = JOIN_FROM[device.type]
        self._kept_speech: deque[KeptSpeech] = deque()
        self._jobs = CodecJobs(device)
        self._results: list[Result] = []
        self._faults = LaunchFaults(self.scheduler.blocks)
        self._counts = dict.fromkeys(
            ("steps", "chunks", "prefix_hit_tokens", "prefill_tokens", "finished", "cancelled", "failed"), 0
        )

    def warm_up(self) -> float:
        """Run short requests and codec jobs, so that no user waits for compilations and first allocations.

        Call it before anything else. Returns the seconds of the longest step with all slots in use.
        """
        progress.report("the engine is warming up")
        steps = min(self.scheduler.budget.most, self.scheduler.max_len // 4)
        warm_up(self, self.model.warm_up(1, steps))
        self.scheduler.blocks.clear_cache()
        slowest = warm_up(self, self.model.warm_up(self.info.max_slots, steps)[-1:])
        self.scheduler.blocks.clear_cache()
        self.scheduler.preemptions = self.scheduler.swaps = 0
        self.scheduler.round_seconds = 0.0
        self._counts = dict.fromkeys(self._counts, 0)
        self._graphs_wait, self._captured_at = self.runner.graphs_wait, monotonic()
        return slowest

    def add(self, request: Request, limit: int = NO_LIMIT, history: History | None = None) -> None:
        """Queue a request. `limit` is the number of chunks that may be generated until `allow` raises it.

        With `history` the request continues what another engine has made of it; `limit` counts those chunks, too.
        A request with an adapter waits until that is read. If that is not possible, the request ends.
        Raises InvalidRequest, TooLong, FailedPrecondition or Exhausted, and leaves the engine unchanged then.
        """
        if request.id in self._sequences or request.id in self._jobs:
            raise InvalidRequest(f"request id {request.id!r} is in use; choose another", field="request_id")
        request = self.info.checked(request)
        if adapter := request.conditioning.adapter:
            self.adapters.require_banks()
        plan = self.model.plan(request)
        sequence = Sequence(request=request, plan=plan, limit=limit, queued_at=monotonic())
        if history:
            sequence.resume(history, self.model.step_bytes)
        self._queue(sequence)
        self._sequences[request.id] = sequence
        if adapter:
            sequence.lora = self.adapters.want(request.id, adapter)

    def append(self, id: str, text: str, *, last: bool) -> None:
        """Append to the text of an open request. Unknown ids are ignored, and what does not fit ends the request."""
        if not (sequence := self._sequences.get(id)):
            return
        try:
            self.info.require("text_streaming", "text")
            if not sequence.request.open:
                raise InvalidRequest("the text of this request has ended; send a new request", field="text")
            sequence.extend(self.model.append(sequence.plan, text, last=last), text, last=last)
            if sequence.is_queued:
                self.scheduler.check(sequence.plan)
            else:
                sequence.arrive(monotonic())
                self._queue(sequence)
        except VoxCPMError as error:
            self._fail(sequence, error)
            return
        if sequence.slot is not None:
            self.runner.feed(sequence)

    def _queue(self, sequence: Sequence) -> None:
        """Queue a sequence, unless its text does not suffice for a prompt so far. Raises TooLong or Exhausted."""
        if not (plan := sequence.plan).positions:
            return
        if self.prefix_caching:
            contents = self.model.page_contents(plan, self.scheduler.page_size)
            sequence.keys = page_keys(contents, content_of(sequence.request.conditioning.adapter))
        self.scheduler.add(sequence)

    def check(self, request: Request) -> None:
        """Raise InvalidRequest or TooLong if the engine could never run a request. Nothing is queued."""
        self.scheduler.check(self.model.plan(self.info.checked(request)))

    def cancel(self, id: str) -> None:
        """End a request or codec job: later steps do not contain it, nor return results of it. Ignores unknown ids."""
        self._jobs.cancel(id)
        self.adapters.cancel(id)
        self._results = [result for result in self._results if result[0] != id]
        self._kept_speech = deque(end for end in self._kept_speech if end[0] != id)
        if sequence := self._sequences.get(id):
            self._counts["cancelled"] += 1
            self._end(sequence)

    def allow(self, id: str, limit: int) -> None:
        """Raise the limit of a request. Unknown ids and lower limits are ignored."""
        if sequence := self._sequences.get(id):
            sequence.allow(limit, self.scheduler.step_seconds, monotonic())

    def paused(self, id: str) -> bool:
        """True if a request can make no more chunks until its limit rises, or more of its text comes."""
        return id in self._sequences and self._sequences[id].paused

    def needs_text(self, id: str) -> bool:
        """True if a request can make no more chunks until more of its text comes."""
        return id in self._sequences and self._sequences[id].needs_text

    def encode(self, id: str, waveform: np.ndarray, role: Role) -> None:
        """Start to encode a waveform. `step` returns the content of the voice as CodecChunks."""
        self._jobs.add(id, self.runner.codec.encode(waveform, role))

    def decode(self, id: str, content: Mapping[str, np.ndarray]) -> None:
        """Start to decode the content of a voice. `step` returns the audio as CodecChunks."""
        self._jobs.add(id, (("", chunk) for chunk in self.runner.codec.decode(content)))

    @property
    def busy(self) -> bool:
        """True if `step` has work to do now. Paused streams do not count."""
        parts = self._in_flight or self._unread or self._generating or self._graphs_wait
        waits = self._kept_speech or self._jobs or self._results or self.adapters.pending
        return bool(parts or waits) or self.scheduler.runnable

    def collect(self) -> None:
        """Wait until `step` can launch the next part of a round. `step` does this first.

        After both parts of the last round it is then known which streams stop. A request that is added between
        `collect` and `step` can be in that part.
        """
        if self._in_flight and self._generating:
            self._in_flight.wait_until_generated()
        elif self._in_flight:
            self._unread, self._in_flight = self._in_flight, None
            self._unread.read_stop_flags()

    def step(self) -> list[Result]:
        """Launch a part of a round, and with its first part a chunk of a codec job.

        Returns the results of earlier ones that are available.
        """
        self.collect()
        for id, error in self.adapters.collect():  # preloads end, and requests whose adapter is lost
            if error is not None and (sequence := self._sequences.get(id)):
                self._fail(sequence, error)
            else:
                self._results.append((id, error or CodecChunk(NO_PIECE, last=True)))
        if self._generating:
            self._advance(joins=True)
        idle = False
        if not self._in_flight:
            if self._unread and self.scheduler.waits_for_ends:
                self._read_frames()
            work = self.scheduler.schedule(monotonic())
            if work:
                self._launch(work)
            if self._unread:
                self._read_frames()
            if self._in_flight and self._in_flight.ready():
                self._unread, self._in_flight = self._in_flight, None
                self._read_frames()  # on a CPU the audio is complete
            idle = not (work or self._results)
            self._results += self._jobs.advance(wait=idle)
        if self._graphs_wait and (idle or monotonic() - self._captured_at >= CAPTURE_SECONDS):
            self._capture_next()
        self._results += take_speech(self._kept_speech, self.info.tracks, wait=idle)
        results, self._results = self._results, []
        return results

    def _capture_next(self) -> None:
        """Capture a graph that the start has left for later. If that fails, larger graphs go on to serve its size."""
        try:
            self.runner.capture_next()
            self._graphs_wait = self.runner.graphs_wait
        except Exception:
            logger.exception("the remaining graphs cannot be captured; graphs of larger sizes take their place")
            self._graphs_wait = False
        self._captured_at = monotonic()

    def stats(self) -> Stats:
        return self.scheduler.stats(**self._counts)

    def _launch(self, work: Round) -> None:
        """Launch the first part of a round, and the second one if no prompt is to join it."""
        self._announce(work)
        self._counts["steps"] += bool(work.steps)
        affected = {*work.sequences, *(sequence for sequence, _ in work.swapped_out)}
        with self._faults.end(affected, self._fail):
            for sequence, slot in work.swapped_out:
                sequence.saved = self.runner.save(slot, sequence)
                affected.discard(sequence)
                logger.debug(LogLine("swapped out", **sequence.names, slot=slot, chunks=sequence.sent))
            self._in_flight = self._run(work)
            self._restored(work)
            self._generating = [sequence for sequence in work.steps if not sequence.ended]
            if not self._generating:
                self._faults.reset()
        if self._in_flight and self._generating and not self._may_be_joined(self._in_flight):
            self._advance(joins=False)

    def _may_be_joined(self, in_flight: InFlight) -> bool:
        """True if the second part of a round is launched after the first has generated, so that prompts may join.

        A GPU then idles for the time of the launch, which only prompts are worth. A CPU sends the audio earlier.
        """
        if len(self._generating) < self.join_from:
            return False
        return in_flight.generated is None or self.scheduler.expects_prompts(monotonic())

    def _advance(self, *, joins: bool) -> None:
        """Launch the second part of a round. With `joins`, prompts join it."""
        steps, self._generating = self._generating, []
        joined = self.scheduler.join(len(steps), monotonic()) if joins else Round()
        self._announce(joined)
        with self._faults.end({*steps, *joined.sequences}, self._fail):
            try:
                self.runner.advance(steps, joined)
            except PrefillError:
                self._faults.prefill_each(self.runner, joined, self._fail)
                self.runner.advance(steps, Round())
            self._restored(joined)
            self._faults.reset()

    def _announce(self, work: Round) -> None:
        """Report and count the admissions and prefills of a round."""
        for sequence in work.opened:
            self._counts["prefix_hit_tokens"] += sequence.cached
            self._results.append((sequence.id, sequence.admission))
        self._counts["prefill_tokens"] += sum(chunk.stop - chunk.start for chunk in work.chunks)

    def _restored(self, work: Round) -> None:
        for sequence in work.restored:
            sequence.saved = None
            logger.debug(LogLine("restored", **sequence.names, slot=sequence.slot, chunks=sequence.sent))

    def _run(self, work: Round) -> InFlight:
        """Launch a round. If the prefill fails, only the requests whose own prefill fails again are ended."""
        try:
            return self.runner.launch(work)
        except PrefillError as fault:
            self._faults.prefill_each(self.runner, work, self._fail)
            if all(sequence.ended for sequence in work.sequences):
                raise fault.__cause__ or fault from None
            return self.runner.launch(Round(steps=[sequence for sequence in work.steps if not sequence.ended]))

    def _read_frames(self) -> None:
        """Wait for the audio of the unread round and read it."""
        assert self._unread
        in_flight, self._unread = self._unread, None
        step_seconds, samples = self.scheduler.step_seconds, self.info.samples_per_step
        for group, copy in in_flight.frames:
            frames, now = copy.wait(), monotonic()
            audio, content = frames[:, :samples], frames[:, samples + 3 :]
            stop, finite, spoken = (frames[:, samples : samples + 3].T != 0).tolist()
            for row, sequence in enumerate(group):
                if sequence.ended:
                    continue
                if not finite[row]:
                    logger.error(LogLine("the audio is not finite", **sequence.names, step=sequence.delivered))
                    self._fail(sequence, Internal())
                    continue
                sequence.untold += content[row].tobytes()
                reason = sequence.deliver(audio[row] if spoken[row] else None, stop=stop[row])
                if spoken[row]:
                    sequence.on_audio(step_seconds, now)
                    self._counts["chunks"] += 1
                    self._results.append((sequence.id, sequence.chunk(audio[row], last=reason is not None)))
                if reason:
                    self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._counts["finished"] += 1
        event = Finished(
            reason=reason,
            steps=sequence.sent,
            engine_seconds=monotonic() - sequence.admitted_at,
            ran_on=sequence.sent >= sequence.plan.ran_on_steps,
            unread=self.model.unread(sequence.plan, sequence.sent),
            characters=len(sequence.request.text),
        )
        if sequence.request.keep_speech:
            self._kept_speech.append((sequence.id, event, self.runner.speech(sequence)))
        else:
            self._results.append((sequence.id, event))
        self._end(sequence)

    def _fail(self, sequence: Sequence, error: VoxCPMError) -> None:
        self._counts["failed"] += 1
        self._results.append((sequence.id, error))
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        sequence.ended = True
        if sequence in self._generating:
            self._generating.remove(sequence)
        del self._sequences[sequence.id]
        if sequence.is_queued:
            self.scheduler.remove(sequence)
        if sequence.lora:
            self.adapters.done(sequence.id, sequence.lora)
