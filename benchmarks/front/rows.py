"""Rows of the table: one for each count of streams."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.measuring.statistics import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The cost of one load.

    Delays are in seconds, in ascending order: of each message, of the first chunk of each stream, and of each RPC from
    before the client's call to the front's call of the pool.
    """

    streams: int
    rpcs: int
    chunks: int
    seconds: float
    thread_seconds: float  # CPU time of the event loop's thread
    other_seconds: float  # CPU time of the front's other threads; most of them are gRPC's
    peak_bytes: int  # of the process in memory
    chunk_delays: list[float]
    first_delays: list[float]
    rpc_delays: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One count of streams of one server.

    server: the variant. chunk_us, rpc_us: CPU time of the event loop's thread. thread_share, others_share: CPU time of
    that thread and of the others, over the time of the load. stream_kb: growth of the process's memory since it was
    idle, over the streams; None if several servers share the process. Delays are those of the long requests; `first` is
    their first chunks alone.
    """

    server: str
    streams: int
    chunks_per_s: float
    chunk_us: float
    rpc_us: float
    thread_share: float
    others_share: float
    stream_kb: float | None
    chunk_p50_ms: float
    chunk_p99_ms: float
    first_p50_ms: float
    first_p99_ms: float
    rpc_p50_ms: float
    rpc_p99_ms: float


def row(server: str, long: Load, short: Load, *, idle_bytes: int | None) -> Row:
    """The row of two loads with the same number of streams.

    idle_bytes: memory of the process before all loads; None leaves the memory of a stream out. The CPU time of a chunk
    and of an RPC solve the two equations `thread_seconds = chunks * chunk + rpcs * rpc`.
    """
    scale = long.chunks * short.rpcs - short.chunks * long.rpcs
    chunk = (long.thread_seconds * short.rpcs - short.thread_seconds * long.rpcs) / scale
    rpc = (long.chunks * short.thread_seconds - short.chunks * long.thread_seconds) / scale
    delays = {"chunk": long.chunk_delays, "first": long.first_delays, "rpc": long.rpc_delays}
    return Row(
        server=server,
        streams=long.streams,
        chunks_per_s=long.chunks / long.seconds,
        chunk_us=chunk * 1e6,
        rpc_us=rpc * 1e6,
        thread_share=long.thread_seconds / long.seconds,
        others_share=long.other_seconds / long.seconds,
        stream_kb=None if idle_bytes is None else max(0, long.peak_bytes - idle_bytes) / long.streams / 1e3,
        **{f"{name}_p{p}_ms": quantile(values, p / 100) * 1e3 for name, values in delays.items() for p in (50, 99)},
    )


HEADINGS = (
    f"{'server':<12} {'streams':>7} {'chunks/s':>8} {'a chunk':>9} {'an RPC':>9}"
    f" {'thread':>6} {'others':>6} {'a stream':>9}"
    f" {'chunk p50':>9} {'p99':>9} {'first p50':>9} {'p99':>9} {'RPC p50':>9} {'p99':>9}"
)


def line(row: Row) -> str:
    """A row under HEADINGS."""
    memory = "-" if row.stream_kb is None else f"{row.stream_kb:.0f} kB"
    return (
        f"{row.server:<12} {row.streams:7d} {row.chunks_per_s:8.0f} {row.chunk_us:6.1f} us {row.rpc_us:6.0f} us"
        f" {row.thread_share:6.2f} {row.others_share:6.2f} {memory:>9}"
        f" {row.chunk_p50_ms:6.1f} ms {row.chunk_p99_ms:6.1f} ms {row.first_p50_ms:6.1f} ms {row.first_p99_ms:6.1f} ms"
        f" {row.rpc_p50_ms:6.1f} ms {row.rpc_p99_ms:6.1f} ms"
    )
