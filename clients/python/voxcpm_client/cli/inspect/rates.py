"""Rates, from statistics of a server that were read one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from voxcpm_client.messages.server_stats import EngineStats, FrontStats, ServerStats


def audio_rate(before: ServerStats, after: ServerStats) -> float:
    """Seconds of audio that all engines made in a second between the two."""
    return sum(_made(before, engine) for engine in after.engines) / _seconds(before, after)


def engine_rate(history: Sequence[ServerStats], engine: EngineStats) -> float | None:
    """Seconds of audio that an engine makes in a second; None without earlier statistics."""
    if len(history) < 2:
        return None
    return _made(history[-2], engine) / _seconds(history[-2], history[-1])


def step_seconds(history: Sequence[ServerStats], engine: EngineStats) -> float | None:
    """The duration of a step lately, or of all steps if there was none lately; None if there was none at all."""
    before = _same(history[-2], engine) if len(history) > 1 else None
    if before is not None and engine.steps > before.steps:
        return (engine.step_seconds - before.step_seconds) / (engine.steps - before.steps)
    return engine.step_seconds / engine.steps if engine.steps else None


def cpu_share(history: Sequence[ServerStats], front: FrontStats) -> float | None:
    """The share of one processor that a server process uses; None without earlier statistics of it."""
    if len(history) < 2:
        return None
    before, after = history[-2:]
    earlier = next((one for one in fronts(before) if one.process_id == front.process_id), None)
    return None if earlier is None else max(0.0, front.cpu_seconds - earlier.cpu_seconds) / _seconds(before, after)


def fronts(stats: ServerStats) -> tuple[FrontStats, ...]:
    """The server processes. A server that lists none has one."""
    return stats.fronts or (stats.front,)


def _made(before: ServerStats, engine: EngineStats) -> float:
    earlier = _same(before, engine)
    return max(0.0, engine.audio_made - earlier.audio_made) if earlier is not None else 0.0


def _same(stats: ServerStats, engine: EngineStats) -> EngineStats | None:
    """The earlier statistics of an engine, if it has not been restarted since."""
    return next((one for one in stats.engines if (one.name, one.process_id) == (engine.name, engine.process_id)), None)


def _seconds(before: ServerStats, after: ServerStats) -> float:
    return max(0.001, (after.read_time - before.read_time).total_seconds())
