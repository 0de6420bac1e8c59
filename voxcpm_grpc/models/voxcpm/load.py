"""Loads a model of any generation from a checkpoint directory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from voxcpm_grpc import progress
from voxcpm_grpc.abilities import LatentShape
from voxcpm_grpc.checkpoint import fingerprint, languages
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.weights import Weights, check, read_tensors, split
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.voxcpm import lora
from voxcpm_grpc.models.voxcpm.backend import choose_backend
from voxcpm_grpc.models.voxcpm.codec.codec import VoxCPMCodec
from voxcpm_grpc.models.voxcpm.codec.vae import Decoder, StreamingDecoder, build_decoder, build_encoder, context_patches
from voxcpm_grpc.models.voxcpm.compiled import parts
from voxcpm_grpc.models.voxcpm.compiled.files import Compiled, CompiledFiles
from voxcpm_grpc.models.voxcpm.config.abilities import ENDS, LATENTS, abilities, sampling_options
from voxcpm_grpc.models.voxcpm.config.config import VoxCPMConfig
from voxcpm_grpc.models.voxcpm.config.generation import Generation, read_generation
from voxcpm_grpc.models.voxcpm.config.parse import parse_config
from voxcpm_grpc.models.voxcpm.family import CODEC_FILES, MODEL_FILES, architecture_of
from voxcpm_grpc.models.voxcpm.flow.flow import build_schedules
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT
from voxcpm_grpc.models.voxcpm.model import VoxCPM
from voxcpm_grpc.models.voxcpm.networks import read_networks
from voxcpm_grpc.models.voxcpm.prompt import PromptLayout
from voxcpm_grpc.models.voxcpm.text.tokenizer import TextTokenizer
from voxcpm_grpc.request import ModelInfo

logger = logging.getLogger(__name__)


def load_voxcpm(directory: Path, content: Any, options: LoadOptions) -> VoxCPM:
    """The model in `directory`, with the parsed config.json `content`. Raises StartupError."""
    config = parse_config({**content, "architecture": architecture_of(content)})
    positions = options.max_model_len or config.max_length
    if not 1 <= positions <= config.lm_config.max_position_embeddings:
        raise StartupError(
            f"max_model_len is {positions}, this model supports 1 to {config.lm_config.max_position_embeddings}"
        )
    if not options.timesteps or not all(1 <= n <= 100 for n in options.timesteps):
        raise StartupError(f"timesteps are {options.timesteps}; name one or more counts from 1 to 100")
    generation = read_generation(directory)
    backend = choose_backend(options, config.patch_size, config.feat_dim)
    backend.compile_ahead(config)
    tokenizer = TextTokenizer(directory / "tokenizer.json", config.lm_config.vocab_size)
    progress.report("the model is loading: its files are being read")
    model_path, model_tensors = read_tensors(directory, MODEL_FILES)
    codec_path, codec_tensors = read_tensors(directory, CODEC_FILES)
    codec_tensors = split(model_tensors, "audio_vae.") | codec_tensors  # the file of the codec wins, as in training
    device, table = options.device, config.table_dtype
    if options.merge_lora:
        lora.merge(options.merge_lora, model_tensors, table)
    banks = lora.adapter_banks(options, device)
    taken = progress.counting("the model is loading: its tensors", len(model_tensors) + len(codec_tensors))
    weights = Weights(model_path.name, model_tensors, device, options.dtype, table, on_taken=taken, banks=banks)
    codec_weights = Weights(codec_path.name, codec_tensors, device, torch.float32, torch.float32, on_taken=taken)
    encoder, decoder = build_encoder(config.vae, codec_weights), build_decoder(config.vae, codec_weights)
    networks = read_networks(config, weights, backend)
    check(weights, codec_weights)
    encoder, decoder = backend.encoder(encoder), backend.decoder(decoder)
    known = options.fingerprint() if options.fingerprint else fingerprint(directory)
    found, compile_command = _compiled(directory, config, networks.dit, decoder, known, options)
    if isinstance(decoder, StreamingDecoder):
        decoder = parts.decoder_of(found, decoder)
    codec = VoxCPMCodec(config.vae, config.patch_size, encoder, decoder, device)
    schedules = build_schedules(networks.dit, options.timesteps, table, mean=config.mean_mode)
    flow = backend.flow(networks.dit, schedules, parts.evaluations_of(found))
    encode_patch = backend.patch_encoder(networks.encode_patch)
    info = _info(directory, config, generation, options, positions, known, codec_dtype=decoder.dtype)
    layout = PromptLayout(
        tokenize=tokenizer,
        patch_shape=(config.patch_size, config.feat_dim),
        context=context_patches(config.vae, config.patch_size),
    )
    members = networks, flow, encode_patch, codec, backend, banks
    return VoxCPM(config, info, layout, *members, compile_command, options.timesteps)


def _info(
    directory: Path, config: VoxCPMConfig, generation: Generation, options: LoadOptions, positions: int, known: str,
    *, codec_dtype: torch.dtype,
) -> ModelInfo:  # fmt: skip
    """The description of the model for clients. Its fingerprint is `known`."""
    name = options.name or directory.resolve().name
    return ModelInfo(
        name=name,
        architecture=config.architecture,
        fingerprint=known,
        input_sample_rate=config.vae.sample_rate,
        output_sample_rate=config.vae.output_rate,
        samples_per_step=config.patch_size * config.vae.decode_hop,
        input_samples_per_step=config.patch_size * config.vae.encode_hop,
        max_model_len=positions,
        max_slots=options.max_slots,
        options=sampling_options(options.timesteps, generation),
        ends=ENDS,
        abilities=abilities(references=config.takes_references, styles=config.takes_styles),
        tracks=(LATENTS,),
        latents=LatentShape(frames=config.patch_size, dim=config.feat_dim),
        device=str(options.device),
        dtype=str(options.dtype).removeprefix("torch."),
        codec_dtype=str(codec_dtype).removeprefix("torch."),
        languages=languages(directory, options.name or ""),
    )


def _compiled(
    directory: Path, config: VoxCPMConfig, dit: LocDiT, decoder: Decoder, known: str, options: LoadOptions
) -> tuple[dict[str, Compiled], tuple[str, ...]]:
    """The compiled parts that the cache has, and the command that compiles the others."""
    if options.compiled is None or not isinstance(decoder, StreamingDecoder):
        return {}, ()
    try:
        files = CompiledFiles.of(options.compiled, known, options.merge_lora)
        found = files.load(parts.loaders(dit, decoder, (config.patch_size, config.feat_dim)))
        missing = files.missing(parts.parts(options.max_slots))
    except OSError as error:
        logger.warning("the cache of compiled parts cannot be read: %s", error)
        return {}, ()
    command = "-m", "voxcpm_grpc.models.voxcpm.compile_parts", str(directory), str(torch.get_num_threads())
    command = *command, str(files.folder), str(options.merge_lora or ""), *missing
    return found, command if missing else ()
