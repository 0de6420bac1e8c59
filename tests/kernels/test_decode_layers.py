"""The layers of a language model for one row in one launch, at any context, and the errors of what it cannot serve."""

from typing import Any

import pytest
import torch

from voxcpm_grpc.kernels import reference
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable, compile_cuda
from voxcpm_grpc.kernels.cuda.decode_layers import (
    FFN,
    HEAD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    SOURCE,
    DecodeLayers,
    DecodeWeights,
)
from voxcpm_grpc.kernels.cuda.persistent import LayerWeights

LIMIT = 1e-2  # bfloat16 activations against float32
EPS, SCALE = 1e-5, 0.5
SIZES = {
    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN),
    "out": (HIDDEN, HEADS * HEAD),
    "gate_up": (2 * FFN, HIDDEN),
    "down": (HIDDEN, FFN),
}


def random_weights(layers: int, device: torch.device) -> DecodeWeights:
    generator = torch.Generator(device).manual_seed(layers)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, device=device) / shape[-1] ** 0.5).bfloat16()

    stack = [LayerWeights(**{name: random(*shape) for name, shape in SIZES.items()}) for _ in range(layers)]
    return DecodeWeights(layers=stack, norm=1 + random(HIDDEN), eps=EPS, residual_scale=SCALE)


@pytest.fixture(scope="module", params=[1, 8, 28], ids="{} layers".format)
def weights(request: pytest.FixtureRequest) -> DecodeWeights:
    device = torch.device("cuda", 0)
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("the kernel is written for compute capability 9.0")
    return random_weights(request.param, device)


def random_inputs(layers: int, context: int, page_size: int, *, rotates: bool = True) -> list[Any]:
    """The arguments of a call. The pages are in no order, and slots that must not be read are NaN."""
    generator, used = torch.Generator("cuda").manual_seed(context), -(-context // page_size)
    order = 1 + torch.randperm(used + 3, generator=generator, device="cuda")
    position = torch.arange(context - 1, device="cuda")
    earlier = order[position // page_size] * page_size + position % page_size
    pages = []
    for _ in range(2):
        slots = torch.full((layers, (used + 4) * page_size, KV_HEADS, HEAD), torch.nan, device="cuda")
        slots[:, earlier] = torch.randn(layers, context - 1, KV_HEADS, HEAD, generator=generator, device="cuda")
        pages.append(slots.bfloat16().view(layers, -1, page_size, KV_HEADS, HEAD))
    angle = (context - 1) * 10000.0 ** (-torch.arange(0, HEAD, 2, device="cuda") / HEAD)[None]
    last = context - 1
    return [
        torch.randn(1, HIDDEN, generator=generator, device="cuda").bfloat16(),
        angle.cos() if rotates else None,
        angle.sin() if rotates else None,
        *pages,
        torch.tensor([context], dtype=torch.int32, device="cuda"),
        order[None, :used].int(),
        order[last // page_size][None] * page_size + last % page_size,
    ]


def error(out: torch.Tensor, truth: torch.Tensor) -> float:
    return float((out.float() - truth).norm() / truth.norm())


def test_weights_that_are_not_on_a_gpu_are_refused():
    weights = DecodeWeights(layers=[], norm=torch.ones(HIDDEN).bfloat16(), eps=EPS, residual_scale=SCALE)
    with pytest.raises(KernelUnavailable, match="on cpu"):
        DecodeLayers(weights)


def test_compiles(compiles):
    compiles(compile_cuda, SOURCE)


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [16, 32])
@pytest.mark.parametrize("context", [1, 2, 17, 190, 500, 2000])
def test_agrees_with_the_reference_and_writes_one_slot(weights, context, page_size):
    layers = len(weights.layers)
    inputs = random_inputs(layers, context, page_size, rotates=context != 190)
    x, cos, sin, k_pages, v_pages, *where = inputs
    wide = [tuple(w.float() for w in (layer.qkv, layer.out, layer.gate_up, layer.down)) for layer in weights.layers]
    pages = k_pages.float(), v_pages.float()
    truth = reference.decode_layers(x.float(), wide, weights.norm.float(), EPS, SCALE, cos, sin, *pages, *where)
    before = [x.clone() for x in (k_pages, v_pages)]
    out = DecodeLayers(weights)(*inputs)
    assert error(out, truth) < LIMIT
    write = where[-1]
    for narrow, old, true in zip((k_pages, v_pages), before, pages, strict=True):
        slots, old, true = (x.view(layers, -1, KV_HEADS, HEAD) for x in (narrow, old, true))
        assert error(slots[:, write], true[:, write]) < LIMIT
        old[:, write] = slots[:, write]
        assert torch.equal(slots.view(torch.int16), old.view(torch.int16)), "another slot has changed"


@pytest.mark.gpu
def test_calls_and_replays_are_bit_identical(weights):
    kernel, inputs = DecodeLayers(weights), random_inputs(len(weights.layers), 300, 16)
    first = kernel(*inputs)
    assert all(torch.equal(kernel(*inputs), first) for _ in range(20))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(*inputs)
    for _ in range(20):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, first)


@pytest.mark.gpu
def test_a_context_that_grows_uses_the_slots_of_earlier_calls(weights):
    """The last call reads what the calls before it have written."""
    kernel, layers = DecodeLayers(weights), len(weights.layers)
    x, cos, sin, k_pages, v_pages, context, table, _ = random_inputs(layers, 20, 16)
    pages = k_pages.float(), v_pages.float()
    wide = [tuple(w.float() for w in (layer.qkv, layer.out, layer.gate_up, layer.down)) for layer in weights.layers]
    for length in (18, 19, 20):
        at = torch.tensor([length - 1], device="cuda")
        where = context.new_tensor([length]), table, table[0, at // 16].long() * 16 + at % 16
        truth = reference.decode_layers(x.float(), wide, weights.norm.float(), EPS, SCALE, cos, sin, *pages, *where)
        assert error(kernel(x, cos, sin, k_pages, v_pages, *where), truth) < LIMIT


@pytest.mark.gpu
def test_a_context_beyond_the_table_reads_what_the_table_holds(weights):
    kernel, inputs = DecodeLayers(weights), random_inputs(len(weights.layers), 64, 16)
    expected = kernel(*inputs)
    inputs[5].fill_(1 << 30)
    assert torch.equal(kernel(*inputs), expected)


@pytest.mark.gpu
def test_other_inputs_are_refused(weights):
    inputs = random_inputs(len(weights.layers) + 1, 4, 16)
    with pytest.raises(ValueError, match="the cache has"):
        DecodeLayers(weights)(*inputs)
