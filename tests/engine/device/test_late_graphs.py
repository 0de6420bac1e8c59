"""Graphs that a restarted engine captures while it serves. tests/engine/test_engine_gpu.py has real ones."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from support.engines.tiny import at_rest, engine, finished, mixed_requests, run

from voxcpm_grpc.engine.device.graphs import StepGraph, advance_buckets, generate_buckets, intermediate, token_buckets
from voxcpm_grpc.engine.runner import Runner

REQUEST = mixed_requests()[0]
LEFT = 40


@pytest.mark.parametrize(
    "sizes", [generate_buckets(128), generate_buckets(20), advance_buckets(100), token_buckets(4096)]
)
def test_sizes_that_are_left_for_later_are_captured_one_by_one_and_larger_ones_serve_until_then(monkeypatch, sizes):
    monkeypatch.setattr("voxcpm_grpc.engine.device.graphs.Graph", lambda call, pool: SimpleNamespace(replay=call))
    captured: list[int] = []

    def call(size: int) -> int:
        return size

    graph: StepGraph[int] = StepGraph(call, sizes, None, lambda: captured.append(1), intermediate(sizes))  # type: ignore[arg-type]
    assert len(captured) == len(graph.sizes) < len(sizes)
    assert all(graph.replay(count) < 2 * max(count, sizes[0]) for count in range(1, sizes[-1] + 1))
    while not graph.complete:
        before = len(graph.sizes)
        graph.capture_next()
        assert len(graph.sizes) == before + 1
        assert all(graph.replay(count) == graph.bucket(count) >= count for count in range(1, sizes[-1] + 1))
    assert graph.sizes == sizes


@pytest.fixture
def left(monkeypatch) -> list[int]:
    """The graphs that the start has left, which an engine on a CPU does not have."""
    graphs = [*range(LEFT)]
    monkeypatch.setattr(Runner, "graphs_wait", property(lambda runner: bool(graphs)))
    monkeypatch.setattr(Runner, "capture_next", lambda runner: graphs.pop())
    return graphs


def test_an_idle_engine_captures_all_graphs_that_its_start_has_left(left):
    eng = engine()
    eng.warm_up()
    assert len(left) == LEFT, "requests wait for the end of the start"
    run(eng)
    assert not left
    assert at_rest(eng)


def test_a_busy_engine_captures_graphs_at_a_pace(left, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.engine.engine.CAPTURE_SECONDS", 1000.0)
    eng = engine()
    eng.warm_up()
    eng.add(REQUEST)
    seen: list[tuple[bool, int]] = []
    outcome = run(eng, each=lambda: seen.append((bool(eng.stats().running), len(left))))[REQUEST.id]
    assert {count for running, count in seen if running} == {LEFT}
    assert finished(outcome).steps > 1
    assert not left

    left.extend(range(LEFT))
    monkeypatch.setattr("voxcpm_grpc.engine.engine.CAPTURE_SECONDS", 0.0)
    eng.warm_up()
    eng.add(REQUEST)
    seen.clear()
    run(eng, each=lambda: seen.append((bool(eng.stats().running), len(left))))
    counts = [count for running, count in seen if running]
    assert {before - after for before, after in pairwise(counts)} == {1}


def test_a_graph_that_cannot_be_captured_ends_no_request(left, monkeypatch, caplog):
    monkeypatch.setattr(Runner, "capture_next", lambda runner: 1 // 0)
    eng = engine()
    eng.warm_up()
    eng.add(REQUEST)
    assert finished(run(eng)[REQUEST.id]).steps
    assert caplog.text.count("graphs of larger sizes take their place") == 1
