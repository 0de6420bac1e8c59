"""The codecs of tiny Qwen3-TTS checkpoints, their official results, and streams of them."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from tools.make_qwen3_checkpoint import write_checkpoint
from tools.qwen3_codec_inputs import FRAMES, codes
from voxcpm_grpc.layers.weights import Weights, check, read_tensors, split
from voxcpm_grpc.models.base import Codec
from voxcpm_grpc.models.qwen3_tts.codec.codec import Qwen3Codec
from voxcpm_grpc.models.qwen3_tts.codec.decoder import AudioDecoder, DecoderState
from voxcpm_grpc.models.qwen3_tts.codec.load import load_codec
from voxcpm_grpc.models.qwen3_tts.codec.speaker import SpeakerEncoder
from voxcpm_grpc.models.qwen3_tts.config.codec import CodecConfig, read_codec, read_speaker
from voxcpm_grpc.request import Role

GOLDENS = Path(__file__).parents[2] / "goldens" / "qwen3_tts" / "codec"
MANIFEST = json.loads((GOLDENS / "manifest.json").read_text())
SHALLOW, DEEP = "base06", "base17"  # variants whose decoders have two and eight layers of attention
CPU = torch.device("cpu")


@functools.cache
def checkpoint(variant: str) -> Path:
    """A folder with a tiny checkpoint, which must not be changed."""
    folder = tempfile.TemporaryDirectory()
    _FOLDERS.append(folder)
    write_checkpoint(Path(folder.name), variant)
    return Path(folder.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the tests end


@functools.cache
def codec(
    variant: str, *, device: torch.device = CPU, dtype: torch.dtype = torch.float32, silence: float = 0.0
) -> Qwen3Codec:
    directory = checkpoint(variant)
    speaker = speaker_encoder(directory, device)
    config = codec_config(directory)
    return load_codec(directory, config, device=device, dtype=dtype, speaker=speaker, reference_silence=silence)


def codec_config(directory: Path) -> CodecConfig:
    faults = list[str]()
    config = read_codec(json.loads((directory / "speech_tokenizer" / "config.json").read_text()), faults)
    assert config, faults
    return config


def speaker_encoder(directory: Path, device: torch.device = CPU) -> SpeakerEncoder:
    data, faults = json.loads((directory / "config.json").read_text()), list[str]()
    config = read_speaker(data["speaker_encoder_config"], data["talker_config"]["hidden_size"], faults)
    assert config, faults
    path, tensors = read_tensors(directory, ("model.safetensors",))
    own = split(tensors, "speaker_encoder.")
    weights = Weights(path.name, own, device, torch.bfloat16, torch.bfloat16)  # as a model reads its own
    encoder = SpeakerEncoder(config, weights)
    check(weights)
    return encoder


@functools.cache
def golden(variant: str) -> dict[str, np.ndarray]:
    return load_file(GOLDENS / f"{variant}.safetensors")


def stream(
    decoder: AudioDecoder, frames: Tensor, size: int, slot: int = 0, state: DecoderState | None = None
) -> Tensor:
    """The audio of frames [n, q] in calls of `size` frames."""
    state = state or decoder.allocate(1)
    slots = torch.full((1,), slot, dtype=torch.int64, device=decoder.device)
    return torch.cat([decoder.decode(part[None], slots, state)[0] for part in frames.split(size)])


@functools.cache
def whole(variant: str) -> Tensor:
    """The audio of all frames of the inputs, in few calls."""
    return stream(codec(variant).decoder, torch.from_numpy(codes()), FRAMES // 4)


def content(codec: Codec, waveform: np.ndarray, role: Role) -> dict[str, np.ndarray]:
    """The content of a voice, as a front joins it."""
    return joined(codec.encode(waveform, role))


def joined(chunks: Iterable[tuple[str, Tensor]]) -> dict[str, np.ndarray]:
    arrays: dict[str, list[np.ndarray]] = {}
    for name, chunk in chunks:
        assert chunk.is_contiguous()
        arrays.setdefault(name, []).append(chunk.cpu().numpy().copy())
    return {name: np.concatenate(parts) for name, parts in arrays.items()}
