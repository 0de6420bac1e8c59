"""Launches that can run at the same time count arrivals in different places."""

import pytest
import torch

from voxcpm_grpc.kernels.launch.counters import COUNT, captured_with, counters, new_counters
from voxcpm_grpc.kernels.products import reference

CPU = torch.device("cpu")


def test_launches_that_follow_each_other_share_counters():
    assert counters(CPU, 1) is counters(CPU, COUNT)
    assert not counters(CPU, COUNT).any()


def test_a_capture_has_counters_of_its_own():
    own = new_counters(CPU)
    with captured_with(own):
        assert counters(CPU, 1) is own
    assert counters(CPU, 1) is not own


def test_too_many_are_refused():
    with pytest.raises(ValueError, match=f"there are {COUNT}"):
        counters(CPU, COUNT + 1)


@pytest.mark.gpu
def test_graphs_of_two_pools_run_at_the_same_time():
    from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority
    from voxcpm_grpc.kernels.products.skinny_gemm import Tile, linear_add

    device = torch.device("cuda", torch.cuda.current_device())
    tile = Tile(rows=16, columns=64, depth=128, splits=4, swap=True)
    pools = [GraphPool(priority, device) for priority in (Priority.STEP, Priority.AUDIO)]
    graphs, truths, inputs = [], [], []
    for pool in pools:
        x, residual = torch.randn(2, 8, 2048, dtype=torch.bfloat16, device=device)
        weight = torch.randn(2048, 2048, dtype=torch.bfloat16, device=device) / 45
        inputs.append((x, residual, weight))  # a graph keeps its outputs alive, not what it reads
        truths.append(reference.linear_add(x.float(), weight.float(), residual.float(), 0.5))

        def chain(x=x, weight=weight, residual=residual):
            return [linear_add(x, weight, residual, 0.5, tile)[0] for _ in range(50)]

        chain()  # compiles
        torch.cuda.synchronize()
        graphs.append(Graph(chain, pool))
    for _ in range(20):
        for graph, pool in zip(graphs, pools, strict=True):
            with torch.cuda.stream(pool.stream):
                graph.replay()
    torch.cuda.synchronize()
    for graph, truth in zip(graphs, truths, strict=True):
        for out in graph.output:
            assert (out.float() - truth).norm() < 1e-2 * truth.norm()
    assert not any(pool.counters.any() for pool in pools)
