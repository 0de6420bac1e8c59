"""Transformer stacks with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from voxcpm_grpc.attention import Attention, Rotation
from voxcpm_grpc.layers.low_rank import AdapterBanks
from voxcpm_grpc.layers.ops import Ops, RMSNorm, TorchOps
from voxcpm_grpc.layers.transformer import StackShape, Transformer
from voxcpm_grpc.layers.weights import Weights

SHAPE = StackShape(hidden=256, ffn=512, heads=4, kv_heads=2, head_dim=64, layers=2, eps=1e-5, residual_scale=0.7)
ODD = StackShape(hidden=40, ffn=72, heads=2, kv_heads=1, head_dim=24, layers=2, eps=1e-5)


def random_stack(
    shape: StackShape,
    ops: Ops,
    device: str,
    dtype: torch.dtype,
    *,
    banks: AdapterBanks | None = None,
    added: Mapping[str, torch.Tensor] | None = None,
    quantize: bool = False,
) -> Transformer:
    """A stack with the same random weights for all ops.

    The norms differ from one, so that a weight that is applied twice or not at all is detected. `banks` is memory for
    adapters, `added` is added to the weights of maps by name.
    """
    generator = torch.Generator().manual_seed(shape.hidden)
    qkv, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {"self_attn.q_proj": (qkv, shape.hidden), "self_attn.k_proj": (kv, shape.hidden)}
    sizes |= {"self_attn.v_proj": (kv, shape.hidden), "self_attn.o_proj": (shape.hidden, qkv)}
    sizes |= {"mlp.gate_proj": (shape.ffn, shape.hidden), "mlp.up_proj": (shape.ffn, shape.hidden)}
    sizes |= {"mlp.down_proj": (shape.hidden, shape.ffn)}
    tensors = {"norm.weight": torch.rand(shape.hidden, generator=generator) + 0.5}
    for i in range(shape.layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"layers.{i}.{norm}.weight"] = torch.rand(shape.hidden, generator=generator) + 0.5
        for name, (outputs, inputs) in sizes.items():
            weight = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
            tensors[f"layers.{i}.{name}.weight"] = weight
    tensors = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    for name, matrix in (added or {}).items():
        tensors[f"{name}.weight"] += matrix
    weights = Weights("random", tensors, torch.device(device), dtype, torch.float32, banks=banks)
    return Transformer(shape, weights, ops, late_norm=True, quantize=quantize)


def dense(transformer: Transformer) -> Transformer:
    """The same stack in place, with the weights of 8 bits in float32 and plain operations."""
    transformer.ops = TorchOps()
    transformer.norm = RMSNorm(wide(transformer.norm.weight), transformer.norm.eps)
    for layer in transformer.layers:
        layer.ops = transformer.ops
        for name in ("qkv", "out", "gate_up", "down"):
            linear = getattr(layer, name)
            setattr(layer, name, replace(linear, weight=linear.dequantized(torch.float32), weight_scale=None))
        layer.norm, layer.mlp_norm = (RMSNorm(wide(norm.weight), norm.eps) for norm in (layer.norm, layer.mlp_norm))
    return transformer


def wide(weight: torch.Tensor | None) -> torch.Tensor | None:
    return None if weight is None else weight.float()


def run(
    transformer: Transformer,
    x: torch.Tensor,
    attention: Attention,
    wanted: range | None = None,
    adapter: torch.Tensor | None = None,
) -> torch.Tensor:
    """The output of a stack for x [tokens, sequences, hidden], with bidirectional attention inside sequences."""
    angle = torch.arange(len(x))[:, None, None, None] * 10 ** -torch.linspace(0, 2, transformer.shape.head_dim // 2)
    rotate = Rotation(angle.cos().to(x.device), angle.sin().to(x.device))

    def attend(q, k, v, layer, norm, wanted=None):
        return attention.attend_full(q, k, v, rotate, norm, wanted)

    return transformer(x, attend, wanted, adapter)
