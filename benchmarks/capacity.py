"""How many people a server can speak to in real time, with first audio as soon as asked for.

    python -m benchmarks.capacity --model demo --ttfb-ms 100,200 --steps 20 --name here
    python -m benchmarks.capacity --model DIR --devices 0 --ttfb-ms 50,100,200 --name h200
    python -m benchmarks.capacity --target HOST:PORT --ttfb-ms 200

A listener hears speech without a pause: request after request, each sent when playback of the one before has ended.
So many listeners are served in real time if the time from a request to its first audio at the client is within the
bound for 99 of 100 requests, no playback runs dry, and none is refused or fails. First a closed loop finds the seconds
of audio that the server makes per second, about the listeners it could speak to if nobody minded waiting; then short
trials close in on the largest count for every bound. Writes capacity-NAME.json, .md and .png into `--out`. Flags that
are not listed here go to the server.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks import host_page, servers, serving
from benchmarks.hardware import command, versions
from benchmarks.load import Callers
from benchmarks.serving import Loads, Row
from voxcpm_client import Client, ModelInfo

START = 0.7  # of the seconds of audio per second: the first trial
BEYOND = 1.1  # of them: too many, unless tried, for a short closed loop may say a little less than is possible
PRECISION = 0.04  # share of a count of listeners by which the next one tried may differ, at least
UNBOUNDED = ("--limits.max-streams", "100000")  # the engines are to decide how many are too many


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The most listeners that were served within a bound, and the fewest that were not; None if none were tried."""

    ttfb_ms: float
    listeners: int
    too_many: int | None

    @property
    def settled(self) -> bool:
        """Whether trials between the two would say no more."""
        return self.too_many is not None and self.too_many - self.listeners <= max(1, PRECISION * self.too_many)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the trials are made."""

    bounds: Sequence[float]  # on the time to first audio, ms
    settle: float  # seconds until requests count
    seconds: float  # in which they do, at least
    requests: int  # that count, at least, unless that took thrice as long
    budget: float  # seconds for all trials

    def seconds_of(self, listeners: int, utterance: float) -> float:
        """In which the requests of so many listeners count."""
        enough = min(self.requests * utterance / listeners, max(3 * self.seconds, utterance))
        return max(self.seconds, enough)


def served(row: Row, ttfb_ms: float) -> bool:
    """Whether all listeners of a trial were served within a bound."""
    return row.ttfb_p99_ms <= ttfb_ms and not (row.late_streams or row.refused or row.failed)


def capacity(trials: Sequence[Row], ttfb_ms: float) -> Capacity:
    """What the trials say about a bound: a count that was served does not count if a smaller one was not."""
    too_many = min((int(row.level) for row in trials if not served(row, ttfb_ms)), default=None)
    listeners = [int(row.level) for row in trials if too_many is None or row.level < too_many]
    return Capacity(ttfb_ms=ttfb_ms, listeners=max(listeners, default=0), too_many=too_many)


def next_count(trials: Sequence[Row], bounds: Sequence[float], ceiling: float) -> int | None:
    """How many listeners to try next, or None if every bound is settled: the middle of the widest gap between served
    and not served, where more than the `ceiling` are taken for too many until they were tried."""
    if not trials:
        return max(1, round(START / BEYOND * ceiling))
    gaps = []
    for one in (capacity(trials, bound) for bound in bounds):
        if not one.settled:
            top = one.too_many or max(ceiling, 1.2 * one.listeners)
            gaps.append((top - one.listeners, max(one.listeners + 1, int(one.listeners + top) // 2)))
    return max(gaps)[1] if gaps else None


def search(loads: Loads, utterance: float, plan: Plan, ceiling: float) -> Iterator[Row]:
    """Yield trials until every bound is settled or time is up. `utterance` is the length of a request in seconds,
    `ceiling` the seconds of audio that the server makes per second."""
    trials: list[Row] = []
    end, longest = time.monotonic() + plan.budget, 0.0
    while (count := next_count(trials, plan.bounds, BEYOND * ceiling)) is not None:
        began = time.monotonic()
        if began + longest > end:
            return
        seconds = plan.seconds_of(count, utterance)
        calls = loads.listening(count, utterance, settle=plan.settle, seconds=seconds)
        trials.append(serving.row("listening", count, calls))
        longest = max(longest, time.monotonic() - began)
        yield trials[-1]


def outcome(saturation: Row, trials: Sequence[Row], plan: Plan) -> dict[str, Any]:
    """For the table: what was tried and what follows."""
    return {
        "saturation": asdict(saturation),
        "capacities": [asdict(capacity(trials, bound)) for bound in plan.bounds],
        "trials": [asdict(row) for row in sorted(trials, key=lambda row: row.level)],
    }


def printed(rows: Iterable[Row]) -> list[Row]:
    """Print each row as it comes."""
    kept = []
    for row in rows:
        print(serving.line(row), flush=True)
        kept.append(row)
    return kept


def device_count(devices: str) -> int:
    """Of a list such as `0,1` or `cpu:2`."""
    return sum(int(one.removeprefix("cpu:")) if one.startswith("cpu:") else 1 for one in devices.split(","))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Of the trials."""
    parser.add_argument("--settle", type=float, default=2.0, help="seconds of a trial before requests count")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of a trial in which they do")
    parser.add_argument("--requests", type=int, default=200, help="that count, unless it took thrice those seconds")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for all trials")
    parser.add_argument("--users", type=int, help="of the closed loop, for each device; default: the model's slots")


