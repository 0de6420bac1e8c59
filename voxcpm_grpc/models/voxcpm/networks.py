"""The networks of a checkpoint, without the codec.

Dimensions: b sequences, c hidden size of the language models, e that of the diffusion transformer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.rope import identity_rope
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.backend import Backend
from voxcpm_grpc.models.voxcpm.config.config import VoxCPMConfig
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT, LocEnc, first_tokens
from voxcpm_grpc.models.voxcpm.kernels import reference


class ScalarQuantizer:
    """Rounds hidden states to a grid in a narrow space."""

    def __init__(self, hidden: int, latent: int, scale: int, weights: Weights) -> None:
        self.scale = scale
        self.in_proj = Linear.load(weights, "in_proj", latent, hidden)
        self.out_proj = Linear.load(weights, "out_proj", hidden, latent)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out_proj(reference.quantize(self.in_proj(x), self.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Networks with their weights, under the names that `VoxCPM` uses.

    adapter int64 [t] or [b]: the bank of each row's LoRA adapter; None: the model alone.
    """

    embedding: Tensor  # [vocabulary, c], scaled
    base: Transformer
    residual: Transformer
    encode_patch: LocEnc
    dit: LocDiT
    quantize: ScalarQuantizer
    enc_to_lm: Linear
    lm_to_dit: Linear
    res_to_dit: Linear
    fusion: Linear | None  # VoxCPM2 concatenates what the first generation adds
    stop_proj: Linear
    stop_head: Linear  # logits [b, 2]: the speech continues after the next patch, or ends with it

    def residual_input(self, semantic: Tensor, audio: Tensor, adapter: Tensor | None = None) -> Tensor:
        """Inputs [t, c] of the residual language model: outputs of the base model, and the audio part of its inputs."""
        return semantic + audio if self.fusion is None else self.fusion(torch.cat([semantic, audio], dim=-1), adapter)

    def mu(self, semantic: Tensor, acoustic: Tensor, adapter: Tensor | None = None) -> Tensor:
        """The mu tokens [b, m, e] of the outputs of both language models, [b, c] each."""
        parts = self.lm_to_dit(semantic, adapter), self.res_to_dit(acoustic, adapter)
        return (parts[0] + parts[1])[:, None] if self.fusion is None else torch.stack(parts, dim=1)

    def conditioning(
        self, slot: Tensor, semantic: Tensor, acoustic: Tensor, adapter: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The mu tokens of these slots [b], and their inputs [b, c] of `stop_head`.

        The outputs of both language models are those of all slots, [n, c] each.
        """
        semantic = semantic[slot]
        return self.mu(semantic, acoustic[slot], adapter), F.silu(self.stop_proj(semantic))


def read_networks(config: VoxCPMConfig, weights: Weights, backend: Backend) -> Networks:
    """Take all tensors of the model from `weights`. Call `layers.weights.check` afterwards, which reports faults."""
    lm, c, dit = config.lm_config, config.lm_config.hidden_size, config.dit
    mu_tokens = 2 if config.concatenates else 1
    lengths = 1 + config.patch_size, first_tokens(mu_tokens) + 2 * config.patch_size
    ropes = (
        identity_rope(n, shape.head_dim) if lm.no_rope else lm.rope(shape.head_dim, n, dtype=config.table_dtype)
        for shape, n in zip((config.encoder, dit), lengths, strict=True)
    )
    encoder_rope, dit_rope = (rope.to(backend.device) for rope in ropes)
    local = backend.attention, backend.ops
    return Networks(
        embedding=weights.take("base_lm.embed_tokens.weight", lm.vocab_size, c) * lm.embedding_scale,
        base=Transformer(config.base, weights.scope("base_lm"), backend.ops, quantize=backend.quantize),
        residual=Transformer(config.residual, weights.scope("residual_lm"), backend.ops, quantize=backend.quantize),
        encode_patch=LocEnc(config.encoder, config.feat_dim, encoder_rope, *local, weights.scope("feat_encoder")),
        dit=LocDiT(
            dit, config.feat_dim, dit_rope, *local, weights.scope("feat_decoder.estimator"), mu_tokens=mu_tokens
        ),
        quantize=ScalarQuantizer(
            c, config.scalar_quantization_latent_dim, config.scalar_quantization_scale, weights.scope("fsq_layer")
        ),
        enc_to_lm=Linear.load(weights, "enc_to_lm_proj", c, config.encoder.hidden),
        lm_to_dit=Linear.load(weights, "lm_to_dit_proj", dit.hidden, c),
        res_to_dit=Linear.load(weights, "res_to_dit_proj", dit.hidden, c),
        fusion=Linear.load(weights, "fusion_concat_proj", c, 2 * c) if config.concatenates else None,
        stop_proj=Linear.load(weights, "stop_proj", c, c),
        stop_head=Linear.load(weights, "stop_head", 2, c, bias=False),
    )
