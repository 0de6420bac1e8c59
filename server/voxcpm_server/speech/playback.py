"""An estimate of the gaps that a listener of a stream hears."""

from __future__ import annotations


class Playback:
    """Counts the gaps that a listener hears who plays audio as soon as it is sent, and knows when its audio ends.

    Only gaps inside a segment count. Between segments and pauses the text may not have been there yet.
    """

    def __init__(self) -> None:
        self.underruns = 0
        self.underrun_seconds = 0.0
        self.ends = 0.0  # when all audio so far has been played, as `now`
        self._segment: tuple[int, int] | None = None

    def sent(self, seconds: float, segment: tuple[int, int] | None, now: float) -> None:
        """Audio of this length, of this turn and segment, is sent; None for a pause."""
        gap = now - self.ends
        if gap > 0 and segment is not None and segment == self._segment:
            self.underruns += 1
            self.underrun_seconds += gap
        self.ends = max(now, self.ends) + seconds
        self._segment = segment

    def cut(self, now: float) -> None:
        """The listener drops the audio that was not played."""
        self.ends = min(self.ends, now)
