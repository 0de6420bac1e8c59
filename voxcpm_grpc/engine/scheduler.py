"""The work of each round: admission, prefill budget, pages and preemption. No torch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from math import isqrt
from time import monotonic

from voxcpm_grpc.engine.blocks import BlockManager
from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.errors import Exhausted, TooLong


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Positions start..stop of a sequence, to be written to the KV cache.

    With `starts_generation` the last of them is the end of the prompt, and its hidden states start the generation.
    """

    sequence: Sequence
    start: int
    stop: int
    starts_generation: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """One scheduling round: slots to open, then chunks to prefill, then a step of each sequence in `steps`."""

    opened: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    steps: list[Sequence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.opened or self.chunks or self.steps)

    @property
    def sequences(self) -> set[Sequence]:
        return {*self.opened, *(chunk.sequence for chunk in self.chunks), *self.steps}


FIXED_COST = 1600  # the fixed time of a round in positions: 10 ms at 6 us for each position, on an H200
MULTIPLE = 256  # large budgets are multiples of it, as the sizes of captured prefills are


@dataclass(frozen=True, slots=True)
class PrefillBudget:
    """The minimum and the maximum of the positions that are prefilled in one round.

    A round takes a fixed time, including the step that generates the first audio, and a time for each position. The
    positions of a round wait until it ends, the other positions wait for the whole round. For n positions the mean wait
    is shortest with rounds of sqrt(n * fixed time / time of a position) positions.
    """

    least: int
    most: int

    def round(self, waiting: int) -> int:
        """The budget of a round while so many positions wait."""
        best = (isqrt(waiting * FIXED_COST) + MULTIPLE // 2) // MULTIPLE * MULTIPLE
        return min(max(best, self.least), self.most)


PLAYBACK_MARGIN = 0.1  # a stream may skip a round only while its user has more seconds of audio left
STREAMS_PER_PREFILL = 4  # a prefill may delay at least this many streams


class Scheduler:
    """Serves requests in the order of arrival. Requests that continue a stream come before new streams.

    While prompts wait for their prefill, streams that are ahead of their playback skip rounds, so that the first audio
    of new streams comes soon. A stream whose audio runs low skips none, and under load no stream does: new streams then
    join the step of all. If pages run out, the youngest stream is preempted: it gives its pages back, keeps its slot,
    and is prefilled again later. `step_seconds` is the audio of one step.
    """

    def __init__(
        self,
        *,
        slots: int,
        blocks: BlockManager,
        page_size: int,
        budget: PrefillBudget,
        max_queue: int,
        max_len: int,
        step_seconds: float,
    ) -> None:
        self.blocks = blocks
        self.page_size = page_size
        self.budget = budget
        self.max_queue = max_queue
        self.step_seconds = step_seconds
        self.max_len = min(max_len, blocks.total * page_size)
        self.slots = slots
        self.free_slots = list(reversed(range(slots)))
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.preemptions = 0

    def check(self, prompt: int, max_steps: int) -> None:
        """Raise TooLong if a prompt of this many positions has no room for its speech.

        `max_steps` is about three times the usual length of the speech. A third of it must fit.
        """
        least = prompt + (max_steps + 2) // 3
        if least > self.max_len:
            raise TooLong(least, self.max_len)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises TooLong if it can never run, Exhausted for a new stream if the queue is full.

        Steps that do not fit into the KV cache are cut off.
        """
        self.check(len(sequence.prompt), sequence.max_steps)
        sequence.max_steps = min(sequence.max_steps, self.max_len - len(sequence.prompt))
        if sequence.request.continues:  # a new stream can be retried later, a stream with audio sent cannot
            self.waiting.insert(sum(not other.is_new for other in self.waiting), sequence)
            return
        if len(self.waiting) >= self.max_queue + len(self.free_slots):
            raise Exhausted(
                f"all slots are in use and {len(self.waiting)} requests wait, the limit is {self.max_queue}; "
                "try again later",
                retry_after=1.0,
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, waiting or running, and free its slot and pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._drop_pages(sequence)
        if sequence.slot is not None:
            self.free_slots.append(sequence.slot)

    @property
    def runnable(self) -> bool:
        """True if `schedule` returns work."""
        return self._has_prefill or any(sequence.can_step for sequence in self.running)

    def schedule(self, now: float) -> Batch:
        """The next round, at monotonic time `now`."""
        batch, may_skip = Batch(), self._has_prefill and not self._is_loaded
        for sequence in list(self.running):
            if not (sequence.prefilled and sequence.can_step) or (may_skip and self._is_ahead(sequence, now)):
                continue
            if self._grow(sequence):
                batch.steps.append(sequence)
        running = set(self.running)
        batch.steps[:] = [sequence for sequence in batch.steps if sequence in running]  # others were preempted
        budget = self.budget.round(self._backlog)
        self._admit(batch, budget)
        self._prefill(batch, budget)
        for sequence in batch.steps:
            sequence.launched += 1
            sequence.filled += 1
            sequence.credit -= 1
        return batch

    @property
    def _has_prefill(self) -> bool:
        """True if a prompt can be prefilled now."""
        if any(not sequence.prefilled for sequence in self.running):
            return True
        candidate = self._candidate()
        return candidate is not None and self._admissible(candidate)

    @property
    def _is_loaded(self) -> bool:
        """True if a separate round for prefills would cost more than it saves.

        A separate round saves the prefills the time of the other streams' step, and costs all streams the fixed time of
        a round. It pays while at most half of the slots generate, and if enough prefills share the round.
        """
        generating = sum(sequence.prefilled and sequence.can_step for sequence in self.running)
        prefills = sum(not sequence.prefilled for sequence in self.running)
        prefills += min(len(self.waiting), len(self.free_slots))
        return generating > max(self.slots // 2, STREAMS_PER_PREFILL * prefills)

    @property
    def _backlog(self) -> int:
        """Positions that could be prefilled now without a budget and with enough pages."""
        admissible = islice((s for s in self.waiting if not s.paused), len(self.free_slots))
        return sum(len(s.prompt) for s in admissible) + self._pending

    @property
    def _pending(self) -> int:
        """Positions of running sequences that are not prefilled."""
        return sum(sequence.length - sequence.filled for sequence in self.running)

    def _is_ahead(self, sequence: Sequence, now: float) -> bool:
        """True if the playback of its audio does not run dry when the sequence skips a round."""
        start = sequence.first_audio_at
        return start is not None and start + sequence.launched * self.step_seconds > now + PLAYBACK_MARGIN

    def _grow(self, sequence: Sequence) -> bool:
        """Allocate a page for the next position if needed, also by preemption; False if it preempted the sequence."""
        while len(sequence.pages) * self.page_size <= sequence.length:
            if pages := self.blocks.allocate(1):
                sequence.pages += pages
                continue
            victim = self._youngest_paused() or self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        self._drop_pages(sequence)
        self.waiting.appendleft(sequence)

    def _drop_pages(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.pages)
        sequence.pages = []
        sequence.uploaded_pages = sequence.filled = 0

    def _pages_for(self, sequence: Sequence) -> int:
        return sequence.length // self.page_size + 1  # including the position of the next step

    def _youngest_paused(self) -> Sequence | None:
        return next((sequence for sequence in reversed(self.running) if sequence.paused), None)

    def _candidate(self) -> Sequence | None:
        return next((sequence for sequence in self.waiting if not sequence.paused), None)

    def _admissible(self, sequence: Sequence) -> bool:
        """True if the sequence can run now, at least after the preemption of all paused streams.

        A spare page for each active stream prevents a preemption right after the admission.
        """
        if sequence.slot is None and not self.free_slots:
            return False
        active = [other for other in self.running if not other.paused]
        held = len({page for other in active for page in other.pages})
        return not active or self._pages_for(sequence) + len(active) <= self.blocks.total - held

    def _admit(self, batch: Batch, budget: int) -> None:
        pending = self._pending
        while pending < budget and (sequence := self._candidate()) and self._admissible(sequence):
            known = self.blocks.match(sequence.keys[: (len(sequence.prompt) - 1) // self.page_size])
            missing = self._pages_for(sequence) - len(known)
            while (pages := self.blocks.allocate(missing)) is None:
                paused = self._youngest_paused()
                assert paused, "an admissible sequence fits after the preemption of all paused streams"
                self._preempt(paused)
            self.waiting.remove(sequence)
            sequence.pages = known + pages
            sequence.filled = len(known) * self.page_size
            if sequence.slot is None:
                sequence.slot = self.free_slots.pop()
                sequence.admitted_at = monotonic()
                sequence.cached = sequence.filled
                batch.opened.append(sequence)
            self.running.append(sequence)
            pending += sequence.length - sequence.filled

    def _prefill(self, batch: Batch, budget: int) -> None:
        for sequence in self.running:
            missing = sequence.length - sequence.filled
            count = min(missing, budget)
            if not count:
                continue
            start = sequence.filled
            sequence.filled += count
            budget -= count
            starts_generation = sequence.prefilled and not sequence.launched
            batch.chunks.append(PrefillChunk(sequence, start, sequence.filled, starts_generation))
            known = min(sequence.filled // self.page_size, len(sequence.keys))
            for index in range(start // self.page_size, known):
                self.blocks.register(sequence.pages[index], sequence.keys[index])
            if sequence.prefilled and sequence.can_step:
                batch.steps.append(sequence)
