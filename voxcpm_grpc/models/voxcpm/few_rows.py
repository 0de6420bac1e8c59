"""Adapts a language model to the kernels that decode a few rows in a single launch."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import Tensor

from voxcpm_grpc.attention import PagedKV, PagedRows, Rotation
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.models.voxcpm.kernels.decode_layers import (
    FFN,
    HEAD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    MAX_CONTEXT,
    DecodeLayers,
    DecodeWeights,
)
from voxcpm_grpc.models.voxcpm.kernels.decode_rows import SLOTS, DecodeRows
from voxcpm_grpc.models.voxcpm.kernels.persistent import LayerWeights

logger = logging.getLogger(__name__)

LAYER = HIDDEN, FFN, HEADS, KV_HEADS, HEAD  # the kernels serve these sizes


class FewRows:
    """A language model for a new row of each of a few sequences without adapters, in a single launch."""

    def __init__(self, kernels: Mapping[int, DecodeLayers]) -> None:
        """`kernels` by the number of rows."""
        self._kernels = kernels

    def serves(self, rows: PagedRows, adapter: Tensor | None) -> bool:
        """True for these rows and adapters."""
        steps = len(rows.write) == len(rows.context) in self._kernels and rows.max_rows == 1
        return steps and rows.max_context <= MAX_CONTEXT and adapter is None

    def __call__(self, x: Tensor, kv: PagedKV, rows: PagedRows, rotate: Rotation | None) -> Tensor:
        """`Transformer` of x [s, c], with `Attention.attend` over the paged cache."""
        cos, sin = (None, None) if rotate is None else (rotate.cos.flatten(1), rotate.sin.flatten(1))
        return self._kernels[len(x)](x, cos, sin, kv.k, kv.v, rows.context, rows.block_table, rows.write)


def few_rows(stack: Transformer) -> FewRows | None:
    """A language model for a few rows in a single launch. None if it cannot run here.

    The log has the reason, and that for which it serves fewer numbers of rows.
    """
    kernels: dict[int, DecodeLayers] = {}
    try:
        weights = decode_weights(stack)
        kernels[1] = DecodeLayers(weights)
        kernels |= dict.fromkeys(SLOTS, DecodeRows(weights))
    except KernelUnavailable as error:
        streams = "2 to 8 streams" if kernels else "up to 8 streams"
        logger.info("steps of %s use one launch for each product of the language models, not one: %s", streams, error)
    return FewRows(kernels) if kernels else None


def decode_weights(stack: Transformer) -> DecodeWeights:
    """The weights of the layers, including the norms. Raises KernelUnavailable if the kernel does not serve them."""
    if (have := stack.shape.layer) != LAYER:
        raise KernelUnavailable(f"the kernel serves hidden size, ffn, heads, KV heads, head size {LAYER}, not {have}")
    for layer in stack.layers:
        linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
        if layer.norm.weight is not None or layer.mlp_norm.weight is not None:
            raise KernelUnavailable("the kernel needs weights that include the norm before them")
        if any(linear.bias is not None or linear.weight_scale is not None for linear in linears):
            raise KernelUnavailable("the kernel needs bfloat16 weights without biases")
    if stack.norm.weight is None:
        raise KernelUnavailable("the kernel needs a final norm with a weight")
    layers = [
        LayerWeights(qkv=layer.qkv.weight, out=layer.out.weight, gate_up=layer.gate_up.weight, down=layer.down.weight)
        for layer in stack.layers
    ]
    shape = stack.shape
    return DecodeWeights(layers=layers, norm=stack.norm.weight, eps=shape.eps, residual_scale=shape.residual_scale)
