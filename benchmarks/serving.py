"""What callers of a server hear: users who wait for their audio, and requests that arrive at a rate of their own.

    python -m benchmarks.serving --model demo --closed 1,4 --open 2 --requests 20 --steps 20
    python -m benchmarks.serving --target HOST:PORT --closed 1,8,16,32,64 --open 1,4,8,16,40 --plot serving.png

Without `--target` it starts a server of its own. Real clients in several processes send requests of a fixed length,
each with a text of its own and of equal token count. In the closed loop every user speaks request after request; in the
open loop requests arrive at random (Poisson), and their times count from when they should have been sent. A refused
request is one that the server turned away with RESOURCE_EXHAUSTED or UNAVAILABLE; nobody repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks import load
from benchmarks.burst import late, quantile
from benchmarks.hardware import command, versions
from benchmarks.load import Call, Speech

REFUSED = {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}
START_SECONDS, STOP_SECONDS = 400, 60
MIN_EACH = 4  # requests of each user


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load. Times to first audio are the clients', from when a request was due, and the server's own, from its
    arrival there. Late streams are those whose playback, begun with the first chunk, ran dry."""

    loop: str  # closed or open
    level: float  # users, or requests a second
    requests: int
    refused: int
    failed: int
    ttfb_p50_ms: float
    ttfb_p90_ms: float
    ttfb_p95_ms: float
    ttfb_p99_ms: float
    server_ttfb_p50_ms: float
    server_ttfb_p90_ms: float
    server_ttfb_p95_ms: float
    server_ttfb_p99_ms: float
    late_streams: int
    longest_gap_p99_ms: float
    audio_s_per_s: float
    sending_lag_p99_ms: float  # how late the clients themselves were


def row(loop: str, level: float, calls: Sequence[Call]) -> Row:
    """Of all calls of a load; those that do not count are left out, but for the audio of a closed loop."""
    counted = [call for call in calls if call.counts]
    codes = Counter(call.code for call in counted)
    good = [call for call in counted if call.code == "OK"]
    if not good:
        raise RuntimeError(f"no request of {loop} {level:g} succeeded: {dict(codes)}")
    ttfb = sorted(call.times[0] - call.due for call in good)
    server = sorted(call.server_ttfb for call in good)
    gaps = sorted(max((b - a for a, b in pairwise(call.times)), default=0.0) for call in good)
    refused = sum(codes[code] for code in REFUSED)
    return Row(
        loop=loop,
        level=level,
        requests=len(counted),
        refused=refused,
        failed=len(counted) - len(good) - refused,
        **{f"ttfb_p{p}_ms": quantile(ttfb, p / 100) * 1e3 for p in (50, 90, 95, 99)},
        **{f"server_ttfb_p{p}_ms": quantile(server, p / 100) * 1e3 for p in (50, 90, 95, 99)},
        late_streams=sum(late(call.times, call.seconds) for call in good),
        longest_gap_p99_ms=quantile(gaps, 0.99) * 1e3,
        audio_s_per_s=throughput(loop, calls),
        sending_lag_p99_ms=quantile(sorted(call.sent - call.due for call in counted), 0.99) * 1e3,
    )


def throughput(loop: str, calls: Sequence[Call]) -> float:
    """Seconds of audio per second: of an open loop from the first arrival to the last chunk, of a closed loop from
    when all users are past their first request until the first of them has ended."""
    heard = [pair for call in calls for pair in zip(call.times, call.seconds, strict=True)]
    begin, end = min(call.due for call in calls), max(time for time, _ in heard)
    if loop == "closed":
        begins = [call.times[-1] for call in calls if not call.counts and call.times]
        ends = _last_of_each_user(calls)
        if begins and max(begins) < min(ends):
            begin, end = max(begins), min(ends)
    return sum(seconds for time, seconds in heard if begin < time <= end) / (end - begin)


def _last_of_each_user(calls: Sequence[Call]) -> list[float]:
    """When each user's last chunk came; a user's calls lie together and begin with the one that does not count."""
    ends: list[float] = []
    for call in calls:
        if not call.counts:
            ends.append(call.due)
        if call.times and ends:
            ends[-1] = call.times[-1]
    return ends


