"""Who runs next: admission, token budget, pages and preemption. No torch."""

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
class Chunk:
    """Positions start..stop of a sequence, to be entered into the KV cache.

    `starts_speech`: the last of them ends the prompt, and its hidden states start the generation.
    """

    sequence: Sequence
    start: int
    stop: int
    starts_speech: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """One scheduling round: slots to open, then chunks to prefill, then one step for each of `steps`."""

    opened: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    steps: list[Sequence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.opened or self.chunks or self.steps)

    @property
    def sequences(self) -> set[Sequence]:
        return {*self.opened, *(chunk.sequence for chunk in self.chunks), *self.steps}


FIXED = 1600  # positions that take as long as what a round takes beside them: 10 ms at 6 us each, on an H200
WHOLE = 256  # large rounds are whole multiples of it, as the captured prefills are


@dataclass(frozen=True, slots=True)
class PrefillBudget:
    """Positions entered in one round, at least and at most (if so many wait).

    A round takes a fixed time, the step of its first audio included, and a time for each position; whoever enters waits
    for its end, the others for all of it. The mean wait of n positions is least with rounds of sqrt(n * fixed / each).
    """

    least: int
    most: int

    def round(self, waiting: int) -> int:
        """The budget of a round with so many positions waiting."""
        return min(max((isqrt(waiting * FIXED) + WHOLE // 2) // WHOLE * WHOLE, self.least), self.most)


MARGIN = 0.1  # seconds of audio that a listener must have left for a stream to stand back
MANY = 4  # streams stand back for each newcomer, however few slots there are


class Scheduler:
    """First come, first served, with an eye on the listeners' clocks; who has begun to speak goes on before others.

    While prompts wait to be entered, streams that are ahead of their playback stand back, so that first audio comes
    soon; one whose audio runs low never does, and under load none does: newcomers join the step of all. When pages run
    out the youngest stream gives its pages back, keeps its slot, and is entered again later. `step_seconds` is the
    audio of one step.
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

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises TooLong if it could never run, Exhausted for a newcomer if the queue is full.

        The cap by text length is generous, about three times what speech takes: what does not fit of it is cut off,
        but a third must fit.
        """
        least = len(sequence.prompt) + (sequence.max_steps + 2) // 3
        if least > self.max_len:
            raise TooLong(least, self.max_len)
        sequence.max_steps = min(sequence.max_steps, self.max_len - len(sequence.prompt))
        if sequence.request.continues:  # newcomers can come back later, a listener in mid-speech cannot
            self.waiting.insert(sum(not other.is_newcomer for other in self.waiting), sequence)
            return
        if len(self.waiting) >= self.max_queue + len(self.free_slots):
            raise Exhausted(
                f"all slots are taken and {len(self.waiting)} requests wait, the limit is {self.max_queue}; "
                "come back later",
                retry_after=1.0,
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its slot and pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._drop_pages(sequence)
        if sequence.slot is not None:
            self.free_slots.append(sequence.slot)

    @property
    def runnable(self) -> bool:
        """Whether `schedule` would find something to do."""
        return self._entering or any(sequence.steppable for sequence in self.running)

    def schedule(self, now: float) -> Batch:
        """The next round, at monotonic time `now`."""
        batch, stand_back = Batch(), self._entering and not self._loaded
        for sequence in list(self.running):
            if not (sequence.prefilled and sequence.steppable) or (stand_back and self._ahead(sequence, now)):
                continue
            if self._grow(sequence):
                batch.steps.append(sequence)
        kept = set(self.running)
        batch.steps[:] = [sequence for sequence in batch.steps if sequence in kept]  # not preempted meanwhile
        budget = self.budget.round(self._backlog)
        self._admit(batch, budget)
        self._prefill(batch, budget)
        for sequence in batch.steps:
            sequence.launched += 1
            sequence.filled += 1
            sequence.credit -= 1
        return batch

    @property
    def _entering(self) -> bool:
        """Whether there are prompts to enter, now."""
        if any(not sequence.prefilled for sequence in self.running):
            return True
        candidate = self._candidate()
        return candidate is not None and self._admissible(candidate)

    @property
    def _loaded(self) -> bool:
        """True if a round of their own for those who enter would cost more than it saves.

        It saves them the time of the others' step and costs all the fixed time of a round, which a loaded engine cannot
        make up for. It does while at most half of the slots speak, and where many share that round.
        """
        speaking = sum(sequence.prefilled and sequence.steppable for sequence in self.running)
        entering = sum(not sequence.prefilled for sequence in self.running)
        entering += min(len(self.waiting), len(self.free_slots))
        return speaking > max(self.slots // 2, MANY * entering)

    @property
    def _backlog(self) -> int:
        """Positions that could be entered now if there were no budget and no end of pages."""
        newcomers = islice((s for s in self.waiting if not s.resting), len(self.free_slots))
        return sum(len(s.prompt) for s in newcomers) + self._pending

    @property
    def _pending(self) -> int:
        return sum(sequence.length - sequence.filled for sequence in self.running)

    def _ahead(self, sequence: Sequence, now: float) -> bool:
        """Whether its listener still has something to hear if it skips a round."""
        since = sequence.speaking_since
        return since is not None and since + sequence.launched * self.step_seconds > now + MARGIN

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for one more position, at the cost of younger streams; False if it cost the sequence itself."""
        while len(sequence.pages) * self.page_size <= sequence.length:
            if pages := self.blocks.allocate(1):
                sequence.pages += pages
                continue
            victim = self._youngest_resting() or self.running[-1]
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
        sequence.tabled = sequence.filled = 0

    def _pages_for(self, sequence: Sequence) -> int:
        return sequence.length // self.page_size + 1  # the next step's own position included

    def _youngest_resting(self) -> Sequence | None:
        return next((sequence for sequence in reversed(self.running) if sequence.resting), None)

    def _candidate(self) -> Sequence | None:
        return next((sequence for sequence in self.waiting if not sequence.resting), None)

    def _admissible(self, sequence: Sequence) -> bool:
        """Whether it could run now, if the resting streams gave their pages back.

        A page to spare for each stream that runs on keeps an admission from ending in a preemption at once.
        """
        if sequence.slot is None and not self.free_slots:
            return False
        active = [other for other in self.running if not other.resting]
        held = len({page for other in active for page in other.pages})
        return not active or self._pages_for(sequence) + len(active) <= self.blocks.total - held

    def _admit(self, batch: Batch, budget: int) -> None:
        pending = self._pending
        while pending < budget and (sequence := self._candidate()) and self._admissible(sequence):
            known = self.blocks.match(sequence.keys[: (len(sequence.prompt) - 1) // self.page_size])
            missing = self._pages_for(sequence) - len(known)
            while (pages := self.blocks.allocate(missing)) is None:
                resting = self._youngest_resting()
                assert resting, "what is admissible fits once the resting streams have given their pages back"
                self._preempt(resting)
            self.waiting.remove(sequence)
            sequence.pages = known + pages
            sequence.filled = len(known) * self.page_size
            if sequence.slot is None:
                sequence.slot = self.free_slots.pop()
                sequence.admitted = monotonic()
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
            starts_speech = sequence.prefilled and not sequence.launched
            batch.chunks.append(Chunk(sequence, start, sequence.filled, starts_speech))
            known = min(sequence.filled // self.page_size, len(sequence.keys))
            for index in range(start // self.page_size, known):
                self.blocks.register(sequence.pages[index], sequence.keys[index])
            if sequence.prefilled and sequence.steppable:
                batch.steps.append(sequence)
