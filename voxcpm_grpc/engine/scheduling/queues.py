"""The sequences of an engine: those that wait, those in slots, and who comes next. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

from voxcpm_grpc.engine.scheduling.adapters import Adapters, Lora
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.request import RISE_CHUNKS

DRY_MARGIN = 0.5  # seconds of audio with which a stream comes before new ones, and may take slots of others
SWAP_MARGIN = 2.0  # seconds of audio with which a stream gives its slot to one that runs dry
START_MARGIN = 3.0  # seconds likewise for a new stream, so that others can still give theirs when this one runs dry
SAFE_MARGIN = 8.0  # seconds likewise for a new stream beside more listeners than the engine makes audio for
# Rounds may take this share of the time of an engine, if streams share slots; the rest is for what that costs.
USABLE_SHARE = 0.9
ROUND_MEMORY = 0.9  # the time of a round keeps this weight with each later one


class Queues:
    """The sequences by state, their slots and their banks for adapters. `step_seconds` is the audio of one step."""

    def __init__(self, *, slots: int, adapters: Adapters, step_seconds: float) -> None:
        self.slots = slots
        self.adapters = adapters
        self.step_seconds = step_seconds
        self.free_slots = list(reversed(range(slots)))
        # These wait for their first slot, or for pages. Interactive ones come first; of each priority, those with a
        # slot.
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # interactive ones come first; of each priority, the oldest first
        self.swapped: list[Sequence] = []
        self.batch_requests = 0  # waiting, running or swapped out
        self.now = 0.0  # the last round began at this monotonic time
        self.round_seconds = 0.0  # seconds of a round of all slots; 0.0: unknown

    def _free_slot(self, sequence: Sequence, slot: int) -> None:
        self.free_slots.append(slot)
        if sequence.lora:
            self.adapters.release(sequence.lora)

    def _time_round(self, now: float, streams: int) -> None:
        """Begin a round, after one of so many streams, and follow the time of a round of all slots.

        Rounds of fewer than half of them tell little about it.
        """
        if 2 * streams >= self.slots:
            took = (now - self.now) * self.slots / streams
            took = min(took, 2 * self.step_seconds)  # a longer one includes a time without work
            before = self.round_seconds or took
            self.round_seconds = ROUND_MEMORY * before + (1 - ROUND_MEMORY) * took
        self.now = now

    def _lead(self, sequence: Sequence) -> float:
        """Seconds of audio that the listener has left, also the client that reads slower than it could play.

        It is below 0 after these have passed. A new stream has the lead of one that ran dry when it arrived.
        """
        in_flight, heard_seconds = sequence.launched - sequence.delivered, sequence.request.heard(self.step_seconds)
        lead = sequence.plays_until - self.now + in_flight * heard_seconds
        if sequence.is_slow:  # some of the chunks may have been taken since the last report
            lead = max(lead, (sequence.unsent - RISE_CHUNKS / 2) * heard_seconds)
        return lead

    def _pace(self, sequence: Sequence) -> float:
        """Seconds of speech that the client takes in a second, at most those that a listener hears."""
        speed = sequence.request.speed
        if not sequence.is_slow:
            return speed
        taken = (sequence.made - sequence.unsent) * self.step_seconds
        return min(speed, taken / max(self.step_seconds, self.now - sequence.queued_at))

    def _candidate(self) -> Sequence | None:
        """The next sequence to admit."""
        returning, late = self._returning, list[Sequence]()
        if self.adapters.count and (late := [sequence for sequence in returning if not self._has_bank(sequence)]):
            returning = [sequence for sequence in returning if sequence not in late]
        return min(chain(returning, self._ready(late)), key=self._turn, default=None)

    def _turn(self, sequence: Sequence) -> tuple[bool, bool, int, float]:
        """Orders sequences that can be admitted.

        Interactive ones come first; of each priority, those with a slot, then streams of which audio was sent, except
        that new streams come before the interactive ones whose listeners have audio left.
        """
        lead = self._lead(sequence)
        has_audio = not (sequence.is_batch or sequence.is_new) and lead > DRY_MARGIN
        return sequence.is_batch, sequence.slot is None, 2 if has_audio else sequence.is_new, lead

    def _ready(self, late: list[Sequence]) -> Iterator[Sequence]:
        """The sequences in the queue that can run, up to the first new one, which no later one passes.

        One that needs a bank for its adapter passes none of its own priority, or of a higher one, that waits for a
        bank, as `late` do.
        """
        least = min((sequence.is_batch for sequence in late), default=2)  # no sequence that waits has a higher priority
        for sequence in self.waiting:
            if sequence.paused or sequence.waits_for_adapter:
                continue
            needs_bank = sequence.lora is not None and sequence.slot is None
            if needs_bank and not (sequence.is_batch < least and self._has_bank(sequence)):
                least = min(least, sequence.is_batch)
                continue
            yield sequence
            if sequence.is_new:
                return

    def _has_bank(self, sequence: Sequence) -> bool:
        """True if the adapter of a sequence without a slot can get a bank, also from streams that give way to it."""
        return sequence.lora is None or self.adapters.has_room(sequence.lora) or bool(self._yielding_holders(sequence))

    def _yielding_holders(self, candidate: Sequence) -> list[Sequence]:
        """All sequences in slots that use a certain adapter, if all of them give way; empty if there is no such.

        Paused ones give way, and to an interactive candidate all batch sequences. Of several adapters it is the one
        whose sequences are the cheapest to compute again; paused ones do not count.
        """
        holders: dict[Lora, list[Sequence]] = {}
        for sequence in self._yielding(is_batch=candidate.is_batch):
            if sequence.lora:
                holders.setdefault(sequence.lora, []).append(sequence)
        groups = [group for lora, group in holders.items() if len(group) == lora.holders]
        return min(groups, key=lambda group: sum(one.length for one in group if not one.paused), default=[])

    @property
    def _returning(self) -> list[Sequence]:
        """Sequences that were swapped out and can run again."""
        return [sequence for sequence in self.swapped if not sequence.paused]

    def _yielding(self, *, is_batch: bool) -> list[Sequence]:
        """The sequences whose slot a candidate may take: paused ones, and for an interactive one batch sequences."""
        holders = chain(self.running, (sequence for sequence in self.waiting if sequence.slot is not None))
        yielding = (sequence for sequence in holders if sequence.paused or (sequence.is_batch and not is_batch))
        return [sequence for sequence in yielding if sequence.delivered == sequence.launched]

    @property
    def _available_slots(self) -> int:
        """Slots that the sequences in the queue may take, also from batch sequences if interactive ones wait."""
        yielding = self._yielding(is_batch=False)
        batch = sum(not sequence.paused for sequence in yielding)
        slots = len(self.free_slots) + len(yielding) - batch
        if batch:
            others = chain(self.waiting, self.swapped)
            slots += min(
                batch, sum(not (s.is_batch or s.paused or s.waits_for_adapter or s.slot is not None) for s in others)
            )
        return slots

    def _victim(self, candidate: Sequence) -> Sequence | None:
        """The sequence whose slot a candidate takes.

        It is the one paused longest, for an interactive candidate then the shortest batch sequence, which is the
        cheapest to compute again, and at last the one whose listener has the most audio left, if the candidate's has
        none. A batch stream takes no slot of an interactive one, and a new one none of those that can run.
        """
        if yielding := self._yielding(is_batch=candidate.is_batch):
            return min(yielding, key=lambda one: (not one.paused, one.stepped_at if one.paused else one.length))
        if self._lead(candidate) > DRY_MARGIN:
            return None
        if candidate.is_new and candidate.is_batch:
            return None
        others = (s for s in self.running if s.prefilled and s.is_batch >= candidate.is_batch)
        victim = max((s for s in others if s.delivered == s.launched), key=self._lead, default=None)
        least = SWAP_MARGIN
        if candidate.is_new:
            least = START_MARGIN if self._serves_another else SAFE_MARGIN
        return victim if victim is not None and self._lead(victim) > least else None

    @property
    def _serves_another(self) -> bool:
        """True if rounds are short enough for all listeners and one more, who then share the slots."""
        present = chain(self.running, self.swapped, (sequence for sequence in self.waiting if sequence.admitted))
        paces = sum(self._pace(sequence) for sequence in present if not (sequence.is_batch or sequence.paused))
        return (paces + 1) * self.round_seconds <= USABLE_SHARE * self.slots * self.step_seconds

    def _queue_of(self, sequence: Sequence) -> list[Sequence] | deque[Sequence]:
        return next(queue for queue in (self.running, self.swapped, self.waiting) if sequence in queue)
