"""Kernels run on a GPU, or without one in Triton's interpreter."""

import atexit
import os

import pytest
import support.engines.interpreter  # noqa: F401, selects it
import torch

if not torch.cuda.is_available():
    # With the interpreter, Triton's bindings print a long report of supposed leaks at exit. atexit runs functions in
    # reverse order of registration: this one, which silences stderr, runs after those of later imports.
    atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2))

TARGETS = [
    pytest.param(("cpu", torch.float32), id="interpreter"),  # its bfloat16 is wrong, so bfloat16 is tested on a GPU
    pytest.param(("cuda", torch.float32), id="cuda-float32", marks=pytest.mark.gpu),
    pytest.param(("cuda", torch.bfloat16), id="cuda-bfloat16", marks=pytest.mark.gpu),
]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> tuple[str, torch.dtype]:
    """A device and a dtype that the kernels run with."""
    device, dtype = request.param
    if (device == "cuda") != torch.cuda.is_available():
        pytest.skip("needs a CUDA device" if device == "cuda" else "with a GPU the kernels run there, not interpreted")
    return device, dtype


@pytest.fixture
def device() -> torch.device:
    """A GPU that runs the kernels written for Hopper."""
    device = torch.device("cuda", 0)
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("the kernel is written for compute capability 9.0")
    return device


@pytest.fixture
def replays_equal_calls(device: torch.device):
    """Asserts that captured chains, each in a graph pool of its own, give at once what separate calls give.

    A chain is a function that makes launches and returns a tensor. It calls its argument after each launch.
    """
    from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority

    def check(*chains) -> None:
        expected = [chain(torch.cuda.synchronize) for chain in chains]
        assert all(result.isfinite().all() for result in expected)
        pools = [GraphPool(priority, device) for priority in (Priority.STEP, Priority.AUDIO)[: len(chains)]]
        pairs = zip(chains, pools, strict=True)
        graphs = [Graph(lambda chain=chain: chain(lambda: None), pool) for chain, pool in pairs]
        for _ in range(10):
            for graph in graphs:
                graph.output.fill_(float("nan"))
            torch.cuda.synchronize()
            for graph, pool in zip(graphs, pools, strict=True):
                with torch.cuda.stream(pool.stream):
                    graph.replay()
            torch.cuda.synchronize()
            for graph, result in zip(graphs, expected, strict=True):
                assert torch.equal(graph.output, result)

    return check


@pytest.fixture
def compiles():
    """Asserts that a call starts to compile CUDA C++ without errors. Skips the test without the run-time compiler."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the run-time compiler, which PyTorch for CUDA brings")
    from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable

    def check(call, *arguments) -> None:
        try:
            assert call(*arguments).result()
        except KernelUnavailable as error:
            if "cannot be used" not in str(error):
                raise
            pytest.skip(str(error))

    return check


@pytest.fixture(autouse=True)
def poisoned_outputs():
    """Uninitialized memory is NaN, so that a missing write or an early read is detected."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def agree(target: tuple[str, torch.dtype]):
    """Asserts that ||out - truth|| / ||truth|| is below the limit of the dtype. NaN fails."""
    limit = 1e-2 if target[1] == torch.bfloat16 else 1e-5

    def check(out: torch.Tensor, truth: torch.Tensor) -> None:
        error = (out.double() - truth.double()).norm() / truth.double().norm()
        assert error < limit, f"relative error {error:.2e}, limit {limit}"

    return check
