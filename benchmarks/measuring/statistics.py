"""Quantiles, and playback of chunks that arrive over time. Times are in seconds."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ordered: Sequence[float], q: float) -> float:
    """The element at share `q`, 0 to 1, of an ascending sequence that is not empty."""
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def late(times: Sequence[float], seconds: Sequence[float]) -> bool:
    """True if playback that begins with the first chunk runs out of audio.

    times: when each chunk arrived. seconds: the length of its audio.
    """
    played = times[0]
    for time, length in zip(times, seconds, strict=True):
        if time > played:
            return True
        played += length
    return False


def playback_end(times: Sequence[float], seconds: Sequence[float]) -> float:
    """The end of playback that begins with the first chunk, including the times without audio.

    times: when each chunk arrived. seconds: the length of its audio.
    """
    played = times[0]
    for time, length in zip(times, seconds, strict=True):
        played = max(played, time) + length
    return played
