"""The networks of a VoxCPM2 checkpoint, without the codec.

Dimensions: b sequences, c hidden size of the language models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm2.backend import Backend
from voxcpm_grpc.models.voxcpm2.config import VoxCPM2Config
from voxcpm_grpc.models.voxcpm2.local import MU_TOKENS, TIME_TOKENS, LocDiT, LocEnc


class ScalarQuantizer:
    """Rounds hidden states to a grid in a narrow space."""

    def __init__(self, hidden: int, latent: int, scale: int, weights: Weights) -> None:
        self.scale = scale
        self.in_proj = Linear.load(weights, "in_proj", latent, hidden)
        self.out_proj = Linear.load(weights, "out_proj", hidden, latent)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out_proj(torch.round(torch.tanh(self.in_proj(x)) * self.scale) / self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Networks with their weights, under the names that `VoxCPM2` uses."""

    embedding: Tensor  # [vocabulary, c], scaled
    base: Transformer
    residual: Transformer
    encode_patch: LocEnc
    dit: LocDiT
    quantize: ScalarQuantizer
    enc_to_lm: Linear
    lm_to_dit: Linear
    res_to_dit: Linear
    fusion: Linear
    stop_proj: Linear
    stop_head: Linear

    def stop_logits(self, semantic: Tensor) -> Tensor:
        """Logits [b, 2] of hidden states [b, c]: the speech continues after the next patch, or ends with it."""
        return self.stop_head(F.silu(self.stop_proj(semantic)))


def read_networks(config: VoxCPM2Config, weights: Weights, backend: Backend) -> Networks:
    """Take all tensors of the model from `weights`. Call `layers.weights.check` afterwards, which reports faults."""
    lm, c, dit = config.lm_config, config.lm_config.hidden_size, config.dit
    lengths = 1 + config.patch_size, MU_TOKENS + TIME_TOKENS + 2 * config.patch_size
    encoder_rope, dit_rope = (
        lm.rope(shape.head_dim, n, dtype=config.table_dtype).to(backend.device)
        for shape, n in zip((config.encoder, dit), lengths, strict=True)
    )
    local = backend.attention, backend.ops
    return Networks(
        embedding=weights.take("base_lm.embed_tokens.weight", lm.vocab_size, c) * lm.embedding_scale,
        base=Transformer(config.base, weights.scope("base_lm"), backend.ops),
        residual=Transformer(config.residual, weights.scope("residual_lm"), backend.ops),
        encode_patch=LocEnc(config.encoder, config.feat_dim, encoder_rope, *local, weights.scope("feat_encoder")),
        dit=LocDiT(dit, config.feat_dim, dit_rope, *local, weights.scope("feat_decoder.estimator")),
        quantize=ScalarQuantizer(
            c, config.scalar_quantization_latent_dim, config.scalar_quantization_scale, weights.scope("fsq_layer")
        ),
        enc_to_lm=Linear.load(weights, "enc_to_lm_proj", c, config.encoder.hidden),
        lm_to_dit=Linear.load(weights, "lm_to_dit_proj", dit.hidden, c),
        res_to_dit=Linear.load(weights, "res_to_dit_proj", dit.hidden, c),
        fusion=Linear.load(weights, "fusion_concat_proj", c, 2 * c),
        stop_proj=Linear.load(weights, "stop_proj", c, c),
        stop_head=Linear.load(weights, "stop_head", 2, c, bias=False),
    )
