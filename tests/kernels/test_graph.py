"""Captures, with what goes on around them."""

import gc

import pytest
import torch
from support.traces import traced

from voxcpm_grpc.kernels.graph import WARM_UP_CALLS, Graph, Lane, Urgency

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def lane() -> Lane:
    return Lane(Urgency.STEP, DEVICE)


def test_a_replay_computes_with_what_its_input_holds_now(lane):
    x = torch.zeros(1000, device=DEVICE)
    one, other = Graph(lambda: (x + 1) * 2, lane), Graph(lambda: (x + 1) * 3, lane)
    x.fill_(4)
    assert (one.replay() == 10).all() and (other.replay() == 15).all() and (one.output == 10).all()


def test_nothing_runs_on_the_stream_of_a_capture_but_the_graphs(lane, tmp_path):
    x = torch.zeros(1000, device=DEVICE)
    ran = traced(lambda: Graph(lambda: x + 1, lane).replay(), tmp_path)
    default = {one.stream for one in traced(lambda: x.add_(1), tmp_path)}
    assert any(one.in_graph for one in ran)
    assert {one.stream for one in ran} == default, ran


def test_a_call_that_fails_leaves_its_lane_as_it_was(lane):
    x, calls = torch.ones(1000, device=DEVICE), []

    def fails() -> torch.Tensor:
        calls.append(x + 1)
        if len(calls) > WARM_UP_CALLS:
            raise ValueError("in mid-capture")
        return calls[-1]

    with pytest.raises(ValueError, match="in mid-capture"):
        Graph(fails, lane)
    assert gc.isenabled()
    assert (Graph(lambda: x + 2, lane).replay() == 3).all()


def test_a_lane_may_become_garbage_while_another_captures(lane):
    x, calls = torch.ones(1000, device=DEVICE), []
    old = [Graph(lambda: x * 5, Lane(Urgency.SPARE, DEVICE))]

    def call() -> torch.Tensor:
        calls.append(None)
        if len(calls) > WARM_UP_CALLS:
            cycle: list[object] = [old.pop()]
            cycle.append(cycle)
            del cycle
        return x + len([[] for _ in range(10_000)])  # so many lists make the collector run, and it would find that one

    graph = Graph(call, lane)
    gc.collect()
    assert not old and (graph.replay() == 10_001).all()
