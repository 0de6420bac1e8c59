"""Rows of the table: one for each load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.measuring.statistics import late, quantile
from benchmarks.serving.requests import Call

REFUSED = {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}  # status codes of a server that takes no more requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load.

    Times to first audio count at the client from when a request was due, and at the server from its arrival there. The
    audible times are those at the client until the first sound is heard, with the silence at the start of the audio.
    A stream is late if playback that begins with its first chunk runs out of audio. The sending lag is how late the
    clients themselves sent. Uploads count from when they were due until their voice is stored; they are among the
    requests that were refused or failed.
    """

    loop: str  # closed, open or listening
    level: float  # users, requests a second, or listeners
    requests: int
    refused: int
    failed: int
    ttfb_p50_ms: float
    ttfb_p90_ms: float
    ttfb_p95_ms: float
    ttfb_p99_ms: float
    audible_p50_ms: float
    audible_p95_ms: float
    audible_p99_ms: float
    server_ttfb_p50_ms: float
    server_ttfb_p90_ms: float
    server_ttfb_p95_ms: float
    server_ttfb_p99_ms: float
    late_streams: int
    longest_gap_p99_ms: float
    audio_s_per_s: float
    sending_lag_p99_ms: float
    uploads: int = 0
    upload_p50_ms: float = 0.0
    upload_p99_ms: float = 0.0


def row(loop: str, level: float, calls: Sequence[Call]) -> Row:
    """The row of a load, from all its calls. Calls that do not count are used for the audio of a closed loop alone.

    Raises RuntimeError if no call that counts succeeded.
    """
    counted = [call for call in calls if call.counts]
    codes = Counter(call.code for call in counted)
    good = [call for call in counted if call.code == "OK" and call.upload is None]
    uploads = sorted(call.upload for call in counted if call.code == "OK" and call.upload is not None)
    if not good:
        raise RuntimeError(f"no request of {loop} {level:g} succeeded: {dict(codes)}")
    ttfb = sorted(call.times[0] - call.due for call in good)
    audible = sorted(call.times[0] - call.due + call.silent for call in good)
    server = sorted(call.server_ttfb for call in good)
    gaps = sorted(max((b - a for a, b in pairwise(call.times)), default=0.0) for call in good)
    refused = sum(codes[code] for code in REFUSED)
    return Row(
        loop=loop,
        level=level,
        requests=len(counted),
        refused=refused,
        failed=len(counted) - len(good) - len(uploads) - refused,
        **{f"ttfb_p{p}_ms": quantile(ttfb, p / 100) * 1e3 for p in (50, 90, 95, 99)},
        **{f"audible_p{p}_ms": quantile(audible, p / 100) * 1e3 for p in (50, 95, 99)},
        **{f"server_ttfb_p{p}_ms": quantile(server, p / 100) * 1e3 for p in (50, 90, 95, 99)},
        late_streams=sum(late(call.times, call.seconds) for call in good),
        longest_gap_p99_ms=quantile(gaps, 0.99) * 1e3,
        audio_s_per_s=throughput(loop, calls),
        sending_lag_p99_ms=quantile(sorted(call.sent - call.due for call in counted), 0.99) * 1e3,
        uploads=len(uploads),
        **{f"upload_p{p}_ms": quantile(uploads, p / 100) * 1e3 for p in (50, 99) if uploads},
    )


def throughput(loop: str, calls: Sequence[Call]) -> float:
    """Seconds of audio that arrive per second in the `window` of a load."""
    begin, end = window(loop, calls)
    chunks = [pair for call in calls for pair in zip(call.times, call.seconds, strict=True)]
    return sum(seconds for time, seconds in chunks if begin < time <= end) / (end - begin)


def window(loop: str, calls: Sequence[Call]) -> tuple[float, float]:
    """The begin and the end of a load at its full level.

    Closed loop: from when all users have ended their first request until the first user has ended all requests.
    Listeners: while requests that count are due. Random arrivals: from the first request to the last chunk.
    """
    begin, end = min(call.due for call in calls), max(time for call in calls for time in call.times)
    if loop == "closed":
        begins = [call.times[-1] for call in calls if not call.counts and call.times]
        ends = _last_of_each_user(calls)
        if begins and max(begins) < min(ends):
            return max(begins), min(ends)
    elif loop == "listening":
        due = [call.due for call in calls if call.counts]
        if min(due) < max(due):
            return min(due), max(due)
    return begin, end


def _last_of_each_user(calls: Sequence[Call]) -> list[float]:
    """The arrival of each user's last chunk. A user's calls stand together, the one that does not count first."""
    ends: list[float] = []
    for call in calls:
        if not call.counts:
            ends.append(call.due)
        if call.times and ends:
            ends[-1] = call.times[-1]
    return ends


HEADINGS = (
    f"{'loop':>6} {'level':>6} {'calls':>6} {'refused':>7} {'failed':>6} {'TTFB p50':>9} {'p95':>9} {'p99':>9}"
    f" {'audible p50':>11} {'p99':>9} {'server p50':>10} {'p99':>9} {'late':>5} {'gap p99':>9} {'audio-s/s':>9}"
)


def line(row: Row) -> str:
    """A row under HEADINGS."""
    return (
        f"{row.loop:>6} {row.level:6g} {row.requests:6d} {row.refused:7d} {row.failed:6d} {row.ttfb_p50_ms:6.1f} ms"
        f" {row.ttfb_p95_ms:6.1f} ms {row.ttfb_p99_ms:6.1f} ms {row.audible_p50_ms:8.1f} ms"
        f" {row.audible_p99_ms:6.1f} ms {row.server_ttfb_p50_ms:7.1f} ms"
        f" {row.server_ttfb_p99_ms:6.1f} ms {row.late_streams:5d} {row.longest_gap_p99_ms:6.1f} ms"
        f" {row.audio_s_per_s:9.1f}"
        + (f"  uploads {row.upload_p50_ms:.0f}, {row.upload_p99_ms:.0f} ms" * bool(row.uploads))
    )
