"""The layers of a language model for a few rows in one launch, at any context, and the errors of what is not served."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable, compile_cuda
from voxcpm_grpc.models.voxcpm.kernels import reference
from voxcpm_grpc.models.voxcpm.kernels.decode_layers import (
    FFN,
    HEAD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    SOURCE,
    DecodeLayers,
    DecodeWeights,
)
from voxcpm_grpc.models.voxcpm.kernels.decode_rows import SLOTS, DecodeRows, compile_rows
from voxcpm_grpc.models.voxcpm.kernels.persistent import LayerWeights

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


def random_inputs(layers: int, contexts: Sequence[int], page_size: int, *, rotates: bool = True) -> list[Any]:
    """The arguments of a call. The pages are in no order, and slots that must not be read are NaN."""
    generator, used = torch.Generator("cuda").manual_seed(sum(contexts)), [-(-n // page_size) for n in contexts]
    order = 1 + torch.randperm(sum(used) + 3, generator=generator, device="cuda")
    table = order.new_zeros(len(contexts), max(used))
    for row, pages in zip(table, order.split([*used, 3]), strict=False):
        row[: len(pages)] = pages
    last = torch.tensor(contexts, device="cuda") - 1
    slots = table.repeat_interleave(page_size, 1) * page_size + torch.arange(page_size, device="cuda").repeat(max(used))
    earlier = torch.cat([row[: n - 1] for row, n in zip(slots, contexts, strict=True)])
    caches = []
    for _ in range(2):
        cache = torch.full((layers, (sum(used) + 4) * page_size, KV_HEADS, HEAD), torch.nan, device="cuda")
        cache[:, earlier] = torch.randn(layers, len(earlier), KV_HEADS, HEAD, generator=generator, device="cuda")
        caches.append(cache.bfloat16().view(layers, -1, page_size, KV_HEADS, HEAD))
    angle = last[:, None] * 10000.0 ** (-torch.arange(0, HEAD, 2, device="cuda") / HEAD)
    return [
        torch.randn(len(contexts), HIDDEN, generator=generator, device="cuda").bfloat16(),
        angle.cos() if rotates else None,
        angle.sin() if rotates else None,
        *caches,
        (last + 1).int(),
        table.int(),
        slots.gather(1, last[:, None])[:, 0],
    ]


def decoder(weights: DecodeWeights, rows: int) -> DecodeLayers:
    return DecodeLayers(weights) if rows == 1 else DecodeRows(weights)


def error(out: torch.Tensor, truth: torch.Tensor) -> float:
    return float((out.float() - truth).norm() / truth.norm())


@pytest.mark.parametrize("rows", [1, 2])
def test_weights_that_are_not_on_a_gpu_are_refused(rows):
    weights = DecodeWeights(layers=[], norm=torch.ones(HIDDEN).bfloat16(), eps=EPS, residual_scale=SCALE)
    with pytest.raises(KernelUnavailable, match="on cpu"):
        decoder(weights, rows)


def test_compiles(compiles):
    compiles(compile_cuda, SOURCE)


@pytest.mark.parametrize("rows", SLOTS)
def test_compiles_for_each_number_of_rows(compiles, rows):
    compiles(compile_rows, rows)


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [16, 32])
@pytest.mark.parametrize(
    "contexts",
    [(1,), (2,), (17,), (190,), (500,), (2000,), (1, 300), (190, 2, 1000, 65), (500, 1, 130, 2100, 17, 2, 64, 129)],
    ids=str,
)
def test_agrees_with_the_reference_and_writes_one_slot_of_a_sequence(weights, contexts, page_size):
    layers = len(weights.layers)
    inputs = random_inputs(layers, contexts, page_size, rotates=contexts[0] != 190)
    x, cos, sin, k_pages, v_pages, *where = inputs
    wide = [tuple(w.float() for w in (layer.qkv, layer.out, layer.gate_up, layer.down)) for layer in weights.layers]
    pages = k_pages.float(), v_pages.float()
    truth = reference.decode_layers(x.float(), wide, weights.norm.float(), EPS, SCALE, cos, sin, *pages, *where)
    before = [x.clone() for x in (k_pages, v_pages)]
    out = decoder(weights, len(contexts))(*inputs)
    assert error(out, truth) < LIMIT
    write = where[-1]
    for narrow, old, true in zip((k_pages, v_pages), before, pages, strict=True):
        slots, old, true = (x.view(layers, -1, KV_HEADS, HEAD) for x in (narrow, old, true))
        assert error(slots[:, write], true[:, write]) < LIMIT
        old[:, write] = slots[:, write]
        assert torch.equal(slots.view(torch.int16), old.view(torch.int16)), "another slot has changed"


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, *SLOTS])
def test_calls_and_replays_are_bit_identical(weights, rows):
    kernel, inputs = decoder(weights, rows), random_inputs(len(weights.layers), [300] * rows, 16)
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
@pytest.mark.parametrize("rows", [1, 4])
def test_contexts_that_grow_use_the_slots_of_earlier_calls(weights, rows):
    """The last call reads what the calls before it have written."""
    kernel, layers = decoder(weights, rows), len(weights.layers)
    x, cos, sin, k_pages, v_pages, context, table, _ = random_inputs(layers, [20] * rows, 16)
    pages = k_pages.float(), v_pages.float()
    wide = [tuple(w.float() for w in (layer.qkv, layer.out, layer.gate_up, layer.down)) for layer in weights.layers]
    for length in (18, 19, 20):
        at = length - 1
        where = torch.full_like(context, length), table, table[:, at // 16].long() * 16 + at % 16
        truth = reference.decode_layers(x.float(), wide, weights.norm.float(), EPS, SCALE, cos, sin, *pages, *where)
        assert error(kernel(x, cos, sin, k_pages, v_pages, *where), truth) < LIMIT


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4])
def test_contexts_beyond_the_table_read_what_the_table_holds(weights, rows):
    kernel, inputs = decoder(weights, rows), random_inputs(len(weights.layers), [64] * rows, 16)
    expected = kernel(*inputs)
    inputs[5].fill_(1 << 30)
    assert torch.equal(kernel(*inputs), expected)


@pytest.mark.gpu
def test_padding_rows_that_share_a_slot_change_no_other_row(weights):
    """Padding rows have one position, whose slot is in the scratch page."""
    kernel, layers = DecodeRows(weights), len(weights.layers)
    x, cos, sin, k_pages, v_pages, context, table, write = random_inputs(layers, [100, 300, 7, 1], 16)
    expected = kernel(x.clone(), cos, sin, k_pages.clone(), v_pages.clone(), context, table, write)

    def padded(given: Tensor) -> Tensor:
        return torch.cat([given, given[-1:].expand(4, *given.shape[1:])])

    turned, where = (padded(cos), padded(sin)), (padded(context), padded(table), padded(write))
    out = kernel(padded(x), *turned, k_pages, v_pages, *where)
    assert error(out[:4], expected) < LIMIT
    assert all(torch.equal(row, out[3]) for row in out[4:])


@pytest.mark.gpu
def test_calls_with_different_numbers_of_rows_share_the_packets(weights):
    kernel, layers = DecodeRows(weights), len(weights.layers)
    inputs = {rows: random_inputs(layers, [40 * (row + 1) for row in range(rows)], 16) for rows in SLOTS}
    first = {rows: DecodeRows(weights)(*inputs[rows]) for rows in SLOTS}
    for rows in [*SLOTS, *reversed(SLOTS)] * 3:
        assert torch.equal(kernel(*inputs[rows]), first[rows])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4])
def test_other_inputs_are_refused(weights, rows):
    kernel, layers = decoder(weights, rows), len(weights.layers)
    with pytest.raises(ValueError, match="the cache has"):
        kernel(*random_inputs(layers + 1, [4] * rows, 16))
    with pytest.raises(ValueError, match=f"x is .{rows + 1}, {HIDDEN}"):
        kernel(*random_inputs(layers, [4] * (rows + 1), 16))
