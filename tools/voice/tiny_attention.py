"""Attention within very short sequences (a patch), forward and backward, as one Triton kernel each.

Library kernels use a tile of 64 or 128 rows for a sequence of 11. Here one small program computes one sequence and one
KV head, with rows padded to 16.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # most rows of a sequence


@triton.jit
def _load(base, stride, batch, head, row, column, COUNT: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr):
    where = base + (batch * COUNT + row)[:, None] * stride + head * SIZE + column[None, :]
    return tl.load(where, mask=(row < COUNT)[:, None], other=0.0)


@triton.jit
def _weights(q, k, row, scale, COUNT: tl.constexpr, ROWS: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where((tl.arange(0, ROWS) < COUNT)[None, :], scores, float("-inf"))
    scores = tl.exp(scores - tl.max(scores, 1)[:, None])
    return scores / tl.sum(scores, 1)[:, None]


@triton.jit
def _forward(
    q, k, v, out, q_stride, kv_stride, scale,
    COUNT: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0) // GROUPS
    group = tl.program_id(0) % GROUPS
    row, column = tl.arange(0, ROWS), tl.arange(0, SIZE)
    keys = _load(k, kv_stride, batch, group, row, column, COUNT, GROUPS, SIZE)
    values = _load(v, kv_stride, batch, group, row, column, COUNT, GROUPS, SIZE)
    for i in tl.static_range(HEADS // GROUPS):
        head = group * (HEADS // GROUPS) + i
        queries = _load(q, q_stride, batch, head, row, column, COUNT, HEADS, SIZE)
        weights = _weights(queries, keys, row, scale, COUNT, ROWS).to(values.dtype)
        made = tl.dot(weights, values, input_precision="ieee")
        where = out + (batch * COUNT + row)[:, None] * (HEADS * SIZE) + head * SIZE + column[None, :]
        tl.store(where, made.to(values.dtype), mask=(row < COUNT)[:, None])


@triton.jit
def _backward(
    q, k, v, grad, dq, dk, dv, q_stride, kv_stride, scale,
    COUNT: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0) // GROUPS
    group = tl.program_id(0) % GROUPS
    row, column = tl.arange(0, ROWS), tl.arange(0, SIZE)
    keys = _load(k, kv_stride, batch, group, row, column, COUNT, GROUPS, SIZE)
    values = _load(v, kv_stride, batch, group, row, column, COUNT, GROUPS, SIZE)
    keys_grad = tl.zeros((ROWS, SIZE), tl.float32)
    values_grad = tl.zeros((ROWS, SIZE), tl.float32)
    for i in tl.static_range(HEADS // GROUPS):
        head = group * (HEADS // GROUPS) + i
        queries = _load(q, q_stride, batch, head, row, column, COUNT, HEADS, SIZE)
        out_grad = _load(grad, HEADS * SIZE, batch, head, row, column, COUNT, HEADS, SIZE)
        weights = _weights(queries, keys, row, scale, COUNT, ROWS)
        values_grad += tl.dot(tl.trans(weights.to(values.dtype)), out_grad, input_precision="ieee")
        slope = tl.dot(out_grad, tl.trans(values), input_precision="ieee")
        slope = (weights * (slope - tl.sum(slope * weights, 1)[:, None]) * scale).to(values.dtype)
        where = dq + (batch * COUNT + row)[:, None] * (HEADS * SIZE) + head * SIZE + column[None, :]
        tl.store(where, tl.dot(slope, keys, input_precision="ieee").to(values.dtype), mask=(row < COUNT)[:, None])
        keys_grad += tl.dot(tl.trans(slope), queries, input_precision="ieee")
    where = (batch * COUNT + row)[:, None] * (GROUPS * SIZE) + group * SIZE + column[None, :]
    tl.store(dk + where, keys_grad.to(values.dtype), mask=(row < COUNT)[:, None])
    tl.store(dv + where, values_grad.to(values.dtype), mask=(row < COUNT)[:, None])


class Attention(torch.autograd.Function):
    """Attention. q: [batch, rows, heads, size], k, v: [batch, rows, groups, size]; the result is like q."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        batch, count, heads, size = q.shape
        groups = k.shape[2]
        out = torch.empty_like(q)
        _forward[(batch * groups,)](
            q, k, v, out, heads * size, groups * size, size**-0.5,
            COUNT=count, HEADS=heads, GROUPS=groups, SIZE=size, ROWS=ROWS, num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        batch, count, heads, size = q.shape
        groups = k.shape[2]
        grad = grads[0].contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        _backward[(batch * groups,)](
            q, k, v, grad, dq, dk, dv, heads * size, groups * size, size**-0.5,
            COUNT=count, HEADS=heads, GROUPS=groups, SIZE=size, ROWS=ROWS, num_warps=1,
        )  # fmt: skip
        return dq, dk, dv
