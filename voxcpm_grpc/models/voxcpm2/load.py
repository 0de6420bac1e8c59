"""Loads a model from a VoxCPM2 checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from voxcpm_grpc import progress
from voxcpm_grpc.checkpoint import CODEC_FILES, MODEL_FILES, fingerprint, languages
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.weights import Weights, check, read_tensors
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.voxcpm2.backend import choose_backend
from voxcpm_grpc.models.voxcpm2.codec import VoxCPM2Codec
from voxcpm_grpc.models.voxcpm2.config import parse_config
from voxcpm_grpc.models.voxcpm2.flow import build_schedules
from voxcpm_grpc.models.voxcpm2.model import VoxCPM2
from voxcpm_grpc.models.voxcpm2.networks import read_networks
from voxcpm_grpc.models.voxcpm2.prompt import PromptLayout
from voxcpm_grpc.models.voxcpm2.tokenizer import TextTokenizer
from voxcpm_grpc.models.voxcpm2.vae import build_decoder, build_encoder, decoder_context
from voxcpm_grpc.request import ModelInfo


def load_voxcpm2(directory: Path, content: Any, options: LoadOptions) -> VoxCPM2:
    """The model in `directory`, with the parsed config.json `content`. Raises StartupError."""
    config = parse_config(content)
    positions = options.max_model_len or config.max_length
    if not 1 <= positions <= config.lm_config.max_position_embeddings:
        raise StartupError(
            f"max_model_len is {positions}, this model supports 1 to {config.lm_config.max_position_embeddings}"
        )
    if not options.timesteps or not all(1 <= n <= 100 for n in options.timesteps):
        raise StartupError(f"timesteps are {options.timesteps}; name one or more counts from 1 to 100")
    backend = choose_backend(options, config.patch_size, config.feat_dim)
    tokenizer = TextTokenizer(directory / "tokenizer.json", config.lm_config.vocab_size)
    progress.report("the model is loading: its files are being read")
    model_path, model_tensors = read_tensors(directory, MODEL_FILES)
    codec_path, codec_tensors = read_tensors(directory, CODEC_FILES)
    device, table = options.device, config.table_dtype
    taken = progress.counting("the model is loading: its tensors", len(model_tensors) + len(codec_tensors))
    weights = Weights(model_path.name, model_tensors, device, options.dtype, table, on_taken=taken)
    codec_weights = Weights(codec_path.name, codec_tensors, device, torch.float32, torch.float32, on_taken=taken)
    encoder, decoder = build_encoder(config.vae, codec_weights), build_decoder(config.vae, codec_weights)
    networks = read_networks(config, weights, backend)
    check(weights, codec_weights)
    codec = VoxCPM2Codec(config.vae, config.patch_size, encoder, backend.decoder(decoder), device)
    flow = backend.flow(networks.dit, build_schedules(networks.dit, options.timesteps, table))
    info = ModelInfo(
        name=options.name or directory.resolve().name,
        architecture="voxcpm2",
        fingerprint=options.fingerprint() if options.fingerprint else fingerprint(directory),
        input_sample_rate=config.vae.sample_rate,
        output_sample_rate=config.vae.out_sample_rate,
        patch_size=config.patch_size,
        latent_dim=config.feat_dim,
        samples_per_step=config.patch_size * config.vae.decode_hop,
        samples_per_patch=config.patch_size * config.vae.encode_hop,
        max_model_len=positions,
        max_slots=options.max_slots,
        timesteps=options.timesteps,
        device=str(device),
        dtype=str(options.dtype).removeprefix("torch."),
        codec_dtype=str(backend.codec_dtype).removeprefix("torch."),
        languages=languages(directory, options.name or ""),
    )
    layout = PromptLayout(
        tokenize=tokenizer,
        patch_shape=(config.patch_size, config.feat_dim),
        context=-(-decoder_context(config.vae) // config.patch_size),
    )
    return VoxCPM2(config, info, layout, networks, flow, codec, backend)