def plan(options: argparse.Namespace) -> Plan:
    names = ("settle", "seconds", "requests", "budget")
    return Plan(bounds=sorted(options.ttfb_ms), **{name: getattr(options, name) for name in names})


def describe(target: str) -> ModelInfo:
    with Client(target) as client:
        return client.model_info()


def utterance(options: argparse.Namespace, info: ModelInfo) -> float:
    """Seconds of speech of a request."""
    return options.steps * info.samples_per_step / info.output_sample_rate


def conditions(options: argparse.Namespace, info: ModelInfo) -> dict[str, Any]:
    """What a page says beside its numbers."""
    return {
        "command": command(),
        "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions("torch", "triton", "grpcio") | {"dtype": info.dtype},
        "slots": info.max_slots,
        "steps": options.steps,
        "timesteps": options.timesteps,
        "chars": options.chars,
        "utterance_s": utterance(options, info),
        "settle_s": options.settle,
        "seconds": options.seconds,
        "clients": options.clients,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    servers.add_flags(parser)
    parser.add_argument("--devices", help="of a server of its own, such as 0,1 or cpu:2; of --target, what it runs on")
    parser.add_argument("--ttfb-ms", type=serving.numbers, default=[50, 100, 200], help="bounds")
    parser.add_argument("--name", default="here", help="of the files to write")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    serving.add_flags(parser)
    add_flags(parser)
    options, extra = parser.parse_known_args()  # the rest goes to the server
    trials, devices = plan(options), device_count(options.devices or "auto")
    if not options.target:
        extra = [*UNBOUNDED, *(["--devices", options.devices] if options.devices else []), *extra]

    with servers.reached(options, extra) as targets, Callers(targets, options.clients) as callers:
        info = describe(targets[0])
        loads = Loads(callers=callers, speech=serving.speech(options))
        loads.warm_up(devices)
        print(serving.HEADINGS)
        users = devices * (options.users or info.max_slots)
        (saturation,) = printed([serving.row("closed", users, loads.closed(users))])
        rows = printed(search(loads, utterance(options, info), trials, saturation.audio_s_per_s))
    of = {"devices": options.devices or "auto", "device_count": devices, "fronts": len(targets)}
    table = conditions(options, info) | of | outcome(saturation, rows, trials)
    for one in table["capacities"]:
        print(host_page.capacity_line(one))
    publish(table, options.out, f"capacity-{options.name}", "capacity")


def publish(table: dict[str, Any], out: Path, name: str, kind: Literal["capacity", "scaling"]) -> None:
    """Write the table as JSON, a picture if matplotlib is there, and a page."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n")
    try:
        from benchmarks import plots
    except ImportError as error:
        picture = ""
        print(f"no picture is drawn ({error}); the bench extra brings what it takes")
    else:
        picture = f"{name}.png"
        getattr(plots, kind)(table, out / picture)
    (out / f"{name}.md").write_text(getattr(host_page, kind)(table, name, picture))


if __name__ == "__main__":
    main()
