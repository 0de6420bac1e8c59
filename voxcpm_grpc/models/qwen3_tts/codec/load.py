"""Loads the codec from the folder speech_tokenizer of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

from voxcpm_grpc.layers.choice import choose_ops
from voxcpm_grpc.layers.weights import Weights, check, read_tensors
from voxcpm_grpc.models.qwen3_tts.codec.codec import Qwen3Codec
from voxcpm_grpc.models.qwen3_tts.codec.decoder import AudioDecoder, Decoder
from voxcpm_grpc.models.qwen3_tts.codec.encoder import Encoder
from voxcpm_grpc.models.qwen3_tts.codec.fused_decoder import FusedDecoder
from voxcpm_grpc.models.qwen3_tts.codec.speaker import SpeakerEncoder
from voxcpm_grpc.models.qwen3_tts.config.codec import CodecConfig, DecoderConfig

WEIGHTS = "speech_tokenizer/model.safetensors"


def load_codec(
    directory: Path,
    config: CodecConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    speaker: SpeakerEncoder | None = None,
    reference_silence: float = 0.0,
    on_taken: Callable[[], None] = lambda: None,
) -> Qwen3Codec:
    """The codec of the checkpoint in `directory`, whose configuration is `config`.

    dtype: of the decoder; the rest computes in float32
    speaker: the speaker encoder of a Base model, whose weights are in the file of the model; None: the codec decodes
        only, and the weights of its encoder are not kept
    reference_silence: see `Qwen3Codec`
    on_taken: called for each tensor

    Raises StartupError that lists all faults of the weights.
    """
    path, tensors = read_tensors(directory, (WEIGHTS,))
    name = path.relative_to(directory).as_posix()
    encoding = {name: tensors.pop(name) for name in list(tensors) if name.startswith("encoder.")}
    weights = Weights(name, tensors, device, torch.float32, torch.float32, on_taken=on_taken)
    decoder, encoder, files = read_decoder(config.decoder, weights.scope("decoder"), dtype), None, [weights]
    if speaker is not None:
        files.append(Weights(name, encoding, device, torch.float32, torch.float32, on_taken=on_taken))
        encoder = Encoder(config.encoder, config.encoder_valid_num_quantizers, files[1].scope("encoder"))
    check(*files)
    return Qwen3Codec(config, decoder, encoder, speaker, reference_silence=reference_silence)


def read_decoder(config: DecoderConfig, weights: Weights, dtype: torch.dtype) -> AudioDecoder:
    """The decoder that computes in `dtype`: kernels on a GPU that can run them, otherwise plain operations."""
    device = weights.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0) or find_spec("triton") is None:
        return Decoder(config, replace(weights, dtype=dtype))
    from voxcpm_grpc.models.qwen3_tts.kernels import codec

    return FusedDecoder(config, weights, dtype, codec, choose_ops(dtype.itemsize == 2, device))
