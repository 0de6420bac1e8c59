"""The work that may have ended another engine: an engine tries one piece of it at a time, for all fronts."""

from __future__ import annotations

from dataclasses import dataclass, field

from voxcpm_grpc.ipc.messages import Allow, Append, Decode, Encode, Submit, Suspected

SLOT_SECONDS = 2.0  # seconds for a slot; then the next one is tried beside it
STEP_SECONDS = 10.0  # seconds for the first result


@dataclass(slots=True)
class Suspect:
    """Work that waits for its trial, with the commands about it that have come since."""

    front: str
    command: Suspected
    later: list[Allow | Append] = field(default_factory=list)

    @property
    def id(self) -> str:
        return id_of(self.command)

    @property
    def paused(self) -> bool:
        """True for a stream that may make no chunk, so that a trial would not end."""
        if not isinstance(self.command, Submit) or self.command.history is None:
            return False
        limits = [one.limit for one in self.later if isinstance(one, Allow)]
        return self.command.history.chunks >= max(self.command.limit, *limits, 0)

    @property
    def turn(self) -> tuple[bool, float]:
        """Orders suspects: interactive ones first, and of these the ones whose listeners have the least audio left."""
        if not isinstance(self.command, Submit):
            return False, 0.0
        return self.command.request.is_batch, self.command.request.lead_seconds


class Trials:
    """Holds suspects back until it is their turn.

    A trial has two parts: `announce` gives the next suspect, whose front has to know it before the engine can end with
    it; `begin` gives its commands when the front does. `over` ends the trial, and so do the limits of time: the next
    one then begins beside it.
    """

    def __init__(self) -> None:
        self._held: dict[str, Suspect] = {}
        self._announced = ""
        self._on_trial = ""
        self._until = 0.0

    @property
    def waiting(self) -> int:
        """The suspects that are held back."""
        return len(self._held)

    def hold(self, front: str, command: Suspected) -> None:
        suspect = Suspect(front, command)
        self._held[suspect.id] = suspect

    def defer(self, id: str, command: Allow | Append) -> bool:
        """Keep a command about a suspect that is held back; False if there is no such."""
        if suspect := self._held.get(id):
            suspect.later.append(command)
        return id in self._held

    def drop(self, id: str) -> None:
        """Forget a suspect whose caller wants no more. An unknown one is ignored."""
        self._held.pop(id, None)
        if id == self._announced:
            self._announced = ""
        self.over(id)

    def drop_front(self, front: str) -> None:
        """Forget the suspects of a front that has ended."""
        for id in [id for id, suspect in self._held.items() if suspect.front == front]:
            self.drop(id)

    def announce(self) -> Suspect | None:
        """The suspect to try next; None while there is none, or a trial goes on."""
        if self._announced or self._on_trial:
            return None
        ready = (suspect for suspect in self._held.values() if not suspect.paused)
        if chosen := min(ready, key=lambda suspect: suspect.turn, default=None):
            self._announced = chosen.id
        return chosen

    def begin(self, id: str, now: float) -> Suspect | None:
        """The suspect whose trial begins; None if it was dropped meanwhile."""
        if not (suspect := self._held.pop(id, None)):
            return None
        if id == self._announced:
            self._announced = ""
        self._on_trial, self._until = id, now + SLOT_SECONDS
        return suspect

    def admitted(self, id: str, now: float) -> None:
        """The work has a slot."""
        if id == self._on_trial:
            self._until = now + STEP_SECONDS

    def over(self, id: str) -> None:
        """The engine has survived this work, or will not do it. Other work is ignored."""
        if id == self._on_trial:
            self._on_trial = ""

    def check(self, now: float, *, busy: bool) -> None:
        """Let the next trial begin if the present one takes too long, or if the engine waits for something else."""
        if self._on_trial and (now > self._until or not busy):
            self._on_trial = ""


def id_of(command: Suspected) -> str:
    return command.id if isinstance(command, Encode | Decode) else command.request.id
