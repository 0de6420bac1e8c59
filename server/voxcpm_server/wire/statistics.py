"""The admin service: from requests to values, and from statistics to messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil

from voxcpm_grpc import __version__
from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import Stats
from voxcpm_grpc.text.durations import duration_text
from voxcpm_grpc.v1 import admin_pb2 as pb
from voxcpm_server.values.admin import Recent
from voxcpm_server.wire.fields import read_seconds
from voxcpm_server.wire.replies import duration, timestamp

DEFAULT_INTERVAL, MIN_INTERVAL, MAX_INTERVAL = 1.0, 0.1, 3600.0  # seconds


# These fields of FrontStats are added up.
SUMS = ("streams", "max_streams", "uploads", "upload_bytes", "tasks", "calls_ended", "calls_failed")
KNOWN_SUMS = ("open_files", "resident_bytes")  # these are added up if they are known
DURATION_SUMS = ("cpu_time", "audio_sent")


class Phase(Enum):
    """A part of the life of a server."""

    STARTING = pb.SERVER_STATE_STARTING
    SERVING = pb.SERVER_STATE_SERVING
    NO_ENGINE = pb.SERVER_STATE_NO_ENGINE
    DRAINING = pb.SERVER_STATE_DRAINING


class EnginePhase(Enum):
    """A part of the life of an engine."""

    STARTING = pb.ENGINE_STATE_STARTING
    READY = pb.ENGINE_STATE_READY
    DRAINING = pb.ENGINE_STATE_DRAINING
    GIVEN_UP = pb.ENGINE_STATE_GIVEN_UP
    DRAINED = pb.ENGINE_STATE_DRAINED


@dataclass(frozen=True, slots=True)
class FrontReport:
    """The part of one front in the statistics of a server, as fronts send it to each other.

    started: seconds since the epoch
    front: a message FrontStats
    """

    started: float
    front: bytes
    recent: Recent


def interval(request: pb.WatchStatsRequest) -> float:
    """The seconds between two messages. Raises InvalidRequest."""
    seconds = read_seconds(request, "interval")
    if seconds is not None and not MIN_INTERVAL <= seconds <= MAX_INTERVAL:
        rule = f"it must be from {MIN_INTERVAL:g} to {MAX_INTERVAL:g} s"
        raise InvalidRequest(f"interval is {duration_text(seconds)}; {rule}", field="interval")
    return DEFAULT_INTERVAL if seconds is None else seconds


def answer(stats: pb.ServerStats) -> pb.GetStatsResponse:
    return pb.GetStatsResponse(stats=stats)


def update(stats: pb.ServerStats) -> pb.WatchStatsResponse:
    return pb.WatchStatsResponse(stats=stats)


def server(
    *,
    now: float,
    phase: Phase,
    step: str,
    models: Sequence[str],
    fronts: Sequence[FrontReport],
    engines: Iterable[pb.EngineStats],
) -> pb.ServerStats:
    """The statistics of a server. `now` is in seconds since the epoch.

    fronts: the process that answers, and the other fronts
    """
    recent = Recent.of_all([one.recent for one in fronts])
    first_audio, queue = _quantiles(recent.first_audio), _quantiles(recent.queue)
    first, *others = [pb.FrontStats.FromString(one.front) for one in fronts]
    return pb.ServerStats(
        version=__version__,
        start_time=timestamp(min(one.started for one in fronts)),
        read_time=timestamp(now),
        state=phase.value,
        start_step=step if phase is Phase.STARTING else "",
        model=models[0] if models else "",
        models=models,
        front=_sum(first, others),
        fronts=sorted((first, *others), key=lambda one: one.name),
        engines=engines,
        recent=pb.RecentStats(
            period=duration(recent.seconds),
            calls=recent.calls,
            failed=recent.failed,
            audio_sent=duration(recent.audio),
            first_audio_p50=duration(first_audio.get(50)),
            first_audio_p95=duration(first_audio.get(95)),
            first_audio_p99=duration(first_audio.get(99)),
            queue_p50=duration(queue.get(50)),
            queue_p95=duration(queue.get(95)),
            underruns=recent.underruns,
        ),
    )


def _quantiles(values: Sequence[float]) -> dict[int, float]:
    """The smallest value that at least 50, 95 and 99 % do not exceed, by the percentage; empty without values."""
    ordered = sorted(values)
    return {percent: ordered[ceil(percent / 100 * len(ordered)) - 1] for percent in (50, 95, 99)} if ordered else {}


def _sum(front: pb.FrontStats, others: Sequence[pb.FrontStats]) -> pb.FrontStats:
    """Several fronts as one, with the process id of the first."""
    total = pb.FrontStats()
    total.CopyFrom(front)
    for other in others:
        for method, count in other.open_calls.items():
            total.open_calls[method] += count
        for name in SUMS:
            setattr(total, name, getattr(total, name) + getattr(other, name))
        for name in KNOWN_SUMS:
            if total.HasField(name) and other.HasField(name):
                setattr(total, name, getattr(total, name) + getattr(other, name))
        for name in DURATION_SUMS:
            whole = getattr(total, name)
            whole.FromNanoseconds(whole.ToNanoseconds() + getattr(other, name).ToNanoseconds())
        if other.HasField("stored_voices"):  # each front knows the voices of the one store
            total.stored_voices = max(total.stored_voices, other.stored_voices)
        total.loop_busy = max(total.loop_busy, other.loop_busy)
        total.loop_lag.FromNanoseconds(max(total.loop_lag.ToNanoseconds(), other.loop_lag.ToNanoseconds()))
        total.full_remedy = total.full_remedy or other.full_remedy
    if others:
        total.name = ""
    return total


def front(
    *,
    name: str,
    open_calls: Mapping[str, int],
    uploads: int,
    cpu_seconds: float,
    audio_seconds: float,
    loop_busy: float,
    loop_lag: float,
    full_remedy: str,
    **numbers: int | None,
) -> pb.FrontStats:
    """The statistics of a front. `numbers` are fields of the message; None leaves one unset."""
    return pb.FrontStats(
        name=name,
        open_calls=open_calls,
        uploads=uploads,
        cpu_time=duration(cpu_seconds),
        audio_sent=duration(audio_seconds),
        loop_busy=loop_busy,
        loop_lag=duration(loop_lag),
        full_remedy=full_remedy,
        **numbers,
    )


def engine(
    name: str,
    phase: EnginePhase,
    *,
    model: str,
    device: str,
    restarts: int,
    process_id: int,
    age: float | None,
    stats: Stats,
    step_seconds: float,
    chunk_seconds: float,
) -> pb.EngineStats:
    """The statistics of an engine, which are `age` seconds old; None: there are none."""
    return pb.EngineStats(
        name=name,
        state=phase.value,
        device=device,
        model=model,
        process_id=process_id,
        restarts=restarts,
        age=duration(age),
        slots_used=stats.slots_used,
        slots_total=stats.slots_total,
        requests_running=stats.running,
        requests_waiting=stats.waiting,
        requests_resting=stats.swapped,
        pages_used=stats.pages_used,
        pages_free=stats.pages_total - stats.pages_used,
        pages_total=stats.pages_total,
        kv_positions=stats.pages_total * stats.page_size,
        prefix_hit_positions=stats.prefix_hit_tokens,
        prefill_positions=stats.prefill_tokens,
        steps=stats.steps,
        step_time=duration(step_seconds),
        preemptions=stats.preemptions,
        swaps=stats.swaps,
        audio_made=duration(stats.chunks * chunk_seconds),
        requests_finished=stats.finished,
        requests_cancelled=stats.cancelled,
        requests_failed=stats.failed,
    )