@contextmanager
def server(model: str, timesteps: int, extra: Sequence[str]) -> Iterator[str]:
    """The address of a server in a process of its own, stopped at the end."""
    with tempfile.TemporaryDirectory() as voices:
        flags = {
            "--model": model,
            "--listen": "127.0.0.1:0",
            "--log-level": "warning",
            "--voices.directory": voices,
            "--engine.timesteps": str(timesteps),
        }
        words = [word for flag in flags.items() for word in flag]
        process = subprocess.Popen(
            [sys.executable, "-m", "voxcpm_client", "serve", *words, *extra], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
            watchdog.cancel()
            if not line.startswith("listening on "):
                raise SystemExit(f"the server did not start, or not within {START_SECONDS} s; its own words are above")
            yield line.split()[2]
        finally:
            watchdog.cancel()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(target: str, options: argparse.Namespace) -> Iterator[Row]:
    speech = Speech(steps=options.steps, timesteps=options.timesteps, chars=options.chars)
    warm_up = load.users(2, 1, speech, first=0, seed=options.seed)
    load.run(target, warm_up, speech, processes=1)
    first = sum(map(len, warm_up))
    loads = [("closed", float(count)) for count in options.closed] + [("open", rate) for rate in options.open]
    for loop, level in loads:
        if loop == "closed":
            each = max(MIN_EACH, -(-options.closed_requests // int(level)))
            lines = load.users(int(level), each, speech, first=first, seed=options.seed)
        else:
            lines = load.arrivals(level, options.requests, speech, first=first, seed=options.seed)
        first += sum(map(len, lines))
        yield row(loop, level, load.run(target, lines, speech, processes=options.clients))


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--target", help="HOST:PORT of a running server")
    where.add_argument("--model", default="demo", help="what a server of its own serves")
    parser.add_argument("--closed", type=numbers, default=[1, 8, 16, 32, 64], help="counts of users")
    parser.add_argument("--open", type=numbers, default=[1, 4, 8, 16, 40], help="requests a second")
    parser.add_argument("--requests", type=int, default=300, help="requests of each rate")
    parser.add_argument("--closed-requests", type=int, default=64, help="requests of all users, about")
    parser.add_argument("--steps", type=int, default=60, help="steps of each request")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--clients", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)), help="processes")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--plot", type=Path, help="draw it here")
    options, extra = parser.parse_known_args()  # the rest goes to the server
    if extra and options.target:
        parser.error(f"{extra[0]} would go to a server of its own, and --target names a running one")

    rows = []
    print(HEADINGS)
    with server(options.model, options.timesteps, extra) if not options.target else _given(options.target) as target:
        for one in measure(target, options):
            rows.append(one)
            print(line(one), flush=True)
    table = {"command": command(), "versions": versions("torch", "grpcio"), "rows": [asdict(one) for one in rows]}
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    if options.plot:
        from benchmarks.plots import serving

        serving(table, options.plot)


@contextmanager
def _given(target: str) -> Iterator[str]:
    yield target


HEADINGS = (
    f"{'loop':>6} {'level':>6} {'calls':>6} {'refused':>7} {'failed':>6} {'TTFB p50':>9} {'p95':>9} {'p99':>9}"
    f" {'server p50':>10} {'p99':>9} {'late':>5} {'gap p99':>9} {'audio-s/s':>9}"
)


def line(row: Row) -> str:
    """A row as it is printed under HEADINGS."""
    return (
        f"{row.loop:>6} {row.level:6g} {row.requests:6d} {row.refused:7d} {row.failed:6d} {row.ttfb_p50_ms:6.1f} ms"
        f" {row.ttfb_p95_ms:6.1f} ms {row.ttfb_p99_ms:6.1f} ms {row.server_ttfb_p50_ms:7.1f} ms"
        f" {row.server_ttfb_p99_ms:6.1f} ms {row.late_streams:5d} {row.longest_gap_p99_ms:6.1f} ms"
        f" {row.audio_s_per_s:9.1f}"
    )


if __name__ == "__main__":
    main()
