"""Linear maps of few hidden states between the networks of a step, in one launch each with what surrounds them.

A program computes a few outputs of up to 64 rows. It prefetches weights before its input exists (see `launch`).

Dimensions: b streams of a step, n slots, c inputs, o outputs, e hidden size of the diffusion transformer.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, prefetch_rows, wait
from voxcpm_grpc.kernels.products.skinny_gemm import Tile

Map = tuple[Tensor, Tensor]  # weight [o, c] and bias [o]


def linear(x: Tensor, weight: Tensor, bias: Tensor, tile: Tile, *, scale: int | None = None) -> Tensor:
    """The map of x [b, c] -> [b, o]. With `scale`, `reference.quantize` of it."""
    (rows, inputs), outputs = x.shape, len(weight)
    if inputs % tile.depth or outputs % tile.columns:
        raise ValueError(f"{tile} does not divide {inputs} inputs and {outputs} outputs")
    _require_contiguous(x, weight, bias)
    out = x.new_empty(rows, outputs)
    _linear_kernel[(outputs // tile.columns, triton.cdiv(rows, tile.rows))](
        x,
        weight,
        bias,
        out,
        rows,
        float(scale or 1),
        1 / (scale or 1),
        INPUTS=inputs,
        OUTPUTS=outputs,
        QUANTIZED=scale is not None,
        **_constants(tile, inputs, x),
    )
    return out


def conditioning(
    slot: Tensor,
    semantic: Tensor,
    acoustic: Tensor,
    from_semantic: Map,
    from_acoustic: Map,
    stop: Map,
    tile: Tile,
) -> tuple[Tensor, Tensor]:
    """Computes `reference.conditioning`."""
    operands = slot, semantic, acoustic, *from_semantic, *from_acoustic, *stop
    _require_contiguous(*operands)
    rows, inputs, hidden, stops = len(slot), semantic.shape[1], len(from_semantic[0]), len(stop[0])
    if inputs % tile.depth or hidden % tile.columns or stops % tile.columns or len(from_acoustic[0]) != hidden:
        raise ValueError(f"{tile} does not divide {inputs} inputs, and {hidden}, {hidden} and {stops} outputs")
    mu, stopping = semantic.new_empty(rows, 2, hidden), semantic.new_empty(rows, stops)
    _conditioning_kernel[((2 * hidden + stops) // tile.columns, triton.cdiv(rows, tile.rows))](
        *operands, mu, stopping, rows, HIDDEN=hidden, STOPS=stops, INPUTS=inputs, **_constants(tile, inputs, semantic)
    )
    return mu, stopping


def _require_contiguous(*tensors: Tensor) -> None:
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("all tensors must be contiguous")


def _constants(tile: Tile, inputs: int, x: Tensor) -> dict[str, int | bool]:
    size = x.element_size()
    lines = max(inputs * size // 128, 1)  # lines of a row of the weight
    ahead = min(tile.ahead, 1 << lines.bit_length() - 1)
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "STAGES": tile.stages,
        "AHEAD": ahead * 128 // size,
        "num_warps": tile.warps,
        **chained(x.device),
    }


@triton.jit
def _product(x_where, weight_where, present, INPUTS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr):
    """Sums float32 of rows times columns. The pointers are those of their first DEPTH inputs."""
    acc = tl.zeros([x_where.shape[0], weight_where.shape[1]], tl.float32)
    for k in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        entry = tl.load(x_where + k, mask=present, other=0.0)
        acc = tl.dot(entry, tl.load(weight_where + k), acc, input_precision="ieee")
    return acc


# Counts and scales that change from step to step are not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["rows", "scale", "inverse"])
def _linear_kernel(
    x,
    weight,
    bias,
    out,
    rows,
    scale,
    inverse,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    present = (row < rows)[:, None]
    step = tl.arange(0, DEPTH)
    weight_where = weight + column[None, :] * INPUTS + step[:, None]
    if OVERLAP and AHEAD > 0:
        prefetch_rows(weight, column, INPUTS, AHEAD)
    added = tl.load(bias + column).to(tl.float32)
    wait(OVERLAP)
    x_where = x + row[:, None] * INPUTS + step[None, :]
    result = (_product(x_where, weight_where, present, INPUTS, DEPTH, STAGES) + added[None, :]).to(out.dtype.element_ty)
    if QUANTIZED:
        # Each value is rounded to the dtype, as by separate operations.
        level = 1.0 - 2.0 / (tl.exp(2.0 * result.to(tl.float32)) + 1.0)  # this is the hyperbolic tangent
        level = (level.to(out.dtype.element_ty).to(tl.float32) * scale).to(out.dtype.element_ty).to(tl.float32)
        level = (level + 12582912.0) - 12582912.0  # 1.5 * 2^23, whose neighbours are whole numbers
        result = (level * inverse).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * OUTPUTS + column[None, :], result, mask=present)


@triton.jit(do_not_specialize=["slot", "rows"])
def _conditioning_kernel(
    slot,
    semantic,
    acoustic,
    semantic_weight,
    semantic_bias,
    acoustic_weight,
    acoustic_bias,
    stop_weight,
    stop_bias,
    mu,
    stopping,
    rows,
    HIDDEN: tl.constexpr,
    STOPS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    start = tl.program_id(0) * COLUMNS  # the start is that among the outputs of all three maps
    stops, hears = start >= 2 * HIDDEN, (start >= HIDDEN) & (start < 2 * HIDDEN)
    weight = tl.where(stops, stop_weight, tl.where(hears, acoustic_weight, semantic_weight))
    bias = tl.where(stops, stop_bias, tl.where(hears, acoustic_bias, semantic_bias))
    x = tl.where(hears, acoustic, semantic)
    column = start % HIDDEN + tl.arange(0, COLUMNS)
    if stops:
        column = start - 2 * HIDDEN + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    present = (row < rows)[:, None]
    step = tl.arange(0, DEPTH)
    weight_where = weight + column[None, :] * INPUTS + step[:, None]
    if OVERLAP and AHEAD > 0:
        prefetch_rows(weight, column, INPUTS, AHEAD)
    added = tl.load(bias + column).to(tl.float32)
    wait(OVERLAP)
    own = tl.load(slot + row, mask=row < rows, other=0)
    x_where = x + own[:, None] * INPUTS + step[None, :]
    result = (_product(x_where, weight_where, present, INPUTS, DEPTH, STAGES) + added[None, :]).to(mu.dtype.element_ty)
    if stops:
        wide = result.to(tl.float32)
        result = (wide * tl.sigmoid(wide)).to(mu.dtype.element_ty)
        tl.store(stopping + row[:, None] * STOPS + column[None, :], result, mask=present)
    else:
        where = row[:, None] * (2 * HIDDEN) + start + tl.arange(0, COLUMNS)[None, :]
        tl.store(mu + where, result, mask=present)
