"""The sequences of an engine: those that wait, those in slots, and who comes next. No torch."""

from __future__ import annotations

from collections import deque
from itertools import chain

from voxcpm_grpc.engine.adapters import Adapters, Lora
from voxcpm_grpc.engine.sequence import Sequence

SWAP_MARGIN = 2.0  # seconds of audio that a stream must have more than another one which takes its slot


class Queues:
    """The sequences by state, their slots and their places for adapters. `step_seconds` is the audio of one step."""

    def __init__(self, *, slots: int, adapters: Adapters, step_seconds: float) -> None:
        self.slots = slots
        self.adapters = adapters
        self.step_seconds = step_seconds
        self.free_slots = list(reversed(range(slots)))
        # For their first slot, or for pages. Interactive ones come first; of each priority, those with a slot.
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # interactive ones first; of each priority, the oldest first
        self.swapped: list[Sequence] = []  # swapped out
        self.batch = 0  # batch requests, waiting, running or swapped out

    def _free_slot(self, sequence: Sequence, slot: int) -> None:
        self.free_slots.append(slot)
        if sequence.lora:
            self.adapters.release(sequence.lora)

    def _dry_at(self, sequence: Sequence) -> float:
        """The time at which a listener has played all audio of the sequence; before its audio, the time of arrival."""
        if sequence.first_audio_at is None:
            return sequence.queued_at
        return sequence.first_audio_at + sequence.launched * self.step_seconds

    def _candidate(self) -> Sequence | None:
        """The next sequence to admit.

        Sequences with a slot come first, then streams of which audio was sent, then new streams. A batch sequence is
        next only if no interactive one can be.
        """
        heard, late = self._returning, list[Sequence]()
        if self.adapters.count and (late := [sequence for sequence in heard if not self._has_place(sequence)]):
            heard = [sequence for sequence in heard if sequence not in late]
        first = self._first_waiting(late)
        if self.batch and heard:
            interactive = [sequence for sequence in heard if not sequence.is_batch]
            if first is not None and not first.is_batch:
                heard = interactive
            elif interactive:
                heard, first = interactive, None
        if first is not None and first.slot is not None:
            return first
        if first is not None and not first.is_new:
            heard.append(first)
        return min(heard, key=self._dry_at) if heard else first

    def _first_waiting(self, late: list[Sequence]) -> Sequence | None:
        """The first sequence in the queue that can run.

        One that needs a place for its adapter passes none of its own priority, or of a higher one, that waits for a
        place, as `late` do.
        """
        least = min((sequence.is_batch for sequence in late), default=2)  # the highest priority of those that wait
        for sequence in self.waiting:
            if sequence.paused or sequence.waits_for_adapter:
                continue
            if sequence.lora is None or sequence.slot is not None:
                return sequence
            if sequence.is_batch < least and self._has_place(sequence):
                return sequence
            least = min(least, sequence.is_batch)
        return None

    def _has_place(self, sequence: Sequence) -> bool:
        """True if the adapter of a sequence without a slot can get a place, also from streams that give way to it."""
        return sequence.lora is None or self.adapters.has_room(sequence.lora) or bool(self._yielding_holders(sequence))

    def _yielding_holders(self, candidate: Sequence) -> list[Sequence]:
        """All sequences in slots that use a certain adapter, if all of them give way; empty if there is no such.

        Those without credit give way, and to an interactive candidate all batch sequences. Of several adapters it is
        the one whose sequences are the cheapest to compute again; those without credit do not count.
        """
        holders: dict[Lora, list[Sequence]] = {}
        for sequence in self._paused_in_slots + ([] if candidate.is_batch else self._batch_in_slots):
            if sequence.lora:
                holders.setdefault(sequence.lora, []).append(sequence)
        groups = [group for lora, group in holders.items() if len(group) == lora.holders]
        return min(groups, key=lambda group: sum(one.length for one in group if not one.paused), default=[])

    @property
    def _returning(self) -> list[Sequence]:
        """Sequences that were swapped out and can run again."""
        return [sequence for sequence in self.swapped if not sequence.paused]

    @property
    def _paused_in_slots(self) -> list[Sequence]:
        """Sequences without credit that have a slot which another sequence may take."""
        holders = chain(self.running, (sequence for sequence in self.waiting if sequence.slot is not None))
        return [sequence for sequence in holders if sequence.paused and sequence.delivered == sequence.launched]

    @property
    def _batch_in_slots(self) -> list[Sequence]:
        """Batch sequences with credit whose slot an interactive sequence may take."""
        if not self.batch:
            return []
        holders = chain(self.running, (sequence for sequence in self.waiting if sequence.slot is not None))
        return [s for s in holders if s.is_batch and not s.paused and s.delivered == s.launched]

    @property
    def _free_or_paused_slots(self) -> int:
        """Slots that are free, or become free when a stream without credit is swapped out."""
        return len(self.free_slots) + len(self._paused_in_slots)

    @property
    def _available_slots(self) -> int:
        """Slots that the sequences in the queue may take, also from batch sequences if interactive ones wait."""
        slots = self._free_or_paused_slots
        if holders := self._batch_in_slots:
            others = chain(self.waiting, self.swapped)
            slots += min(
                len(holders),
                sum(not (s.is_batch or s.paused or s.waits_for_adapter or s.slot is not None) for s in others),
            )
        return slots

    def _victim(self, candidate: Sequence, now: float) -> Sequence | None:
        """The sequence whose slot a candidate takes.

        It is the one paused longest, for an interactive candidate then the shortest batch sequence, which is the
        cheapest to compute again, and at last the one most ahead of its playback. A new stream takes no slot of a
        stream of its own priority that can run, and a batch stream none of an interactive one.
        """
        if paused := self._paused_in_slots:
            return min(paused, key=lambda sequence: sequence.stepped_at)
        if not candidate.is_batch and (holders := self._batch_in_slots):
            return min(holders, key=lambda sequence: sequence.length)
        if candidate.is_new:
            return None
        others = (s for s in self.running if s.prefilled and s.is_batch >= candidate.is_batch)
        heard = (s for s in others if s.first_audio_at is not None and s.delivered == s.launched)
        victim = max(heard, key=self._dry_at, default=None)
        least = max(now, self._dry_at(candidate)) + SWAP_MARGIN
        return victim if victim is not None and self._dry_at(victim) > least else None

    def _queue_of(self, sequence: Sequence) -> list[Sequence] | deque[Sequence]:
        return next(queue for queue in (self.running, self.swapped, self.waiting) if sequence in queue)
