"""A pre-norm transformer stack with grouped queries and a SiLU-gated MLP, for any attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import Ops, ResidualStream, RMSNorm
from voxcpm_grpc.layers.weights import Weights

# An Attend takes q [..., h, d], k and v [..., g, d], which are strided views and not rotated, and the layer, and gives
# [..., h, d]. A stack with a late norm passes `norm`, a RowNorm to apply to q, k and v, or None if they are normalized.
# The last layer of a stack passes `wanted` if only these rows are needed, and only they are returned.
Attend = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackShape:
    """The sizes of a stack. `residual_scale` multiplies the output of each branch."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    eps: float
    residual_scale: float = 1.0

    @property
    def layer(self) -> tuple[int, int, int, int, int]:
        """The sizes of a layer: hidden size, ffn, heads, KV heads, head size."""
        return self.hidden, self.ffn, self.heads, self.kv_heads, self.head_dim


class Layer:
    def __init__(
        self, shape: StackShape, index: int, weights: Weights, ops: Ops, *, late_norm: bool, quantize: bool
    ) -> None:
        self.shape, self.index, self.ops, self.late_norm = shape, index, ops, late_norm
        self.sizes = [shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim]
        attention, mlp = weights.scope("self_attn"), weights.scope("mlp")
        names: dict[str, int] = dict(zip(("q_proj", "k_proj", "v_proj"), self.sizes, strict=True))
        self.norm, self.qkv = ops.prepare(
            RMSNorm.load(weights, "input_layernorm", shape.hidden, shape.eps),
            Linear.fused(attention, names, shape.hidden),
        )
        self.out = ops.prepare_output(Linear.load(attention, "o_proj", shape.hidden, self.sizes[0], bias=False))
        self.mlp_norm, self.gate_up = ops.prepare(
            RMSNorm.load(weights, "post_attention_layernorm", shape.hidden, shape.eps),
            Linear.fused(mlp, {"gate_proj": shape.ffn, "up_proj": shape.ffn}, shape.hidden),
        )
        self.down = ops.prepare_output(Linear.load(mlp, "down_proj", shape.hidden, shape.ffn, bias=False))
        if quantize:
            self.qkv, self.out = self.qkv.quantized(), self.out.quantized()
            self.gate_up, self.down = self.gate_up.quantized(), self.down.quantized()

    def __call__(
        self, stream: ResidualStream, rows: tuple[int, ...], attend: Attend, wanted: range | None = None
    ) -> ResidualStream:
        """The residual stream after this layer.

        `rows` are the leading dimensions for attention, with product t. With `wanted`, a range of indices of the first
        of them, all rows serve as keys and values, and the result has the wanted rows only.
        """
        ops, scale = self.ops, self.shape.residual_scale
        if self.late_norm:
            qkv, norm = ops.linear_norm(stream, self.norm, self.qkv)
            attend = partial(attend, norm=norm)
        else:
            qkv = ops.norm_linear(stream, self.norm, self.qkv)
        heads = [size // self.shape.head_dim for size in self.sizes]
        q, k, v = qkv.view(*rows, -1, self.shape.head_dim).split(heads, dim=-2)
        if wanted is not None:
            attend, stream = partial(attend, wanted=wanted), stream.select(wanted, rows[0])
        mixed = attend(q, k, v, self.index).reshape(-1, self.sizes[0])
        stream = ops.linear_add(mixed, self.out, stream, scale)
        return ops.linear_add(ops.norm_gated(stream, self.mlp_norm, self.gate_up), self.down, stream, scale)


class Transformer:
    """A stack of layers and a final norm.

    With `late_norm`, attention may have to apply the norm before q, k and v. With `quantize`, the weights of the linear
    maps are rounded to 8 bits.
    """

    def __init__(
        self, shape: StackShape, weights: Weights, ops: Ops, *, late_norm: bool = False, quantize: bool = False
    ) -> None:
        self.shape, self.ops = shape, ops
        self.layers = [
            Layer(shape, i, weights.scope(f"layers.{i}"), ops, late_norm=late_norm, quantize=quantize)
            for i in range(shape.layers)
        ]
        self.norm = RMSNorm.load(weights, "norm", shape.hidden, shape.eps)

    def __call__(self, x: Tensor, attend: Attend, wanted: range | None = None, adapter: Tensor | None = None) -> Tensor:
        """x [..., hidden] -> the same shape, after all layers and the final norm.

        With `wanted`, a range of indices of the first dimension, the result has these only, and the last layer computes
        no others. adapter int64 [s]: the bank of the LoRA adapter of row r is adapter[r % s].
        """
        stream = ResidualStream(x.reshape(-1, self.shape.hidden), adapter=adapter)
        stream = self.run(stream, x.shape[:-1], attend, wanted)
        return self.ops.norm(stream, self.norm).view(-1, *x.shape[1:])

    def run(
        self, stream: ResidualStream, rows: tuple[int, ...], attend: Attend, wanted: range | None = None
    ) -> ResidualStream:
        """The residual stream after all layers, without the final norm. `rows` and `wanted` as for a layer."""
        if not self.layers:
            return stream if wanted is None else stream.select(wanted, rows[0])
        for layer in self.layers[:-1]:
            stream = layer(stream, rows, attend)
        return self.layers[-1](stream, rows, attend, wanted)
