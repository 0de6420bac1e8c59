"""The row of a number of users: the time to the first audio by gRPC and by HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.gateway.calls import Sample
from benchmarks.measuring.statistics import quantile

HEADINGS = f"{'users':>5} {'calls':>6} {'gRPC p50':>9} {'HTTP p50':>9} {'added':>8} {'ratio':>6}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Times in ms.

    calls: of each way
    added_p50_ms: median of HTTP less median of gRPC
    added_mean_ms: the same of the means
    """

    users: int
    calls: int
    grpc_p50_ms: float
    grpc_p90_ms: float
    http_p50_ms: float
    http_p90_ms: float
    added_p50_ms: float
    added_mean_ms: float
    ratio: float


def row(users: int, samples: Sequence[Sample]) -> Row:
    """The row of the samples of all users."""
    grpc = sorted(1e3 * sample.grpc for sample in samples)
    http = sorted(1e3 * sample.http for sample in samples)
    return Row(
        users=users,
        calls=len(samples),
        grpc_p50_ms=quantile(grpc, 0.5),
        grpc_p90_ms=quantile(grpc, 0.9),
        http_p50_ms=quantile(http, 0.5),
        http_p90_ms=quantile(http, 0.9),
        added_p50_ms=quantile(http, 0.5) - quantile(grpc, 0.5),
        added_mean_ms=fmean(http) - fmean(grpc),
        ratio=quantile(http, 0.5) / quantile(grpc, 0.5),
    )


def line(row: Row) -> str:
    """A row as the command prints it."""
    times = f"{row.grpc_p50_ms:9.1f} {row.http_p50_ms:9.1f} {row.added_p50_ms:8.2f}"
    return f"{row.users:5} {row.calls:6} {times} {row.ratio:6.3f}"
