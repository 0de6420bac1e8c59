"""The work of each round: admission, prefill budget, pages and preemption. No torch."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING

from voxcpm_grpc.engine.scheduling.adapters import Adapters
from voxcpm_grpc.engine.scheduling.blocks import BlockManager
from voxcpm_grpc.engine.scheduling.queues import Queues
from voxcpm_grpc.engine.scheduling.round import PrefillBudget, PrefillChunk, Round
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.errors import QueueFull, TooLong
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.request import Stats

if TYPE_CHECKING:
    from voxcpm_grpc.models.base import Plan

logger = logging.getLogger(__name__)

PLAYBACK_MARGIN = 0.1  # a stream may skip a round only while its user has more seconds of audio left
AHEAD_MARGIN = 1.0  # seconds of audio with which a stream skips long rounds for others that run dry
STREAMS_PER_PREFILL = 4  # a prefill may delay at least this many streams
ARRIVAL_SECONDS = 0.25  # another request is expected for so long after the last one


class Scheduler(Queues):
    """Makes the first seconds of each stream before the later ones of others, and serves new streams as they arrive.

    While prompts wait for their prefill or for their first step, streams that are ahead of their playback skip rounds,
    so that the first audio of new streams comes soon. A stream whose audio runs low skips none, and under load none
    does: new streams then share the step of all, unless that takes so long that listeners run dry. If pages run out,
    the youngest stream is preempted: it gives its pages back, keeps its slot, and is prefilled again later.
    `step_seconds` is the audio of one step.

    If slots run out, a paused stream is swapped out: it gives its slot and its pages up, and its state is saved
    on the host. So does a stream whose listener has seconds of audio left, if another one has none. A stream that can
    go on waits for a slot, before new streams if its listener runs dry, and otherwise after them.

    Interactive requests come before batch requests in everything: slots, banks, pages and the prefill budget. A batch
    stream that runs gives its pages to an interactive one when they run out, and is swapped out if an interactive
    request waits and no slot, or no bank, is free. Among themselves, batch requests follow the same rules.

    A slot also needs a bank for the LoRA adapter of its request. Requests with adapters wait for banks in their
    order, and requests without an adapter pass them. While an adapter is being read, all others pass its requests.
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
        adapters: Adapters,
        separate_beside: float = math.inf,
    ) -> None:
        """`separate_beside` is that of the model."""
        super().__init__(slots=slots, adapters=adapters, step_seconds=step_seconds)
        self.blocks = blocks
        self.page_size = page_size
        self.budget = budget
        self.max_queue = max_queue
        self.max_len = min(max_len, blocks.total * page_size)
        self.separate_beside = min(slots // 2, separate_beside)
        self.prefilled = 0  # positions, in the last round
        self.arrived_at = -math.inf  # the last request arrived at this time
        self._stepped = 0  # streams in the last round
        self.preemptions = 0
        self.swaps = 0

    def check(self, plan: Plan) -> None:
        """Raise TooLong if a prompt has no room for its speech.

        `max_steps` is about three times the usual length of the speech. A third of it must fit.
        """
        least = plan.positions + (plan.max_steps + 2) // 3
        if least > self.max_len:
            raise TooLong(least, self.max_len)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises TooLong if it can never run, Exhausted for a new stream if the queue is full.

        Batch requests take no room from interactive ones. Steps that do not fit into the KV cache are cut off.
        """
        self.check(sequence.plan)
        if sequence.length > self.max_len:  # an engine with more memory has made it
            raise TooLong(sequence.length, self.max_len)
        if not sequence.request.continues:  # a new stream can be retried later, a stream with audio sent cannot
            self._check_queue(is_batch=sequence.is_batch)
        sequence.set_room(self.max_len - sequence.plan.positions)
        sequence.is_queued = True
        self.batch_requests += sequence.is_batch
        self.arrived_at = sequence.queued_at
        if not sequence.request.continues and (sequence.is_batch or not self.batch_requests):
            self.waiting.append(sequence)
            return
        ahead = sum(_goes_ahead(other, sequence) for other in self.waiting)
        self.waiting.insert(ahead, sequence)

    def _check_queue(self, *, is_batch: bool) -> None:
        """Raise QueueFull if the queue has no room for another new stream of this priority."""
        if len(self.waiting) < self.max_queue:
            return
        waiting = sum(not other.admitted and (is_batch or not other.is_batch) for other in self.waiting)
        returning = sum(is_batch or not other.is_batch for other in self._returning)
        slots = len(self.free_slots) + len(self._yielding(is_batch=is_batch))
        waiting -= max(0, slots - returning)
        if waiting >= self.max_queue:
            raise QueueFull(waiting, self.max_queue)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, waiting, running or swapped out, and free its slot and pages."""
        self._queue_of(sequence).remove(sequence)
        self.batch_requests -= sequence.is_batch
        self._drop_pages(sequence)
        if sequence.slot is not None:
            self._free_slot(sequence, sequence.slot)

    @property
    def runnable(self) -> bool:
        """True if `schedule` returns work."""
        return self._has_prefill or any(sequence.can_step for sequence in self.running)

    @property
    def waits_for_ends(self) -> bool:
        """True if a sequence waits for a slot, a bank or pages, or a step needs a page.

        An end may free them, and others give them up only when their audio has been read.
        """
        ready = [s for s in chain(self.waiting, self.swapped) if not (s.paused or s.waits_for_adapter)]
        if sum(s.slot is None for s in ready) > len(self.free_slots) or not all(map(self._fits, ready)):
            return True
        return sum(s.can_step and s.needs_page(self.page_size) for s in self.running) > self.blocks.free

    def schedule(self, now: float) -> Round:
        """The next round, at monotonic time `now`."""
        self._time_round(now, self._stepped)
        work, most = Round(), self._most_lead
        for sequence in list(self.running):
            if not (sequence.prefilled and sequence.can_step) or (most < math.inf and self._lead(sequence) > most):
                continue
            if self._grow(sequence):
                work.steps.append(sequence)
        running = set(self.running)
        work.steps[:] = [sequence for sequence in work.steps if sequence in running]  # others were preempted
        budget = self.budget.positions(self._backlog)
        self._admit(work, budget, now)
        self._prefill(work, budget)
        self.prefilled = sum(chunk.stop - chunk.start for chunk in work.chunks)
        prefilled = (chunk.sequence for chunk in work.chunks)
        work.steps.extend(sequence for sequence in prefilled if sequence.prefilled and sequence.can_step)
        for sequence in work.steps:
            sequence.launch(now)
        self._stepped = len(work.steps)
        return work

    def expects_prompts(self, now: float) -> bool:
        """True if a prompt can join the round that was scheduled last, or may arrive in time for that."""
        return self._has_prefill or (bool(self.free_slots) and now < self.arrived_at + ARRIVAL_SECONDS)

    def join(self, steps: int, now: float) -> Round:
        """Prompts that join the language models of a launched round of so many steps, and then start in the next one.

        They take what the round has left of its budget, and free slots, banks and pages only.
        """
        work = Round()
        if not self._has_prefill:
            return work
        budget = min(self.budget.positions(self._backlog) - self.prefilled, self.budget.most - steps)
        if budget > 0:
            self._admit(work, budget, now, evicts=False)
            self._prefill(work, budget)
        return work

    def stats(self, **counts: int) -> Stats:
        """The present state, with the counts of the engine."""
        return Stats(
            running=len(self.running),
            waiting=len(self.waiting),
            swapped=len(self.swapped),
            slots_used=self.slots - len(self.free_slots),
            slots_total=self.slots,
            pages_used=self.blocks.used,
            pages_total=self.blocks.total,
            page_size=self.page_size,
            preemptions=self.preemptions,
            swaps=self.swaps,
            **counts,
        )

    @property
    def _has_prefill(self) -> bool:
        """True if a prompt can be prefilled now."""
        if any(not sequence.prefilled for sequence in self.running):
            return True
        candidate = self._candidate()
        if candidate is None or not self._has_room(candidate):
            return False
        return candidate.slot is not None or self._available_slots > 0

    @property
    def _most_lead(self) -> float:
        """The lead beyond which a stream skips the round."""
        margin = 2 * self.round_seconds  # a stream must outlast this round, and gets audio at the end of the next one
        if self._has_start and not self._is_loaded:
            return max(PLAYBACK_MARGIN, margin)
        if margin > PLAYBACK_MARGIN and self._has_dry(margin):
            return AHEAD_MARGIN
        return math.inf

    @property
    def _has_start(self) -> bool:
        """True if a listener waits for a prompt to be prefilled, or for its first step, and either is possible now."""
        starts = (s for s in self.running if not s.prefilled or (s.starting and s.can_step))
        if any(self._lead(sequence) <= PLAYBACK_MARGIN for sequence in starts):
            return True
        candidate = self._candidate()
        if candidate is None or self._lead(candidate) > PLAYBACK_MARGIN or not self._has_room(candidate):
            return False
        return candidate.slot is not None or self._available_slots > 0

    def _has_dry(self, margin: float) -> bool:
        """True if a listener runs dry within `margin` seconds unless the stream is in this round, where it can be."""
        if any(s.can_step and not s.is_batch and self._lead(s) < margin for s in self.running):
            return True
        candidate = self._candidate()
        if candidate is None or candidate.is_batch or self._lead(candidate) >= margin or not self._has_room(candidate):
            return False
        return candidate.slot is not None or bool(self.free_slots) or self._victim(candidate) is not None

    @property
    def _is_loaded(self) -> bool:
        """True if a separate round for new streams would cost more than it saves.

        A separate round saves new streams the time of the other streams' step, and costs all streams the fixed time of
        a round. It pays while at most half of the slots generate, or fewer by the model, and if enough new streams
        share the round.
        """
        old = [sequence for sequence in self.running if sequence.prefilled and not sequence.starting]
        generating = sum(sequence.can_step for sequence in old)
        prefills = len(self.running) - len(old)
        prefills += min(len(self.waiting) + len(self._returning), self._available_slots)
        return generating > max(self.separate_beside, STREAMS_PER_PREFILL * prefills)

    @property
    def _backlog(self) -> int:
        """Positions that could be prefilled now without a budget and with enough pages."""
        admissible: Iterable[Sequence] = ()
        if self.waiting or self.swapped:
            ready = (s for s in chain(self.swapped, self.waiting) if not (s.paused or s.waits_for_adapter))
            admissible = islice(ready, self._available_slots)
        return sum(s.length for s in admissible) + sum(self._pending)

    @property
    def _pending(self) -> list[int]:
        """Positions that are not prefilled, of running interactive sequences and of running batch sequences."""
        pending = [0, 0]
        for sequence in self.running:
            pending[sequence.is_batch] += sequence.length - sequence.filled
        return pending

    def _grow(self, sequence: Sequence) -> bool:
        """Allocate a page for the next position if needed, also by preemption; False if it preempted the sequence."""
        while sequence.needs_page(self.page_size):
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
        logger.debug(LogLine("preempted", **sequence.names, chunks=sequence.sent))
        self.running.remove(sequence)
        self._drop_pages(sequence)
        interactive = sum(not other.is_batch for other in self.waiting) if sequence.is_batch else 0
        self.waiting.insert(interactive, sequence)

    def _drop_pages(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.pages)
        sequence.pages = []
        sequence.uploaded_pages = sequence.filled = 0

    def _pages_for(self, sequence: Sequence) -> int:
        return sequence.length // self.page_size + 1  # the position of the next step counts

    def _youngest_paused(self) -> Sequence | None:
        return next((sequence for sequence in reversed(self.running) if sequence.paused), None)

    def _swap_out(self, sequence: Sequence, work: Round, now: float) -> None:
        assert sequence.slot is not None
        self._queue_of(sequence).remove(sequence)
        if sequence in work.steps:
            work.steps.remove(sequence)
        self._drop_pages(sequence)
        work.swapped_out.append((sequence, sequence.slot))
        self._free_slot(sequence, sequence.slot)
        sequence.slot = None
        sequence.swapped_at = now
        self.swapped.append(sequence)
        self.swaps += 1

    def _has_room(self, sequence: Sequence) -> bool:
        """True if the pages of a sequence are free, at least after the preemption of all streams that give way to it.

        These are paused and, for an interactive sequence, batch streams. A spare page for each other stream prevents a
        preemption right after the admission.
        """
        if self._pages_for(sequence) + len(self.running) <= self.blocks.free:
            return True
        active = [other for other in self.running if not other.paused]
        if self.batch_requests and not sequence.is_batch:
            active = [other for other in active if not other.is_batch]
        held = len({page for other in active for page in other.pages})
        return not active or self._pages_for(sequence) + len(active) <= self.blocks.total - held

    def _fits(self, sequence: Sequence) -> bool:
        """True if a slot, a bank for its adapter and pages for all its positions are free."""
        if self._pages_for(sequence) > self.blocks.free:
            return False
        if sequence.slot is not None:
            return True
        return bool(self.free_slots) and (sequence.lora is None or self.adapters.has_room(sequence.lora))

    def _admit(self, work: Round, budget: int, now: float, *, evicts: bool = True) -> None:
        """Admit sequences. With `evicts`, they may take slots, banks and pages of others."""
        pending = self._pending
        while (sequence := self._candidate()) and self._has_room(sequence):
            before, fits = sum(pending) if sequence.is_batch else pending[False], self._fits(sequence)
            if before >= budget or not (evicts or fits):
                return
            if sequence.slot is None and sequence.lora and not self.adapters.has_room(sequence.lora):
                for holder in self._yielding_holders(sequence):
                    self._swap_out(holder, work, now)
            if sequence.slot is None and not self.free_slots:
                if (victim := self._victim(sequence)) is None:
                    return
                self._swap_out(victim, work, now)
            known = self.blocks.match(sequence.keys[: (sequence.plan.positions - 1) // self.page_size])
            missing = self._pages_for(sequence) - len(known)
            while (pages := self.blocks.allocate(missing)) is None:
                victim = self._youngest_paused() or self.running[-1]
                assert victim.paused or victim.is_batch > sequence.is_batch, "an admissible sequence fits"
                self._preempt(victim)
                if victim in work.steps:
                    work.steps.remove(victim)
            self._queue_of(sequence).remove(sequence)
            sequence.pages = known + pages
            sequence.filled = len(known) * self.page_size
            if sequence.slot is None:
                sequence.slot = self.free_slots.pop()
                if sequence.lora and self.adapters.hold(sequence.lora):
                    work.loras.append(sequence.lora)
                if sequence.admitted:
                    sequence.admitted_at += now - sequence.swapped_at
                    work.restored.append(sequence)
                else:
                    sequence.admitted_at = monotonic()
                    sequence.cached = sequence.filled
                    work.opened.append(sequence)
            interactive = sum(not other.is_batch for other in self.running)
            self.running.insert(len(self.running) if sequence.is_batch else interactive, sequence)
            if fits:
                pending[sequence.is_batch] += sequence.length - sequence.filled
            else:  # others may have given way
                pending = self._pending

    def _prefill(self, work: Round, budget: int) -> None:
        for sequence in self.running:
            missing = sequence.length - sequence.filled
            count = min(missing, budget)
            if not count:
                continue
            start = sequence.filled
            sequence.filled += count
            budget -= count
            work.chunks.append(PrefillChunk(sequence, start, sequence.filled, sequence.starting))
            known = min(sequence.filled // self.page_size, len(sequence.keys))
            for index in range(start // self.page_size, known):
                self.blocks.register(sequence.pages[index], sequence.keys[index])


def _goes_ahead(other: Sequence, sequence: Sequence) -> bool:
    """True if a waiting sequence stays before one that is queued now."""
    if other.is_batch != sequence.is_batch:
        return sequence.is_batch
    return not other.is_new or not sequence.request.continues
