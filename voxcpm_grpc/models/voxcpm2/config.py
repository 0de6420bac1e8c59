"""The configuration of a VoxCPM2 checkpoint: config.json as frozen values, with the defaults of the released code."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

import torch

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.rope import Rope, build_rope, longrope_amplitude
from voxcpm_grpc.layers.transformer import StackShape

DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), torch.bfloat16),
    **dict.fromkeys(("float16", "fp16"), torch.float16),
    **dict.fromkeys(("float32", "fp32"), torch.float32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    type: str
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
        stretched = self.max_position_embeddings > original  # independent of the length of a sequence
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
    encoder_dim: int = 128
    encoder_rates: tuple[int, ...] = (2, 5, 8, 8)
    latent_dim: int = 64
    decoder_dim: int = 2048
    decoder_rates: tuple[int, ...] = (8, 6, 5, 2, 2, 2)
    depthwise: bool = True
    sample_rate: int = 16000
    out_sample_rate: int = 48000
    use_noise_block: bool = False
    sr_bin_boundaries: tuple[int, ...] | None = (20000, 30000, 40000)
    cond_type: str = "scale_bias"

    @property
    def encode_hop(self) -> int:
        """Input samples of one latent frame."""
        return math.prod(self.encoder_rates)

    @property
    def decode_hop(self) -> int:
        """Output samples of one latent frame."""
        return math.prod(self.decoder_rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoxCPM2Config:
    lm_config: LMConfig
    encoder_config: LocalConfig
    dit_config: LocalConfig
    patch_size: int = 4
    feat_dim: int = 64
    residual_lm_num_layers: int = 8
    residual_lm_no_rope: bool = False
    scalar_quantization_latent_dim: int = 512
    scalar_quantization_scale: int = 9
    audio_vae_config: VAEConfig | None = None
    max_length: int = 8192
    dtype: str = "bfloat16"

    @property
    def table_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def vae(self) -> VAEConfig:
        return self.audio_vae_config or VAEConfig()

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


def parse_config(data: Any) -> VoxCPM2Config:
    """The configuration in a parsed config.json. Raises one StartupError that lists all faults."""
    faults: list[str] = []
    config = _read(VoxCPM2Config, data, "config.json", faults)
    if config is not None:
        faults += _violations(config)
    if faults or config is None:
        raise StartupError(f"config.json cannot be used: {'; '.join(faults)}. Take it from the released checkpoint")
    return config


def _read(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    """`value` as `kind`: a dataclass, tuple[x, ...], x | None, int, float, bool or str. Faults are collected."""
    if isinstance(kind, types.UnionType):
        return None if value is None else _read(typing.get_args(kind)[0], value, where, faults)
    if dataclasses.is_dataclass(kind):
        return _read_fields(typing.cast(type, kind), value, where, faults)
    if typing.get_origin(kind) is tuple:
        if isinstance(value, list):
            item = typing.get_args(kind)[0]
            return tuple(_read(item, x, f"{where}[{i}]", faults) for i, x in enumerate(value))
    elif kind is float and type(value) is int:
        return float(value)
    elif type(value) is kind and not (kind is float and not math.isfinite(value)):
        return value
    shown = repr(value) if len(repr(value)) <= 40 else type(value).__name__
    faults.append(f"{where} is {shown}, expected {getattr(kind, '__name__', kind)}")
    return None


def _read_fields(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    if not isinstance(value, dict):
        faults.append(f"{where} is not an object")
        return None
    hints, known, before = typing.get_type_hints(kind), {}, len(faults)
    for field in dataclasses.fields(kind):
        path = field.name if where == "config.json" else f"{where}.{field.name}"
        if field.name in value:
            known[field.name] = _read(hints[field.name], value[field.name], path, faults)
        elif field.default is dataclasses.MISSING:
            faults.append(f"{path} is missing")
    return kind(**known) if len(faults) == before else None


def _violations(config: VoxCPM2Config) -> list[str]:
    """Impossible values, and options that no release uses and this code does not support."""
    lm, vae = config.lm_config, config.vae
    faults = []

    def require(ok: bool, rule: str) -> None:
        if not ok:
            faults.append(rule)

    require(config.dtype in DTYPES, f"dtype is {config.dtype!r}, expected one of {', '.join(DTYPES)}")
    counts = {
        **{name: getattr(config, name) for name in ("patch_size", "feat_dim", "residual_lm_num_layers", "max_length")},
        "scalar_quantization_latent_dim": config.scalar_quantization_latent_dim,
        "scalar_quantization_scale": config.scalar_quantization_scale,
        "lm_config.vocab_size": lm.vocab_size,
        "lm_config.max_position_embeddings": lm.max_position_embeddings,
        "audio_vae_config sizes, rates and sample rates": min(
            vae.encoder_dim, *vae.encoder_rates, vae.decoder_dim, *vae.decoder_rates, vae.sample_rate
        ),
    }
    stacks = {"lm_config": lm, "encoder_config": config.encoder_config, "dit_config": config.dit_config}
    for name, part in stacks.items():
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if field.name.startswith(("hidden", "intermediate", "ffn", "num_", "kv_")) and value is not None:
                counts[f"{name}.{field.name}"] = value
    faults += [f"{name} is {value}, it must be 1 or more" for name, value in counts.items() if value < 1]
    if faults:
        return faults

    for name, shape in {"lm_config": config.base, "encoder_config": config.encoder, "dit_config": config.dit}.items():
        require(
            shape.heads % shape.kv_heads == 0,
            f"{name}: {shape.heads} attention heads are no multiple of {shape.kv_heads} KV heads",
        )
        explicit = stacks[name].kv_channels is not None
        require(
            explicit or shape.hidden % shape.heads == 0,
            f"{name}: hidden size {shape.hidden} is no multiple of {shape.heads} heads and kv_channels is not given",
        )
        require(shape.head_dim % 2 == 0, f"{name}: head size {shape.head_dim} is odd, positions need pairs")
        for factor in ("short_factor", "long_factor") if lm.rope_scaling else ():
            have = len(getattr(lm.rope_scaling, factor))
            require(
                have == shape.head_dim // 2,
                f"lm_config.rope_scaling.{factor} has {have} entries, {name} needs {shape.head_dim // 2}",
            )
    if scaling := lm.rope_scaling:
        require(scaling.type == "longrope", f"lm_config.rope_scaling.type is {scaling.type!r}, expected 'longrope'")
        require(
            2 <= scaling.original_max_position_embeddings <= lm.max_position_embeddings,
            "lm_config.rope_scaling.original_max_position_embeddings must be from 2 to max_position_embeddings",
        )
        require(
            min((*scaling.short_factor, *scaling.long_factor), default=0) > 0,
            "lm_config.rope_scaling factors must be positive",
        )
    require(
        config.max_length <= lm.max_position_embeddings,
        f"max_length {config.max_length} exceeds lm_config.max_position_embeddings {lm.max_position_embeddings}",
    )
    require(config.dit.hidden % 2 == 0 and config.dit.hidden >= 4, "dit_config.hidden_dim must be even and 4 or more")
    require(not config.dit_config.dit_mean_mode, "dit_config.dit_mean_mode is true, which no release uses")
    require(
        config.feat_dim == vae.latent_dim,
        f"feat_dim is {config.feat_dim} and audio_vae_config.latent_dim is {vae.latent_dim}, they must agree",
    )
    require(
        vae.decoder_dim % 2 ** len(vae.decoder_rates) == 0,
        f"audio_vae_config.decoder_dim {vae.decoder_dim} cannot be halved {len(vae.decoder_rates)} times",
    )
    require(vae.depthwise, "audio_vae_config.depthwise is false, which no release uses")
    require(not vae.use_noise_block, "audio_vae_config.use_noise_block is true, which no release uses")
    require(
        vae.sr_bin_boundaries is None or vae.cond_type in ("scale_bias", "scale_bias_init"),
        f"audio_vae_config.cond_type is {vae.cond_type!r}, expected 'scale_bias'",
    )
    return faults
