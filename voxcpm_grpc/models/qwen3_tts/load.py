"""Loads a model from a checkpoint directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from voxcpm_grpc import progress
from voxcpm_grpc.attention import Attention
from voxcpm_grpc.checkpoint import fingerprint
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.choice import choose_attention, choose_ops
from voxcpm_grpc.layers.weights import Weights, check, read_tensors
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.qwen3_tts.codec.codec import CODES, Qwen3Codec
from voxcpm_grpc.models.qwen3_tts.codec.load import load_codec
from voxcpm_grpc.models.qwen3_tts.codec.speaker import SpeakerEncoder
from voxcpm_grpc.models.qwen3_tts.config.abilities import ENDS, LANGUAGES, abilities, sampling_options
from voxcpm_grpc.models.qwen3_tts.config.codec import SpeakerConfig
from voxcpm_grpc.models.qwen3_tts.config.config import DEFAULT_POSITIONS, Generation, Qwen3Config
from voxcpm_grpc.models.qwen3_tts.config.parse import parse_model
from voxcpm_grpc.models.qwen3_tts.family import MODEL_FILE, MODEL_TYPE
from voxcpm_grpc.models.qwen3_tts.kernels import reference
from voxcpm_grpc.models.qwen3_tts.layouts import Layout
from voxcpm_grpc.models.qwen3_tts.model import Networks, Qwen3TTS
from voxcpm_grpc.models.qwen3_tts.predictor import Predictor
from voxcpm_grpc.models.qwen3_tts.sampling import CodeIds, PlainSampler, Sampler
from voxcpm_grpc.models.qwen3_tts.talker import (
    CodeEmbedding,
    FusedCodeEmbedding,
    StepInputs,
    Talker,
    TextProjection,
    TextTable,
)
from voxcpm_grpc.models.qwen3_tts.tokenizer import TextTokenizer
from voxcpm_grpc.request import ModelInfo


def load_qwen3_tts(directory: Path, content: Any, options: LoadOptions) -> Qwen3TTS:
    """The model in `directory`, with the parsed config.json `content`. Raises StartupError."""
    config, generation, codec_config, speaker_config = parse_model(directory, content)
    positions = positions_of(config, options)
    layout = _layout(directory, config)
    progress.report("the model is loading: its files are being read")
    path, tensors = read_tensors(directory, (MODEL_FILE,))
    table = tensors["talker.codec_head.weight"].dtype if "talker.codec_head.weight" in tensors else torch.float32
    taken = progress.counting("the model is loading: its tensors", len(tensors))
    weights = Weights(path.name, tensors, options.device, options.dtype, table, on_taken=taken)
    attention = choose_attention(options.attention, options.device)
    networks = read_networks(config, positions, weights, attention)
    speaker = _speaker(speaker_config, weights)
    check(weights)
    codec = load_codec(
        directory,
        codec_config,
        device=options.device,
        dtype=codec_dtype_of(options, options.device),
        speaker=speaker,
        reference_silence=options.reference_silence,
        on_taken=taken,
    )
    known = options.fingerprint() if options.fingerprint else fingerprint(directory)
    info = _info(directory, config, generation, codec, options, positions, known)
    return Qwen3TTS(
        config,
        info,
        layout,
        networks,
        codec,
        device=options.device,
        dtype=options.dtype,
        capturable=attention.capturable,
    )


def codec_dtype_of(options: LoadOptions, device: torch.device) -> torch.dtype:
    """The dtype of the codec's decoder on this device."""
    half = device.type == "cuda" and options.dtype.itemsize == 2
    return options.codec_dtype or (torch.float16 if half else torch.float32)


def positions_of(config: Qwen3Config, options: LoadOptions) -> int:
    """The positions of the longest sequence. Raises StartupError."""
    most = config.talker.max_position_embeddings
    positions = options.max_model_len or min(DEFAULT_POSITIONS, most)
    if not 1 <= positions <= most:
        raise StartupError(f"max_model_len is {positions}, this model supports 1 to {most}")
    return positions


def read_networks(config: Qwen3Config, positions: int, weights: Weights, attention: Attention) -> Networks:
    """Take all tensors of the talker from `weights`. Call `layers.weights.check` afterwards, which reports faults."""
    device, scope = weights.device, weights.scope("talker")
    fused = device.type == "cuda" and attention.capturable
    ops = choose_ops(fused, device, packed=weights.dtype == torch.float32, folds=False)
    text = TextProjection(config, scope)
    codes = (FusedCodeEmbedding if fused else CodeEmbedding)(config, scope)
    rows = text if device.type == "cpu" else text.table()
    pad = config.text_marks.tts_pad_token_id
    inputs, slots = StepInputs(codes, rows, pad), reference
    if fused and isinstance(rows, TextTable):
        from voxcpm_grpc.models.qwen3_tts.kernels import slot_state as slots
        from voxcpm_grpc.models.qwen3_tts.kernels.embeddings import FusedInputs

        inputs = FusedInputs(codes.table, codes.starts, rows.rows, pad)
    return Networks(
        text=rows,
        codes=codes,
        inputs=inputs,
        talker=Talker(config, positions, attention, ops, scope),
        predictor=Predictor(config, codes, ops, scope.scope("code_predictor"), fused=fused),
        slots=slots,
        sampler=_choose_sampler(config, device, fused=fused),
    )


def _choose_sampler(config: Qwen3Config, device: torch.device, *, fused: bool) -> Sampler:
    ids = CodeIds(
        groups=config.groups,
        codes=config.codes,
        vocabulary=config.talker.vocab_size,
        end=config.marks.codec_eos_token_id,
    )
    if fused:
        from voxcpm_grpc.models.qwen3_tts.kernels.draw import MOST, FusedSampler

        if max(ids.codes, ids.vocabulary) <= MOST:
            return FusedSampler(ids)
    return PlainSampler(ids, device)


def _layout(directory: Path, config: Qwen3Config) -> Layout:
    faults: list[str] = []
    layout = Layout.of(config, TextTokenizer(directory), faults)
    if faults:
        raise StartupError(f"{directory} cannot be used: {'; '.join(faults)}. Take all files from one release")
    return layout


def _speaker(config: SpeakerConfig | None, weights: Weights) -> SpeakerEncoder | None:
    if config is None:
        return None
    return SpeakerEncoder(config, replace(weights.scope("speaker_encoder"), dtype=torch.float32))


def _info(
    directory: Path,
    config: Qwen3Config,
    generation: Generation,
    codec: Qwen3Codec,
    options: LoadOptions,
    positions: int,
    known: str,
) -> ModelInfo:
    """The description of the model for clients. Its fingerprint is `known`."""
    sizes = codec.config
    languages = tuple(tag for tag, name in LANGUAGES.items() if name in config.languages)
    return ModelInfo(
        name=options.name or directory.resolve().name,
        architecture=MODEL_TYPE,
        fingerprint=known,
        input_sample_rate=sizes.input_sample_rate,
        output_sample_rate=sizes.output_sample_rate,
        samples_per_step=sizes.decode_upsample_rate,
        input_samples_per_step=sizes.encode_downsample_rate,
        max_model_len=positions,
        max_slots=options.max_slots,
        options=sampling_options(config, generation),
        ends=ENDS,
        abilities=abilities(config),
        speakers=tuple(sorted(config.speakers)) if config.kind == "custom_voice" else (),
        tracks=(CODES,),
        speech_languages=languages,
        reads_transcripts=True,
        device=str(options.device),
        dtype=str(options.dtype).removeprefix("torch."),
        codec_dtype=str(codec.decoder.dtype).removeprefix("torch."),
        languages=languages,
    )
