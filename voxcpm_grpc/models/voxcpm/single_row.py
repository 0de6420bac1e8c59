"""Adapts a language model to the kernel that decodes one row in a single launch."""

from __future__ import annotations

import logging

from torch import Tensor

from voxcpm_grpc.attention import PagedKV, PagedRows, Rotation
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.kernels.cuda.decode_layers import (
    FFN,
    HEAD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    MAX_CONTEXT,
    DecodeLayers,
    DecodeWeights,
)
from voxcpm_grpc.kernels.cuda.persistent import LayerWeights
from voxcpm_grpc.layers.transformer import Transformer

logger = logging.getLogger(__name__)


class SingleRow:
    """A language model for one new row of one sequence without an adapter, in a single launch."""

    def __init__(self, kernel: DecodeLayers) -> None:
        self._kernel = kernel

    def serves(self, rows: PagedRows, adapter: Tensor | None) -> bool:
        """True for these rows and adapters."""
        return len(rows.write) == len(rows.context) == 1 and rows.max_context <= MAX_CONTEXT and adapter is None

    def __call__(self, x: Tensor, kv: PagedKV, rows: PagedRows, rotate: Rotation | None) -> Tensor:
        """`Transformer` of x [1, c], with `Attention.attend` over the paged cache."""
        cos, sin = (None, None) if rotate is None else (rotate.cos[:, 0], rotate.sin[:, 0])
        return self._kernel(x, cos, sin, kv.k, kv.v, rows.context, rows.block_table, rows.write)


def single_row(stack: Transformer) -> SingleRow | None:
    """A language model for one row in a single launch. None, with the reason in the log, if it cannot run here."""
    try:
        return SingleRow(DecodeLayers(decode_weights(stack)))
    except KernelUnavailable as error:
        logger.info("a single stream uses one launch for each product of the language models, not one: %s", error)
        return None


def decode_weights(stack: Transformer) -> DecodeWeights:
    """The weights of the layers, including the norms. Raises KernelUnavailable if the kernel does not serve them."""
    shape = stack.shape
    have = (shape.hidden, shape.ffn, shape.heads, shape.kv_heads, shape.head_dim)
    serves = (HIDDEN, FFN, HEADS, KV_HEADS, HEAD)
    if have != serves:
        raise KernelUnavailable(f"the kernel serves hidden size, ffn, heads, KV heads, head size {serves}, not {have}")
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
    return DecodeWeights(layers=layers, norm=stack.norm.weight, eps=shape.eps, residual_scale=shape.residual_scale)
