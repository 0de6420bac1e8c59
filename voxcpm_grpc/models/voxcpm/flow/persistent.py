"""Adapts the transformers of a patch to the kernels that compute each of them for one stream in a single launch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable, suppress_unavailable
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import RMSNorm
from voxcpm_grpc.layers.rope import Rope
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.models.voxcpm.flow.flow import FlowSchedule
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT, LocEnc
from voxcpm_grpc.models.voxcpm.kernels.packed_stack import FFN, HEAD, HEADS, HIDDEN, KV_HEADS, LayerWeights
from voxcpm_grpc.models.voxcpm.kernels.persistent import (
    ENCODER_TOKENS,
    FLOW_TOKENS,
    LATENT,
    EncoderWeights,
    FlowWeights,
    PersistentEncoder,
    PersistentFlow,
)

LAYER = HIDDEN, FFN, HEADS, KV_HEADS, HEAD  # the kernels serve these sizes


class PersistentLoop:
    """A `flow.FlowLoop` for a batch of one without an adapter, in a single launch."""

    def __init__(self, kernel: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        self._kernel = kernel

    def __call__(
        self,
        noise: Tensor,
        mu: Tensor,
        condition: Tensor,
        cfg: Tensor,
        schedule: FlowSchedule,
        adapter: Tensor | None = None,
    ) -> Tensor:
        assert adapter is None
        return self._kernel(noise.contiguous(), mu, condition, cfg, schedule.tokens[:, 0], schedule.sizes)


def persistent_flow(dit: LocDiT) -> PersistentLoop | None:
    """The loop of one stream in a single launch. None, with the reason in the log, if it cannot run here."""
    with suppress_unavailable("a single stream uses one launch for each product of the diffusion, not one for all"):
        return PersistentLoop(PersistentFlow(flow_weights(dit)))
    return None


def persistent_encoder(encoder: LocEnc) -> PersistentEncoder | None:
    """The encoder of one patch in a single launch. None, with the reason in the log, if it cannot run here."""
    with suppress_unavailable("a single stream uses one launch for each product of the encoder, not one for all"):
        return PersistentEncoder(encoder_weights(encoder))
    return None


def flow_weights(dit: LocDiT) -> FlowWeights:
    """The weights of the loop, including the norms. Raises KernelUnavailable if the kernel does not serve the shape."""
    return FlowWeights(
        layers=_layers(dit.stack, dit.in_proj, dit.rope, FLOW_TOKENS),
        eps=dit.stack.shape.eps,
        in_proj=_with_bias(dit.in_proj),
        cond_proj=_with_bias(dit.cond_proj),
        out_proj=(_folded(dit.out_proj, dit.stack.norm), _with_bias(dit.out_proj)[1]),
        cos=dit.rope.cos.flatten(1),
        sin=dit.rope.sin.flatten(1),
    )


def encoder_weights(encoder: LocEnc) -> EncoderWeights:
    """The weights of the encoder, including the norms. Raises KernelUnavailable if the kernel has another shape."""
    norm = encoder.stack.norm.weight
    assert norm is not None
    return EncoderWeights(
        layers=_layers(encoder.stack, encoder.in_proj, encoder.rope, ENCODER_TOKENS),
        eps=encoder.stack.shape.eps,
        token=encoder.token.flatten(),
        in_proj=_with_bias(encoder.in_proj),
        norm=norm,
        cos=encoder.rope.cos.flatten(1),
        sin=encoder.rope.sin.flatten(1),
    )


def _layers(stack: Transformer, in_proj: Linear, rope: Rope, tokens: int) -> list[LayerWeights]:
    have = (*stack.shape.layer, in_proj.weight.shape[1], stack.shape.residual_scale, len(rope.cos))
    serves = (*LAYER, LATENT, 1, tokens)
    if have != serves:
        raise KernelUnavailable(
            "the kernel serves hidden size, ffn, heads, KV heads, head size, latent channels, residual scale, tokens "
            f"{serves}, not {have}"
        )
    return [
        LayerWeights(
            qkv=_folded(layer.qkv, layer.norm),
            out=layer.out.weight,
            gate_up=_folded(layer.gate_up, layer.mlp_norm),
            down=layer.down.weight,
        )
        for layer in stack.layers
    ]


def _folded(linear: Linear, norm: RMSNorm) -> Tensor:
    return linear.weight if norm.weight is None else linear.weight * norm.weight


def _with_bias(linear: Linear) -> tuple[Tensor, Tensor]:
    bias = linear.bias
    return linear.weight, linear.weight.new_zeros(len(linear.weight)) if bias is None else bias
