"""Loop and encoder in one launch agree with the model's own modules, and refuse what they cannot serve."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.models.voxcpm.kernels import persistent
from voxcpm_grpc.models.voxcpm.kernels.packed_stack import LayerWeights, pack, pack_tail, packed_bytes
from voxcpm_grpc.models.voxcpm.kernels.persistent import EncoderWeights, FlowWeights

LIMIT = 1e-2  # bfloat16 activations against float32


@pytest.fixture
def bench(monkeypatch):
    """The benchmark, which builds the model and its reference. It is imported from the repository's root."""
    monkeypatch.syspath_prepend(Path(__file__).parents[4])
    from benchmarks import persistent as bench

    return bench


def test_weights_are_packed_in_the_order_of_the_lanes():
    def random(*shape):
        return torch.randn(*shape, generator=generator).bfloat16()

    generator = torch.Generator().manual_seed(0)
    layer = LayerWeights(
        qkv=random(2560, 1024), out=random(1024, 2048), gate_up=random(8192, 1024), down=random(1024, 4096)
    )
    velocity = random(64, 1024)
    slots, tail = pack([layer], torch.device("cpu")), pack_tail(velocity)
    assert slots.numel() + tail.numel() == packed_bytes(1, tail=16) // 2
    own, tail = (
        slots[37].view(66, 8, 32, 4, 2),
        tail.view(2, 2, 4, 2, 8, 32, 4, 2),
    )  # side 1 of pair 18, rank 5 of group 2
    for step, lane, word, i in ((0, 0, 0, 0), (3, 13, 1, 1), (7, 31, 3, 0), (6, 22, 2, 1)):
        row, second = lane // 4, word % 2
        k = 16 * step + 2 * (lane % 4) + 8 * (word // 2) + i  # of the 128 inputs of a slot

        def at(slot, step=step, lane=lane, word=word, i=i):
            return own[slot, step, lane, word, i]

        # The first of two teams, tile 1 of q, its second slot: head 4, outputs 40 to 47 and those rotated with them.
        assert at(3) == layer.qkv[4 * 128 + 40 + row + 64 * second, 512 + 128 + k]
        assert at(10 + 3) == layer.out[2 * 128 + 3 * 16 + row + 8 * second, 5 * 128 + k]
        assert at(18 + 4 * 6 + 2) == layer.gate_up[(8 * 18 + 6) * 8 + row + 4096 * second, 512 + 2 * 128 + k]
        assert at(50 + 2 * 7 + 1) == layer.down[2 * 128 + 7 * 16 + row + 8 * second, 5 * 256 + 128 + k]
        assert tail[1, 0, 2, 1, step, lane, word, i] == velocity[32 + row + 8 * second, 512 + 128 + k]
    half = own[9].view(16, 16, 4, 2)  # of the second team: four outputs of k and those rotated with them, 256 inputs
    for step, lane, word, i in ((0, 0, 0, 0), (15, 15, 3, 1), (9, 6, 0, 1)):
        k = 512 + 256 + 16 * step + 2 * (lane % 4) + 8 * (word // 2) + i
        assert half[step, lane, word, i] == layer.qkv[2048 + 128 + 2 * 4 + lane // 4 + 64 * (word % 2), k]


def test_weights_that_are_not_on_a_gpu_are_refused():
    empty = torch.zeros(64, 1024, dtype=torch.bfloat16)
    pair = (empty, empty)
    shared = {"layers": [], "eps": 1e-5, "in_proj": pair, "cos": empty, "sin": empty}
    with pytest.raises(KernelUnavailable, match="on cpu"):
        persistent.PersistentFlow(FlowWeights(**shared, cond_proj=pair, out_proj=pair))
    with pytest.raises(KernelUnavailable, match="on cpu"):
        persistent.PersistentEncoder(EncoderWeights(**shared, token=empty, norm=empty))


@pytest.mark.parametrize("source", [persistent.FLOW[0], persistent.ENCODER[0]])
def test_the_kernels_compile(compiles, source):
    compiles(compiler.compile_cuda, source)


@pytest.mark.gpu
@pytest.mark.parametrize("layers, evaluations", [(0, 1), (1, 1), (2, 3), (12, 1), (12, 9)])
def test_agrees_with_the_modules(bench, layers, evaluations):
    torch.manual_seed(layers + evaluations)
    kernel, plain = bench.errors(layers, evaluations, seed=layers)
    assert kernel < max(LIMIT, plain), f"relative error {kernel:.2e}, of the modules in bfloat16 {plain:.2e}"


@pytest.mark.gpu
@pytest.mark.parametrize("layers", [0, 1, 2, 12])
def test_the_encoder_agrees_with_the_modules(bench, layers):
    torch.manual_seed(layers)
    kernel, plain = bench.encoder_errors(layers, seed=layers)
    assert kernel < max(LIMIT, plain), f"relative error {kernel:.2e}, of the modules in bfloat16 {plain:.2e}"


@pytest.mark.gpu
@pytest.mark.parametrize("part", ["flow", "encoder"])
def test_calls_and_replays_are_bit_identical(bench, part):
    call, _ = bench.flow_call(2, 3) if part == "flow" else bench.encoder_call(2)
    first = call()
    assert all(torch.equal(call(), first) for _ in range(20))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for _ in range(20):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, first)


@pytest.mark.gpu
def test_other_inputs_are_refused(bench):
    flow, inputs = bench.persistent(bench.random_dit(0, torch.bfloat16)), bench.random_inputs(1)
    with pytest.raises(ValueError, match="mu is torch"):
        flow(inputs[0], inputs[1].float(), *inputs[2:])
    with pytest.raises(ValueError, match="patch is torch"):
        bench.persistent_encoder(bench.random_encoder(0, torch.bfloat16))(bench.random_patch().float())


@pytest.mark.gpu
def test_other_shapes_are_refused(bench):
    dit = bench.random_dit(0, torch.bfloat16)
    dit.stack.shape = replace(dit.stack.shape, ffn=2048)
    with pytest.raises(KernelUnavailable, match="2048"):
        bench.persistent(dit)


@pytest.mark.gpu
def test_encoders_of_other_shapes_are_refused(bench):
    encoder = bench.random_encoder(0, torch.bfloat16)
    encoder.rope = bench._rope(7)
    with pytest.raises(KernelUnavailable, match="7"):
        bench.persistent_encoder(encoder)
