"""The statistics of a running server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from voxcpm_grpc.v1 import admin_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontStats:
    """A server process, or the sums of several. Times are in seconds."""

    process_id: int
    """Process id."""

    open_calls: Mapping[str, int]
    """Open calls by the name of their method."""

    streams: int
    """Open streams: Generate and uploads."""

    max_streams: int
    """Streams that may be open."""

    uploads: int
    """Open uploads."""

    upload_bytes: int
    """Bytes of their recordings in memory."""

    stored_voices: int | None
    """Voices in the store; None if it is not known."""

    tasks: int
    """Tasks of the event loop."""

    open_files: int | None
    """Open file descriptors; None if they are not known."""

    resident_bytes: int | None
    """Resident memory; None if it is not known."""

    cpu_seconds: float
    """Processor time since the start."""

    calls_ended: int
    """Calls that have ended since the start."""

    calls_failed: int
    """Calls among these that ended with an error other than CANCELLED."""

    audio_sent: float
    """Audio of calls that have ended since the start."""

    loop_busy: float
    """Share of the last 10 s in which the event loop ran or waited for a processor, from 0 to 1."""

    loop_lag: float
    """Longest delay of the event loop in this time."""

    full_remedy: str
    """The remedy of the operator for a front that is full; empty if it is not."""

    name: str = ""
    """Name of one of several fronts, such as `front 0`. Default: `""`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine. Times are in seconds; counters start at 0 when it is restarted."""

    name: str
    """Name, such as `engine cuda:0`."""

    state: str
    """`starting`, `ready`, `draining`, `drained`, `given up` or `unknown`."""

    device: str
    """Device, such as `cuda:0`."""

    process_id: int
    """Process id, on the host of the engine."""

    restarts: int
    """Restarts after a loss."""

    age: float | None
    """Age of these statistics; None if there are none."""

    slots_used: int
    """Slots in use."""

    slots_total: int
    """Slots."""

    requests_running: int
    """Requests with a slot."""

    requests_waiting: int
    """Requests that wait for their first slot."""

    requests_resting: int
    """Requests without a slot, because their client does not read."""

    pages_used: int
    """Pages of the KV cache in use."""

    pages_total: int
    """Pages."""

    kv_positions: int
    """Positions that all pages hold."""

    prefix_hit_positions: int
    """Prompt positions that were found in the KV cache."""

    prefill_positions: int
    """Prompt positions that were computed."""

    steps: int
    """Steps."""

    step_seconds: float
    """Time of all steps."""

    preemptions: int
    """Requests that were computed again for lack of pages."""

    swaps: int
    """Requests that gave up their slot."""

    audio_made: float
    """Audio that was made."""

    model: str = ""
    """Name of the model. Default: `""`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentStats:
    """Calls that ended during the last minute. Times are in seconds; None if there was no stream."""

    seconds: float
    """Length of the period."""

    calls: int
    """Calls that ended."""

    failed: int
    """Calls among these that ended with an error other than CANCELLED."""

    audio_sent: float
    """Audio of these calls."""

    first_audio_p50: float | None
    """Median of the time from the first complete segment to its audio."""

    first_audio_p95: float | None
    """Time that 95 % of the streams did not exceed."""

    first_audio_p99: float | None
    """Time that 99 % of the streams did not exceed."""

    queue_p50: float | None
    """Median of the wait of the first segment for a slot."""

    queue_p95: float | None
    """Wait that 95 % of the streams did not exceed."""

    underruns: int
    """Gaps inside a segment that a listener has heard, by estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats:
    """The statistics of a server, as its admin service returns them."""

    version: str
    """Version of the server."""

    start_time: datetime
    """Start of the process."""

    read_time: datetime
    """Time of these statistics."""

    state: str
    """`starting`, `serving`, `no engine`, `draining` or `unknown`."""

    start_step: str
    """Step of the start; empty if the server is not starting."""

    model: str
    """Name of the default model; empty while the server starts."""

    front: FrontStats
    """The server process, or the sums of several."""

    engines: tuple[EngineStats, ...]
    """The engines, which several server processes may share."""

    recent: RecentStats
    """Calls that ended during the last minute."""

    models: tuple[str, ...] = ()
    """Names of all models, the default first. Default: `()`."""

    fronts: tuple[FrontStats, ...] = ()
    """Each server process. Default: `()`."""


def server_stats(message: pb.ServerStats) -> ServerStats:
    """The statistics of a message."""
    return ServerStats(
        version=message.version,
        start_time=_time(message.start_time),
        read_time=_time(message.read_time),
        state=_words(pb.ServerState, message.state, "SERVER_STATE_"),
        start_step=message.start_step,
        model=message.model,
        front=_front(message.front),
        fronts=tuple(map(_front, message.fronts)),
        models=tuple(message.models) or ((message.model,) if message.model else ()),
        engines=tuple(map(_engine, message.engines)),
        recent=_recent(message.recent),
    )


def _front(message: pb.FrontStats) -> FrontStats:
    return FrontStats(
        process_id=message.process_id,
        open_calls=dict(message.open_calls),
        streams=message.streams,
        max_streams=message.max_streams,
        uploads=message.uploads,
        upload_bytes=message.upload_bytes,
        stored_voices=message.stored_voices if message.HasField("stored_voices") else None,
        tasks=message.tasks,
        open_files=message.open_files if message.HasField("open_files") else None,
        resident_bytes=message.resident_bytes if message.HasField("resident_bytes") else None,
        cpu_seconds=_seconds(message.cpu_time),
        calls_ended=message.calls_ended,
        calls_failed=message.calls_failed,
        audio_sent=_seconds(message.audio_sent),
        loop_busy=message.loop_busy,
        loop_lag=_seconds(message.loop_lag),
        full_remedy=message.full_remedy,
        name=message.name,
    )


def _engine(message: pb.EngineStats) -> EngineStats:
    return EngineStats(
        name=message.name,
        state=_words(pb.EngineState, message.state, "ENGINE_STATE_"),
        device=message.device,
        model=message.model,
        process_id=message.process_id,
        restarts=message.restarts,
        age=_seconds(message.age) if message.HasField("age") else None,
        slots_used=message.slots_used,
        slots_total=message.slots_total,
        requests_running=message.requests_running,
        requests_waiting=message.requests_waiting,
        requests_resting=message.requests_resting,
        pages_used=message.pages_used,
        pages_total=message.pages_total,
        kv_positions=message.kv_positions,
        prefix_hit_positions=message.prefix_hit_positions,
        prefill_positions=message.prefill_positions,
        steps=message.steps,
        step_seconds=_seconds(message.step_time),
        preemptions=message.preemptions,
        swaps=message.swaps,
        audio_made=_seconds(message.audio_made),
    )


def _recent(message: pb.RecentStats) -> RecentStats:
    def quantile(name: str) -> float | None:
        return _seconds(getattr(message, name)) if message.HasField(name) else None  # pyright: ignore[reportArgumentType]

    return RecentStats(
        seconds=_seconds(message.period),
        calls=message.calls,
        failed=message.failed,
        audio_sent=_seconds(message.audio_sent),
        first_audio_p50=quantile("first_audio_p50"),
        first_audio_p95=quantile("first_audio_p95"),
        first_audio_p99=quantile("first_audio_p99"),
        queue_p50=quantile("queue_p50"),
        queue_p95=quantile("queue_p95"),
        underruns=message.underruns,
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(UTC)


def _words(kind: Any, value: int, prefix: str) -> str:
    """The name of an enum's value in words; `unknown` for one that this client does not know."""
    name = str(kind.Name(value)) if value and value in kind.values() else ""
    return name.removeprefix(prefix).lower().replace("_", " ") or "unknown"
