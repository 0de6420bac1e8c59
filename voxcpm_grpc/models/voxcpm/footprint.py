"""The memory that a model takes on a GPU, computed from its config.json alone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.layers.weights import BlankWeights, bytes_of
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.footprint import Footprint
from voxcpm_grpc.models.voxcpm.backend import choose_backend
from voxcpm_grpc.models.voxcpm.codec.codec import VoxCPMCodec
from voxcpm_grpc.models.voxcpm.codec.vae import Decoder, build_decoder, build_encoder, context_patches
from voxcpm_grpc.models.voxcpm.config.parse import parse_config
from voxcpm_grpc.models.voxcpm.family import architecture_of
from voxcpm_grpc.models.voxcpm.flow.persistent import encoder_weights, flow_weights
from voxcpm_grpc.models.voxcpm.kernels.packed_stack import packed_bytes
from voxcpm_grpc.models.voxcpm.kernels.persistent import VELOCITY
from voxcpm_grpc.models.voxcpm.lora import adapter_banks
from voxcpm_grpc.models.voxcpm.model import PRIMED_AT_ONCE, VoxCPM
from voxcpm_grpc.models.voxcpm.networks import Networks, read_networks

RELEASED_WIDTH = 2048  # the working memory of a model with this hidden size was measured
WORKING_BASE = int(2.1 * 2**30)  # bytes, of a model of this width: CUDA context, libraries, graphs, prefills
WORKING_PER_SLOT = 7 << 20  # bytes, likewise: the activations of a step
LIBRARIES = 1 << 30  # bytes of WORKING_BASE that do not depend on the width


@dataclass(frozen=True, slots=True)
class _HalfDecoder:
    """The size and the dtype of a fused decoder, which cannot be built without a GPU."""

    memory: int
    dtype: torch.dtype


def voxcpm_footprint(content: Any, options: LoadOptions) -> Footprint:
    """The footprint of the model with this parsed config.json. `options.device` has no effect. Raises StartupError."""
    config = parse_config({**content, "architecture": architecture_of(content)})
    positions = options.max_model_len or config.max_length
    if not 1 <= positions <= config.lm_config.max_position_embeddings:
        raise StartupError(
            f"max_model_len is {positions}, this model supports 1 to {config.lm_config.max_position_embeddings}"
        )
    nowhere = torch.device("meta")
    half = options.dtype.itemsize == 2
    codec_dtype = options.codec_dtype or (torch.float16 if half else torch.float32)
    plain = replace(options, device=nowhere, attention="reference", fused=False, codec_dtype=torch.float32)
    backend = choose_backend(plain, config.patch_size, config.feat_dim)
    banks = adapter_banks(options, nowhere)
    blank = BlankWeights("", {}, nowhere, options.dtype, config.table_dtype, banks=banks)
    networks = read_networks(config, blank, backend)
    codec_blank = BlankWeights("", {}, nowhere, torch.float32, torch.float32)
    encoder, net = build_encoder(config.vae, codec_blank), build_decoder(config.vae, codec_blank)
    decoder = cast(Decoder, _HalfDecoder(net.memory, codec_dtype))
    codec = VoxCPMCodec(config.vae, config.patch_size, encoder, decoder, nowhere)
    info: Any = _Positions(positions)
    model = VoxCPM(config, info, cast(Any, None), networks, cast(Any, None), cast(Any, None), codec, backend)
    # Streams that are primed decode all of these patches, where those of a step decode one.
    primed = min(options.max_slots, PRIMED_AT_ONCE["cuda"]) * context_patches(config.vae, config.patch_size)
    scaled = WORKING_BASE - LIBRARIES + max(options.max_slots, primed) * WORKING_PER_SLOT
    return Footprint(
        weights=bytes_of(networks) - bytes_of(banks) + bytes_of(model.rope),
        adapters=bytes_of(banks),
        codec=bytes_of(encoder) + bytes_of(net) * codec_dtype.itemsize // 4,
        single_stream=_single_stream(networks) if options.persistent and options.dtype == torch.bfloat16 else 0,
        slot=bytes_of(model.allocate(1, torch.empty(1, model.numbers, dtype=torch.int64, device=nowhere))),
        layout=model.layout,
        positions=positions,
        working=LIBRARIES + int(scaled * config.lm_config.hidden_size / RELEASED_WIDTH),
    )


@dataclass(frozen=True, slots=True)
class _Positions:
    max_model_len: int


def _single_stream(networks: Networks) -> int:
    """Bytes of the copies of weights for the kernels of a single stream; 0 for those that have another shape."""
    found = 0
    with suppress(KernelUnavailable):
        found += packed_bytes(len(flow_weights(networks.dit).layers), tail=VELOCITY)
    with suppress(KernelUnavailable):
        found += packed_bytes(len(encoder_weights(networks.encode_patch).layers))
    return found
