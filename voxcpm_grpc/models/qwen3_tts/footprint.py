"""The memory that a model takes on a GPU, computed from its config.json alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.ops import TorchOps
from voxcpm_grpc.layers.weights import BlankWeights, bytes_of
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.footprint import Footprint
from voxcpm_grpc.models.qwen3_tts.codec.codec import Qwen3Codec
from voxcpm_grpc.models.qwen3_tts.codec.encoder import Encoder
from voxcpm_grpc.models.qwen3_tts.codec.fused_decoder import FusedDecoder
from voxcpm_grpc.models.qwen3_tts.codec.layout import step_bytes
from voxcpm_grpc.models.qwen3_tts.codec.speaker import SpeakerEncoder
from voxcpm_grpc.models.qwen3_tts.config.codec import CodecConfig, DecoderConfig, EncoderConfig, read_speaker
from voxcpm_grpc.models.qwen3_tts.config.parse import parse_config
from voxcpm_grpc.models.qwen3_tts.kernels import codec_reference
from voxcpm_grpc.models.qwen3_tts.load import codec_dtype_of, positions_of, read_networks
from voxcpm_grpc.models.qwen3_tts.model import Qwen3TTS

WORKING_BASE = round(1.75 * 2**30)  # bytes: CUDA context, libraries, graphs, prefills

# The files of the codec are the same in all released models, and config.json does not describe them.
RELEASED_CODEC = CodecConfig(
    input_sample_rate=24000,
    output_sample_rate=24000,
    encode_downsample_rate=1920,
    decode_upsample_rate=1920,
    encoder_valid_num_quantizers=16,
    decoder=DecoderConfig(
        num_quantizers=16,
        codebook_size=2048,
        codebook_dim=512,
        latent_dim=1024,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=64,
        sliding_window=72,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        upsampling_ratios=(2, 2),
        upsample_rates=(8, 5, 4, 3),
        decoder_dim=1536,
    ),
    encoder=EncoderConfig(
        audio_channels=1,
        sampling_rate=24000,
        num_filters=64,
        upsampling_ratios=(8, 6, 5, 4),
        num_residual_layers=1,
        kernel_size=7,
        last_kernel_size=3,
        residual_kernel_size=3,
        compress=2,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        norm_eps=1e-5,
        rope_theta=10000.0,
        codebook_size=2048,
        codebook_dim=256,
        vector_quantization_hidden_dimension=256,
        num_quantizers=32,
        num_semantic_quantizers=1,
    ),
)


@dataclass(frozen=True, slots=True)
class _Positions:
    max_model_len: int


def qwen3_tts_footprint(content: Any, options: LoadOptions) -> Footprint:
    """The footprint of the model with this parsed config.json. `options.device` has no effect. Raises StartupError."""
    faults: list[str] = []
    config = parse_config(content, faults)
    if config is None:
        raise StartupError(f"config.json cannot be used: {'; '.join(faults)}. Take it from the released checkpoint")
    nowhere = torch.device("meta")
    positions = positions_of(config, options)
    blank = BlankWeights("", {}, nowhere, options.dtype, options.dtype)
    networks = read_networks(config, positions, blank, ReferenceAttention())
    exact = BlankWeights("", {}, nowhere, torch.float32, torch.float32)
    speaker = encoder = None
    if config.kind == "base":
        described = read_speaker(content.get("speaker_encoder_config"), config.talker.hidden_size, faults)
        if described is None:
            raise StartupError(f"config.json cannot be used: {'; '.join(faults)}. Take it from the released checkpoint")
        speaker = SpeakerEncoder(described, exact)
        encoder = Encoder(RELEASED_CODEC.encoder, RELEASED_CODEC.encoder_valid_num_quantizers, exact)
    dtype = codec_dtype_of(options, torch.device("cuda"))
    decoder = FusedDecoder(RELEASED_CODEC.decoder, exact, dtype, codec_reference, TorchOps())
    codec = Qwen3Codec(RELEASED_CODEC, decoder, encoder, speaker)
    info: Any = _Positions(positions)
    model = Qwen3TTS(
        config, info, cast(Any, None), networks, codec, device=nowhere, dtype=options.dtype, capturable=False
    )
    return Footprint(
        weights=bytes_of(networks),
        adapters=0,
        codec=bytes_of(codec),
        single_stream=0,
        slot=bytes_of(model.allocate(1, torch.empty(1, model.numbers, dtype=torch.int64, device=nowhere))),
        layout=model.layout,
        positions=positions,
        working=WORKING_BASE + options.max_slots * step_bytes(RELEASED_CODEC.decoder, dtype),
    )
