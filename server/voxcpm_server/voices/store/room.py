"""Counts the voices of a store, and refuses more than fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from voxcpm_grpc.errors import Exhausted, Reason
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.voices.store.names import Generation, Survey

FULL_RETRY_SECONDS = 60.0


class Room:
    """The number of voices by the last survey, and the changes of this server since."""

    def __init__(self, settings: VoiceSettings) -> None:
        self._limit = settings.max_voices
        self._share = settings.voices_per_caller
        self._owned: Counter[int] = Counter()  # each owner has so many voices
        self.count: int | None = None  # the first survey sets it
        self.stored = 0  # this server has stored so many voices so far

    async def make(self, count: int, owner: int | None, survey: Callable[[], Awaitable[object]]) -> None:
        """Raise Exhausted if there is no room for more voices of an owner, also after a new survey."""
        if self.count is None or self._refusal(count, owner):
            await survey()
            if error := self._refusal(count, owner):
                raise error

    def add(self, owner: int | None) -> None:
        """Count a voice that was stored."""
        self.count = (self.count or 0) + 1
        self.stored += 1
        if owner is not None:
            self._owned[owner] += 1

    def remove(self, one: Generation) -> None:
        """Count a voice that has ended."""
        if self.count:
            self.count -= 1
            if one.owner is not None:
                self._owned[one.owner.number] -= 1

    def recount(self, found: Survey, stored: int) -> None:
        """Count what a survey has found, which began when this server had stored `stored` voices."""
        self.count = len(found.voices) + self.stored - stored  # a voice may count twice, but none is missed
        self._owned = found.owners()

    def _refusal(self, count: int, owner: int | None) -> Exhausted | None:
        if (self.count or 0) + count > self._limit:
            return Exhausted(
                f"the store has room for {self._limit} voices; delete some",
                retry_after=FULL_RETRY_SECONDS,
                reason=Reason.TOO_MANY_VOICES,
                limit=self._limit,
            )
        if owner is not None and self._owned[owner] + count > self._share:
            return Exhausted(
                f"this caller has {self._owned[owner]} stored voices and the limit is {self._share}; delete some",
                retry_after=FULL_RETRY_SECONDS,
                reason=Reason.TOO_MANY_VOICES_OF_CALLER,
                stored=self._owned[owner],
                limit=self._share,
            )
        return None
