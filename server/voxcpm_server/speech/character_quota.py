"""The quota of text that each caller may have spoken in a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from voxcpm_grpc.errors import Exhausted, Reason
from voxcpm_grpc.text.durations import duration_text

WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class _Account:
    left: float  # characters; negative if the last segment was longer than what was left
    at: float  # `left` was computed at this time of the event loop
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # the streams that wait take it in their order


class CharacterQuotas:
    """A token bucket for each caller, which holds the characters of a minute and fills steadily.

    A segment needs one character in the bucket and takes all of its own, so that segments of any length get through.
    The average stays within the quota, because the next segment waits until the bucket is no longer empty.

    on_spent: called with the caller and the characters of each `spend`, for processes that share the buckets by `take`
    """

    def __init__(self, per_minute: int, on_spent: Callable[[str, int], None] | None = None) -> None:
        self.per_minute = per_minute
        self._on_spent = on_spent
        self._accounts: dict[str, _Account] = {}  # the bucket of these callers is not full
        self._pruned = 0.0

    @property
    def callers(self) -> int:
        """The number of callers whose account is in memory."""
        return len(self._accounts)

    def wait(self, caller: str) -> float:
        """The seconds until a caller may have a segment spoken; 0 if it may now."""
        account = self._account(caller)
        return max(0.0, (1.0 - account.left) * WINDOW_SECONDS / self.per_minute)

    async def wait_in_order(self, caller: str) -> None:
        """Wait until a caller may have a segment spoken. Of its streams, the one that waits longest is the first."""
        async with self._account(caller).turn:
            while seconds := self.wait(caller):  # noqa: ASYNC110 - only the clock ends it
                await asyncio.sleep(seconds)

    def spend(self, caller: str, characters: int) -> None:
        """Take characters from the bucket of a caller, in all processes; give back a negative number."""
        self.take(caller, characters)
        if self._on_spent is not None:
            self._on_spent(caller, characters)

    def take(self, caller: str, characters: int) -> None:
        """Take characters that another process has spent."""
        account = self._account(caller)
        account.left = min(account.left - characters, self.per_minute)
        self._accounts[caller] = account
        if account.at - self._pruned >= WINDOW_SECONDS:
            self._pruned = account.at
            for other in [key for key in self._accounts if self._account(key).left >= self.per_minute]:
                del self._accounts[other]

    def _account(self, caller: str) -> _Account:
        """The account of a caller, up to date."""
        now = asyncio.get_running_loop().time()
        account = self._accounts.get(caller)
        if account is None:
            return _Account(self.per_minute, now)
        account.left = min(account.left + (now - account.at) * self.per_minute / WINDOW_SECONDS, self.per_minute)
        account.at = now
        return account


@dataclass(frozen=True, slots=True)
class CharacterQuota:
    """The quota of one caller."""

    quotas: CharacterQuotas
    caller: str

    @property
    def per_minute(self) -> int:
        return self.quotas.per_minute

    def wait(self) -> float:
        """See CharacterQuotas."""
        return self.quotas.wait(self.caller)

    async def admit(self, *, begun: bool) -> None:
        """Wait until another segment of a stream may be spoken.

        Raises Exhausted instead if the stream has not begun. A stream that has begun cannot be retried.
        """
        if not (seconds := self.wait()):
            return
        if not begun:
            raise Exhausted(
                f"this caller has used up its quota of text, and the limit is {self.per_minute} characters a minute; "
                f"retry in {duration_text(seconds)}",
                retry_after=seconds,
                reason=Reason.TEXT_QUOTA_USED_UP,
                limit=self.per_minute,
            )
        await self.quotas.wait_in_order(self.caller)

    def spend(self, characters: int) -> None:
        """See CharacterQuotas."""
        self.quotas.spend(self.caller, characters)
