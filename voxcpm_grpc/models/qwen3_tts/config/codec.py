"""The configuration of the codec of 12.5 frames a second, and of the speaker encoder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from voxcpm_grpc.models.qwen3_tts.config.fields import read_fields

CODEC = "qwen3_tts_tokenizer_12hz"  # config.json has this model_type
DILATIONS = (1, 3, 9)  # the residual units of a stage of the decoder have these dilations
KERNEL = 7  # the wide convolutions of the decoder have this width


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The decoder from codes to audio."""

    num_quantizers: int
    codebook_size: int
    codebook_dim: int  # the sum of all quantizers has this size; each codebook has half of it
    latent_dim: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    sliding_window: int  # a frame attends to so many keys, its own among them
    rms_norm_eps: float
    rope_theta: float
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]
    decoder_dim: int
    hidden_act: str = "silu"
    attention_bias: bool = False

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return math.prod(self.upsampling_ratios) * math.prod(self.upsample_rates)

    @property
    def past(self) -> int:
        """Past frames of which attention reads keys and values."""
        return self.sliding_window - 1

    @property
    def context(self) -> int:
        """Past latent frames on which the audio of a frame depends, through the convolutions behind the transformer."""
        first = 1 - KERNEL  # sample 0 depends on this first sample, through the last convolution
        for rate in reversed(self.upsample_rates):
            first -= (KERNEL - 1) * sum(DILATIONS)  # the residual units reach further back
            first = first // rate - 1  # so does the upsampling
        first += 1 - KERNEL  # so does the first convolution
        for ratio in reversed(self.upsampling_ratios):
            first = (first + 1 - KERNEL) // ratio  # so do the blocks of the upsampling to its rate
        return -first

    @property
    def reach(self) -> int:
        """Past frames on which the audio of a frame depends: 580 of the released codec.

        Keys of the last layer depend on a window of each layer before it, and codes pass a convolution of three frames.
        """
        return self.context + self.num_hidden_layers * self.past + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The encoder from audio to codes, a Mimi encoder."""

    audio_channels: int
    sampling_rate: int
    num_filters: int
    upsampling_ratios: tuple[int, ...]  # the order is that of Mimi's decoder
    num_residual_layers: int
    kernel_size: int
    last_kernel_size: int
    residual_kernel_size: int
    compress: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    codebook_size: int
    codebook_dim: int
    vector_quantization_hidden_dimension: int
    num_quantizers: int
    num_semantic_quantizers: int
    hidden_act: str = "gelu"
    pad_mode: str = "constant"
    use_causal_conv: bool = True
    use_conv_shortcut: bool = False
    attention_bias: bool = False

    @property
    def strides(self) -> tuple[int, ...]:
        return self.upsampling_ratios[::-1]

    @property
    def hop(self) -> int:
        """Samples of a frame. The last convolution halves the rate of the transformer."""
        return 2 * math.prod(self.upsampling_ratios)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """The configuration of decoder and encoder, which have the same frames and the same codes."""

    input_sample_rate: int
    output_sample_rate: int
    encode_downsample_rate: int
    decode_upsample_rate: int
    encoder_valid_num_quantizers: int
    decoder: DecoderConfig
    encoder: EncoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerConfig:
    """The speaker encoder of Base models. The file may leave out all but the first two."""

    enc_dim: int
    sample_rate: int
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    input_sample_rate: int
    output_sample_rate: int
    encode_downsample_rate: int
    decode_upsample_rate: int
    encoder_valid_num_quantizers: int


def read_codec(data: Any, faults: list[str]) -> CodecConfig | None:
    """The configuration of a parsed speech_tokenizer/config.json. None if it has faults, which are appended."""
    kind = data.get("model_type") if isinstance(data, Mapping) else None
    if kind != CODEC:
        faults.append(f"model_type is {kind!r}, and only {CODEC!r} is supported, of models whose name has 12Hz")
        return None
    found: list[str] = []
    rates = read_fields(_Rates, data, "", found)
    decoder = read_fields(DecoderConfig, data.get("decoder_config"), "decoder_config", found)
    encoder = read_fields(EncoderConfig, data.get("encoder_config"), "encoder_config", found)
    if decoder:
        found += _decoder_faults(decoder)
    if encoder:
        found += _encoder_faults(encoder)
    if rates and decoder and encoder:
        found += _rate_faults(rates, decoder, encoder)
    faults += found
    if found or rates is None or decoder is None or encoder is None:
        return None
    numbers = {field.name: getattr(rates, field.name) for field in fields(rates)}
    return CodecConfig(**numbers, decoder=decoder, encoder=encoder)


def read_speaker(data: Any, hidden: int, faults: list[str]) -> SpeakerConfig | None:
    """The `speaker_encoder_config` of a config.json, for a talker of this hidden size.

    None if it has faults, which are appended.
    """
    path, before = "speaker_encoder_config", len(faults)
    config = read_fields(SpeakerConfig, data, path, faults)
    if config is None:
        return None
    sizes, scale = config.enc_channels, config.enc_res2net_scale
    if config.enc_dim != hidden:
        faults.append(f"{path}.enc_dim is {config.enc_dim} and the talker's hidden_size {hidden}, they must agree")
    if not 3 <= len(sizes) == len(config.enc_kernel_sizes) == len(config.enc_dilations):
        faults.append(f"{path}: enc_channels, enc_kernel_sizes and enc_dilations need as many entries, 3 or more")
    elif len({*sizes[:-1]}) > 1 or sum(sizes[1:-1]) != sizes[-1]:
        faults.append(
            f"{path}.enc_channels is {list(sizes)}: all but the last must agree, and the last must be the sum of those "
            "between it and the first"
        )
    if sizes[0] % scale:
        faults.append(f"{path}.enc_channels {sizes[0]} cannot be divided by enc_res2net_scale {scale}")
    if not all(kernel % 2 for kernel in config.enc_kernel_sizes):
        faults.append(f"{path}.enc_kernel_sizes is {list(config.enc_kernel_sizes)}, all must be odd")
    return config if len(faults) == before else None


def _decoder_faults(config: DecoderConfig) -> Iterator[str]:
    yield from _stack_faults("decoder_config", config, "silu")
    if config.codebook_dim % 2:
        yield f"decoder_config.codebook_dim is {config.codebook_dim}, it must be even"
    if config.decoder_dim % 2 ** len(config.upsample_rates):
        yield f"decoder_config.decoder_dim {config.decoder_dim} cannot be halved {len(config.upsample_rates)} times"
    if config.num_quantizers < 2:
        yield f"decoder_config.num_quantizers is {config.num_quantizers}, it must be 2 or more"
    if config.sliding_window < 2:
        yield f"decoder_config.sliding_window is {config.sliding_window}, it must be 2 or more"


def _encoder_faults(config: EncoderConfig) -> Iterator[str]:
    yield from _stack_faults("encoder_config", config, "gelu")
    fixed = {"audio_channels": 1, "num_semantic_quantizers": 1, "num_residual_layers": 1, "pad_mode": "constant"}
    for name, value in (fixed | {"use_causal_conv": True, "use_conv_shortcut": False}).items():
        if (given := getattr(config, name)) != value:
            yield f"encoder_config.{name} is {given!r}, and only {value!r} is supported"
    if config.num_filters % config.compress:
        yield f"encoder_config.num_filters {config.num_filters} cannot be divided by compress {config.compress}"
    if config.codebook_dim != config.vector_quantization_hidden_dimension:
        yield (
            f"encoder_config.codebook_dim is {config.codebook_dim} and vector_quantization_hidden_dimension "
            f"{config.vector_quantization_hidden_dimension}, they must agree"
        )


def _stack_faults(path: str, config: DecoderConfig | EncoderConfig, activation: str) -> Iterator[str]:
    if config.hidden_act != activation:
        yield f"{path}.hidden_act is {config.hidden_act!r}, and only {activation!r} is supported"
    if config.attention_bias:
        yield f"{path}.attention_bias is true, and only false is supported"
    if config.num_attention_heads % config.num_key_value_heads:
        yield (
            f"{path}: {config.num_attention_heads} attention heads are no multiple of "
            f"{config.num_key_value_heads} KV heads"
        )
    if config.head_dim % 2:
        yield f"{path}.head_dim is {config.head_dim}, positions need pairs"


def _rate_faults(rates: _Rates, decoder: DecoderConfig, encoder: EncoderConfig) -> Iterator[str]:
    pairs = (
        ("decode_upsample_rate", rates.decode_upsample_rate, "the product of the rates of decoder_config", decoder.hop),
        (
            "encode_downsample_rate",
            rates.encode_downsample_rate,
            "twice the product of the ratios of encoder_config",
            encoder.hop,
        ),
        ("decode_upsample_rate", rates.decode_upsample_rate, "encode_downsample_rate", rates.encode_downsample_rate),
        ("input_sample_rate", rates.input_sample_rate, "encoder_config.sampling_rate", encoder.sampling_rate),
        ("input_sample_rate", rates.input_sample_rate, "output_sample_rate", rates.output_sample_rate),
        ("decoder_config.codebook_size", decoder.codebook_size, "encoder_config.codebook_size", encoder.codebook_size),
        (
            "encoder_valid_num_quantizers",
            rates.encoder_valid_num_quantizers,
            "decoder_config.num_quantizers",
            decoder.num_quantizers,
        ),
    )
    for one, left, other, right in pairs:
        if left != right:
            yield f"{one} is {left} and {other} is {right}, they must agree"
    if encoder.num_quantizers < rates.encoder_valid_num_quantizers:
        yield (
            f"encoder_config.num_quantizers is {encoder.num_quantizers}, fewer than encoder_valid_num_quantizers "
            f"{rates.encoder_valid_num_quantizers}"
        )
