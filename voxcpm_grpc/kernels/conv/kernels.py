"""The Triton programs of `conv`. A tile has rows (samples of all streams, one after another) and columns (channels)."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# The annotations of Triton's ranges and constants do not describe their use in a kernel.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _snake_of(x, alpha, inverse, HALF: tl.constexpr):
    """x + sin(alpha x)^2 * inverse.

    If the result is rounded to HALF precision, the device's fast sine is used: the error is at most 2e-6 |x|. Otherwise
    a polynomial over one period of the squared sine is used: the error is at most 3e-7 / alpha while alpha x is below
    1e6.
    """
    z = x * alpha
    if HALF:
        sine = libdevice.fast_sinf(z)
        return tl.fma(sine * sine, inverse, x)  # pyright: ignore[reportOperatorIssue]
    else:  # noqa: RET505 (Triton needs both branches)
        k = (z * 0.3183098861837907 + 12582912.0) - 12582912.0  # the sum rounds to the nearest integer
        r = tl.fma(k, 8.742278012618954e-08, tl.fma(k, -3.1415927410125732, z))  # pi has two parts
        u = r * r
        q = tl.fma(u, -3.540443230e-06, 1.387141478e-04)
        q = tl.fma(u, q, -3.170759321e-03)
        q = tl.fma(u, q, 4.444128695e-02)
        q = tl.fma(u, q, -3.333321377e-01)
        q = tl.fma(u, q, 9.999998491e-01)
        return tl.fma(u * q, inverse, x)


@triton.jit
def _finish(
    y,
    bias,
    residual,
    kept,
    scale,
    shift,
    alpha,
    inverse,
    out,
    row,
    n,
    where,
    rows,
    N: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    AFFINE: tl.constexpr,
    ACTIVE: tl.constexpr,
):
    """Turn sums of products [rows, columns] into y, stored at `row` if KEEP, and the next input, stored at `where`."""
    column = n < N
    inside = (row < rows)[:, None] & column[None, :]
    flat = row.to(tl.int64)[:, None] * N + n[None, :]
    y += tl.load(bias + n, mask=column, other=0.0)[None, :]
    if RESIDUAL:
        y += tl.load(residual + flat, mask=inside, other=0.0)
    if KEEP:
        tl.store(kept + flat, y, mask=inside)
    if AFFINE:
        y = y * tl.load(scale + n, mask=column, other=0.0)[None, :]
        y += tl.load(shift + n, mask=column, other=0.0)[None, :]
    kind = out.dtype.element_ty
    if ACTIVE:
        a = tl.load(alpha + n, mask=column, other=0.0)[None, :]
        i = tl.load(inverse + n, mask=column, other=0.0)[None, :]
        y = _snake_of(y, a, i, kind == tl.float16)
    tl.store(out + where[:, None] + n[None, :], y.to(kind), mask=inside)


@triton.jit
def _settled(x, ASM: tl.constexpr):
    """Returns x through an opaque instruction.

    Without it the compiler moves the exchange between threads that a product needs from x to its seven inputs.
    """
    if ASM and x.dtype == tl.float16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float16, is_pure=False, pack=2)
    return x


@triton.jit
def _depthwise_of(
    past,
    taps,
    bias,
    alpha,
    inverse,
    first,
    row,
    rows,
    c,
    C: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
    SNAKE: tl.constexpr,
):
    """The depthwise convolution, float32, at channels c of the samples whose oldest input is at `first`."""
    column = c < C
    inside = (row < rows)[:, None] & column[None, :]
    h = tl.zeros([row.shape[0], c.shape[0]], tl.float32) + tl.load(bias + c, mask=column, other=0.0)[None, :]
    for j in tl.static_range(K):
        x = tl.load(past + first[:, None] + (j * DILATION * C + c)[None, :], mask=inside, other=0.0).to(tl.float32)
        h += x * tl.load(taps + j * C + c, mask=column, other=0.0)[None, :]
    if SNAKE:
        a = tl.load(alpha + c, mask=column, other=0.0)[None, :]
        h = _snake_of(h, a, tl.load(inverse + c, mask=column, other=0.0)[None, :], past.dtype.element_ty == tl.float16)
    return h


# Arguments that change from step to step are not specialized: a compilation would stall every stream. The sizes of a
# module are compile-time constants: as run-time arguments they cost a tenth of the speed.
@triton.jit(do_not_specialize=["rows", "samples"])
def depthwise_kernel(
    past,
    taps,
    bias,
    alpha,
    inverse,
    out,
    rows,
    samples,
    stride,
    C: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
    SNAKE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = (row // samples).to(tl.int64) * stride + (row % samples) * C
    h = _depthwise_of(past, taps, bias, alpha, inverse, first, row, rows, c, C, K, DILATION, SNAKE)
    inside = (row < rows)[:, None] & (c < C)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * C + c[None, :], h.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "samples"])
def pointwise_kernel(
    x,
    weight,
    bias,
    residual,
    kept,
    scale,
    shift,
    alpha,
    inverse,
    out,
    rows,
    samples,
    x_stream,
    x_row,
    out_stream,
    C: tl.constexpr,
    N: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    AFFINE: tl.constexpr,
    ACTIVE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    stream, sample = (row // samples).to(tl.int64), row % samples
    c = tl.arange(0, DEPTH)
    a_at = x + (stream * x_stream + sample * x_row)[:, None] + c[None, :]
    b_at = weight + n[:, None] * C + c[None, :]
    y = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, C, DEPTH):
        if C % DEPTH == 0:
            a = tl.load(a_at + begin, mask=(row < rows)[:, None], other=0.0)
            b = tl.load(b_at + begin, mask=(n < N)[:, None], other=0.0)
        else:
            a = tl.load(a_at + begin, mask=(row < rows)[:, None] & (begin + c < C)[None, :], other=0.0)
            b = tl.load(b_at + begin, mask=(n < N)[:, None] & (begin + c < C)[None, :], other=0.0)
        y = tl.dot(a, tl.trans(b), y, input_precision="ieee")
    where = stream * out_stream + sample * N
    _finish(
        y,
        bias,
        residual,
        kept,
        scale,
        shift,
        alpha,
        inverse,
        out,
        row,
        n,
        where,
        rows,
        N,
        RESIDUAL,
        KEEP,
        AFFINE,
        ACTIVE,
    )


@triton.jit(do_not_specialize=["rows", "samples"])
def depthwise_pointwise_kernel(
    past,
    taps,
    taps_bias,
    taps_alpha,
    taps_inverse,
    weight,
    bias,
    residual,
    kept,
    scale,
    shift,
    alpha,
    inverse,
    out,
    rows,
    samples,
    past_stream,
    out_stream,
    C: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
    SNAKE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    AFFINE: tl.constexpr,
    ACTIVE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    ASM: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    stream, sample = (row // samples).to(tl.int64), row % samples
    first = stream * past_stream + sample * C
    y = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in tl.range(0, C, DEPTH, num_stages=1):
        c = begin + tl.arange(0, DEPTH)
        b = tl.load(weight + n[:, None] * C + c[None, :], mask=(n < N)[:, None] & (c < C)[None, :], other=0.0)
        h = _depthwise_of(past, taps, taps_bias, taps_alpha, taps_inverse, first, row, rows, c, C, K, DILATION, SNAKE)
        h = _settled(h.to(weight.dtype.element_ty), ASM)
        y = tl.dot(h, tl.trans(b), y, input_precision="ieee")
    where = stream * out_stream + sample * N
    _finish(
        y,
        bias,
        residual,
        kept,
        scale,
        shift,
        alpha,
        inverse,
        out,
        row,
        n,
        where,
        rows,
        N,
        RESIDUAL,
        KEEP,
        AFFINE,
        ACTIVE,
    )


@triton.jit(do_not_specialize=["rows", "samples"])
def mix_down_kernel(
    past,
    taps,
    bias,
    out,
    rows,
    samples,
    stride,
    C: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (c < C)[None, :]
    first = (row // samples).to(tl.int64) * stride + (row % samples) * C
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for j in tl.static_range(K):
        x = tl.load(past + first[:, None] + (j * C + c)[None, :], mask=inside, other=0.0).to(tl.float32)
        total += x * tl.load(taps + j * C + c, mask=c < C, other=0.0)[None, :]
    y = tl.sum(total, 1) + tl.load(bias)
    tl.store(out + row, 1.0 - 2.0 / (tl.exp(2.0 * y) + 1.0), mask=row < rows)
