"""The configuration of a checkpoint: config.json as frozen values, with the defaults of the released code.

There are two generations: VoxCPM-0.5B and VoxCPM1.5, which differ in values alone, and VoxCPM2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from voxcpm_grpc.layers.rope import Rope, build_rope, longrope_amplitude
from voxcpm_grpc.layers.transformer import StackShape

DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), torch.bfloat16),
    **dict.fromkeys(("float16", "fp16"), torch.float16),
    **dict.fromkeys(("float32", "fp32"), torch.float32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """The divisors of LongRoPE. The released code ignores the type beside them and computes LongRoPE for every one."""

    long_factor: tuple[float, ...]
    short_factor: tuple[float, ...]
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LMConfig:
    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    rope_scaling: RopeScaling | None = None
    use_mup: bool = True
    scale_emb: float = 1.0
    scale_depth: float = 1.0
    kv_channels: int | None = None
    no_rope: bool = False

    @property
    def embedding_scale(self) -> float:
        return self.scale_emb if self.use_mup else 1.0

    def stack(self, hidden: int, ffn: int, heads: int, layers: int, kv_channels: int | None) -> StackShape:
        """A stack of these sizes, with the remaining values of the language model."""
        return StackShape(
            hidden=hidden,
            ffn=ffn,
            heads=heads,
            kv_heads=self.num_key_value_heads,
            head_dim=hidden // heads if kv_channels is None else kv_channels,
            layers=layers,
            eps=self.rms_norm_eps,
            residual_scale=self.scale_depth / math.sqrt(layers) if self.use_mup else 1.0,
        )

    def rope(self, size: int, positions: int, dtype: torch.dtype) -> Rope:
        """Tables of the first `positions` positions for heads of `size`, on the CPU."""
        scaling = self.rope_scaling
        if scaling is None:
            return build_rope(positions, size, self.rope_theta, None, 1.0, dtype)
        original = scaling.original_max_position_embeddings
        stretched = self.max_position_embeddings > original  # the length of a sequence does not matter
        divisors = scaling.long_factor if stretched else scaling.short_factor
        amplitude = longrope_amplitude(self.max_position_embeddings, original)
        return build_rope(positions, size, self.rope_theta, divisors, amplitude, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """The encoder of a patch, or the diffusion transformer that generates one."""

    hidden_dim: int = 1024
    ffn_dim: int = 4096
    num_heads: int = 16
    num_layers: int = 4
    kv_channels: int | None = None
    dit_mean_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VAEConfig:
    """The codec of the first generation. Its output has the rate of its input."""

    encoder_dim: int = 128
    encoder_rates: tuple[int, ...] = (2, 5, 8, 8)
    latent_dim: int = 64
    decoder_dim: int = 1536
    decoder_rates: tuple[int, ...] = (8, 8, 5, 2)
    depthwise: bool = True
    sample_rate: int = 16000
    use_noise_block: bool = False

    @property
    def encode_hop(self) -> int:
        """Input samples of one latent frame."""
        return math.prod(self.encoder_rates)

    @property
    def decode_hop(self) -> int:
        """Output samples of one latent frame."""
        return math.prod(self.decoder_rates)

    @property
    def output_rate(self) -> int:
        return self.sample_rate

    def reach(self, stride: int) -> int:
        """The past samples that a convolution of this stride, and twice its width, needs."""
        return stride + stride % 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VAE2Config(VAEConfig):
    """The codec of VoxCPM2, conditioned on its output rate."""

    decoder_dim: int = 2048
    decoder_rates: tuple[int, ...] = (8, 6, 5, 2, 2, 2)
    out_sample_rate: int = 48000
    sr_bin_boundaries: tuple[int, ...] | None = (20000, 30000, 40000)
    cond_type: str = "scale_bias"
    cond_dim: int = 128
    cond_out_layer: bool = False

    @property
    def output_rate(self) -> int:
        return self.out_sample_rate

    def reach(self, stride: int) -> int:
        return stride


@dataclass(frozen=True, slots=True, kw_only=True)
class VoxCPMConfig:
    """The first generation. `VoxCPM2Config` replaces what VoxCPM2 changed."""

    architecture: ClassVar[str] = "voxcpm"
    takes_references: ClassVar[bool] = False  # the model takes a reference, also with a prompt
    takes_styles: ClassVar[bool] = False  # the model takes a description of the voice or the delivery before the text

    lm_config: LMConfig
    encoder_config: LocalConfig
    dit_config: LocalConfig
    patch_size: int = 2
    feat_dim: int = 64
    residual_lm_num_layers: int = 6
    scalar_quantization_latent_dim: int = 256
    scalar_quantization_scale: int = 9
    audio_vae_config: VAEConfig | None = None
    max_length: int = 4096
    dtype: str = "bfloat16"
    dit_mean_mode: bool = False

    @property
    def concatenates(self) -> bool:
        """True if the outputs of the language models stay apart; in the first generation they are added."""
        return False

    @property
    def residual_rotates(self) -> bool:
        """True if the residual language model has rotary positions."""
        return not self.lm_config.no_rope

    @property
    def mean_mode(self) -> bool:
        """True if the diffusion transformer predicts the mean velocity of a step."""
        return self.dit_mean_mode

    @property
    def vae(self) -> VAEConfig:
        return self.audio_vae_config or VAEConfig()

    @property
    def table_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def base(self) -> StackShape:
        return self._language(self.lm_config.num_hidden_layers)

    @property
    def residual(self) -> StackShape:
        return self._language(self.residual_lm_num_layers)

    def _language(self, layers: int) -> StackShape:
        lm = self.lm_config
        return lm.stack(lm.hidden_size, lm.intermediate_size, lm.num_attention_heads, layers, lm.kv_channels)

    @property
    def encoder(self) -> StackShape:
        return self._local(self.encoder_config)

    @property
    def dit(self) -> StackShape:
        return self._local(self.dit_config)

    def _local(self, c: LocalConfig) -> StackShape:
        return self.lm_config.stack(c.hidden_dim, c.ffn_dim, c.num_heads, c.num_layers, c.kv_channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoxCPM2Config(VoxCPMConfig):
    architecture: ClassVar[str] = "voxcpm2"
    takes_references: ClassVar[bool] = True
    takes_styles: ClassVar[bool] = True

    patch_size: int = 4
    residual_lm_num_layers: int = 8
    residual_lm_no_rope: bool = False
    scalar_quantization_latent_dim: int = 512
    audio_vae_config: VAE2Config | None = None
    max_length: int = 8192

    @property
    def concatenates(self) -> bool:
        return True

    @property
    def residual_rotates(self) -> bool:
        return not self.residual_lm_no_rope

    @property
    def mean_mode(self) -> bool:
        return self.dit_config.dit_mean_mode

    @property
    def vae(self) -> VAE2Config:
        return self.audio_vae_config or VAE2Config()
