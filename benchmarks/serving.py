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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks import load, servers
from benchmarks.burst import late, quantile
from benchmarks.hardware import command, versions
from benchmarks.load import Call, Callers, Speech

REFUSED = {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}
MIN_EACH = 4  # requests of each user


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load. Times to first audio are the clients', from when a request was due, and the server's own, from its
    arrival there. Late streams are those whose playback, begun with the first chunk, ran dry."""

    loop: str  # closed, open or listening
    level: float  # users, requests a second, or listeners
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
    """Seconds of audio per second within the `window` of a load."""
    begin, end = window(loop, calls)
    heard = [pair for call in calls for pair in zip(call.times, call.seconds, strict=True)]
    return sum(seconds for time, seconds in heard if begin < time <= end) / (end - begin)


def window(loop: str, calls: Sequence[Call]) -> tuple[float, float]:
    """When a load had its full weight: of random arrivals from the first to the last chunk, of listeners while the
    requests that count came, of a closed loop from when all users are past their first request until the first of them
    has ended."""
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
    """When each user's last chunk came; a user's calls lie together and begin with the one that does not count."""
    ends: list[float] = []
    for call in calls:
        if not call.counts:
            ends.append(call.due)
        if call.times and ends:
            ends[-1] = call.times[-1]
    return ends


@dataclass(slots=True, kw_only=True)
class Loads:
    """One load after another on a server, each of texts that it has not spoken before."""

    callers: Callers
    speech: Speech
    seed: int = 1
    first: int = 0  # number of the first text that is still unspoken

    def warm_up(self, engines: int = 1) -> None:
        self._speak(load.users(2 * engines, 1, self.speech, first=self.first, seed=self.seed))

    def closed(self, users: int, requests: int = MIN_EACH) -> list[Call]:
        """`requests` requests of each user count."""
        return self._speak(load.users(users, requests, self.speech, first=self.first, seed=self.seed))

    def open(self, rate: float, requests: int) -> list[Call]:
        return self._speak(load.arrivals(rate, requests, self.speech, first=self.first, seed=self.seed))

    def listening(self, count: int, utterance: float, *, settle: float, seconds: float) -> list[Call]:
        window = {"settle": settle, "seconds": seconds, "first": self.first, "seed": self.seed + self.first}
        return self._speak(load.listeners(count, self.speech, utterance, **window))

    def _speak(self, lines: Sequence[load.Line]) -> list[Call]:
        self.first += sum(map(len, lines))
        return self.callers.speak(lines, self.speech)


def measure(targets: Sequence[str], options: argparse.Namespace) -> Iterator[Row]:
    with Callers(targets, options.clients) as callers:
        loads = Loads(callers=callers, speech=speech(options), seed=options.seed)
        loads.warm_up()
        for users in map(int, options.closed):
            each = max(MIN_EACH, -(-options.closed_requests // users))
            yield row("closed", users, loads.closed(users, each))
        for rate in options.open:
            yield row("open", rate, loads.open(rate, options.requests))


def speech(options: argparse.Namespace) -> Speech:
    return Speech(steps=options.steps, timesteps=options.timesteps, chars=options.chars)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Of what every request asks for, and of who asks."""
    parser.add_argument("--steps", type=int, default=60, help="steps of each request")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--clients", type=int, default=load.processes(), help="processes")


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    servers.add_flags(parser)
    parser.add_argument("--closed", type=numbers, default=[1, 8, 16, 32, 64], help="counts of users")
    parser.add_argument("--open", type=numbers, default=[1, 4, 8, 16, 40], help="requests a second")
    parser.add_argument("--requests", type=int, default=300, help="requests of each rate")
    parser.add_argument("--closed-requests", type=int, default=64, help="requests of all users, about")
    add_flags(parser)
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--plot", type=Path, help="draw it here")
    options, extra = parser.parse_known_args()  # the rest goes to the server

    rows = []
    print(HEADINGS)
    with servers.reached(options, extra) as targets:
        for one in measure(targets, options):
            rows.append(one)
            print(line(one), flush=True)
    table = {"command": command(), "versions": versions("torch", "grpcio"), "rows": [asdict(one) for one in rows]}
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    if options.plot:
        from benchmarks.plots import serving

        serving(table, options.plot)


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
