"""A pre-norm transformer stack with grouped queries and a SiLU-gated MLP, over whichever attention it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.norm import RMSNorm
from voxcpm_grpc.layers.rope import Rotation
from voxcpm_grpc.layers.weights import Weights

# q [..., h, d], k and v [..., g, d], layer -> [..., h, d]. What it gets may be strided views.
Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackShape:
    """The sizes of a stack. `residual_scale` multiplies what each branch adds."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    eps: float
    residual_scale: float = 1.0


class Layer:
    def __init__(self, shape: StackShape, index: int, weights: Weights) -> None:
        self.shape, self.index = shape, index
        self.sizes = [shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim]
        attention, mlp = weights.scope("self_attn"), weights.scope("mlp")
        names: dict[str, int] = dict(zip(("q_proj", "k_proj", "v_proj"), self.sizes, strict=True))
        self.norm = RMSNorm.load(weights, "input_layernorm", shape.hidden, shape.eps)
        self.qkv = Linear.fused(attention, names, shape.hidden)
        self.out = Linear.load(attention, "o_proj", shape.hidden, self.sizes[0], bias=False)
        self.mlp_norm = RMSNorm.load(weights, "post_attention_layernorm", shape.hidden, shape.eps)
        self.gate_up = Linear.fused(mlp, {"gate_proj": shape.ffn, "up_proj": shape.ffn}, shape.hidden)
        self.down = Linear.load(mlp, "down_proj", shape.hidden, shape.ffn, bias=False)

    def __call__(self, x: Tensor, rotate: Rotation | None, attend: Attend) -> Tensor:
        scale = self.shape.residual_scale
        q, k, v = (
            part.unflatten(-1, (-1, self.shape.head_dim)) for part in self.qkv(self.norm(x)).split(self.sizes, dim=-1)
        )
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        mixed = self.out(attend(q, k, v, self.index).flatten(-2))
        x = x + (mixed if scale == 1 else mixed * scale)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        mixed = self.down(F.silu(gate) * up)
        return x + (mixed if scale == 1 else mixed * scale)


class Transformer:
    def __init__(self, shape: StackShape, weights: Weights) -> None:
        self.shape = shape
        self.layers = [Layer(shape, i, weights.scope(f"layers.{i}")) for i in range(shape.layers)]
        self.norm = RMSNorm.load(weights, "norm", shape.hidden, shape.eps)

    def __call__(self, x: Tensor, rotate: Rotation | None, attend: Attend) -> Tensor:
        """x [..., hidden] -> the same shape, after the final norm. None for `rotate` leaves order to the mask."""
        for layer in self.layers:
            x = layer(x, rotate, attend)
        return self.norm(x)
