"""Captured calls and their memory."""

import gc

import pytest
import torch
from support.engines.traces import traced

from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def pool() -> GraphPool:
    return GraphPool(Priority.STEP, DEVICE)


def test_a_replay_uses_the_current_content_of_its_input(pool):
    x = torch.zeros(1000, device=DEVICE)
    one, other = Graph(lambda: (x + 1) * 2, pool), Graph(lambda: (x + 1) * 3, pool)
    x.fill_(4)
    assert (one.replay() == 10).all() and (other.replay() == 15).all() and (one.output == 10).all()


def test_only_graphs_run_on_the_stream_of_a_capture(pool, tmp_path):
    x = torch.zeros(1000, device=DEVICE)
    ran = traced(lambda: Graph(lambda: x + 1, pool).replay(), tmp_path)
    default = {one.stream for one in traced(lambda: x.add_(1), tmp_path)}
    assert any(one.in_graph for one in ran)
    assert {one.stream for one in ran} == default, ran


def test_a_pool_is_usable_after_a_call_that_fails(pool):
    x, calls = torch.ones(1000, device=DEVICE), []

    def fails() -> torch.Tensor:
        calls.append(x + 1)
        raise ValueError("in the middle of a capture")

    with pytest.raises(ValueError, match="in the middle of a capture"):
        Graph(fails, pool)
    assert gc.isenabled()
    assert (Graph(lambda: x + 2, pool).replay() == 3).all()


def test_a_pool_may_become_garbage_during_another_capture(pool):
    x = torch.ones(1000, device=DEVICE)
    old = [Graph(lambda: x * 5, GraphPool(Priority.SPARE, DEVICE))]

    def call() -> torch.Tensor:
        cycle: list[object] = [old.pop()]
        cycle.append(cycle)
        del cycle
        return x + len([[] for _ in range(10_000)])  # this many lists would start the garbage collector

    graph = Graph(call, pool)
    gc.collect()
    assert not old and (graph.replay() == 10_001).all()


def test_a_pool_may_have_become_garbage_before_a_capture(pool):
    x, thresholds = torch.ones(1000, device=DEVICE), gc.get_threshold()
    cycle: list[object] = [Graph(lambda: x * 5, GraphPool(Priority.SPARE, DEVICE))]
    cycle.append(cycle)
    gc.set_threshold(1)  # every new object may start the garbage collector
    try:
        del cycle
        graph = Graph(lambda: x + 1, pool)
    finally:
        gc.set_threshold(*thresholds)
    assert (graph.replay() == 2).all()
