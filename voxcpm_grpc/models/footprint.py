"""The memory of a model on a GPU, as its family computes it from a config.json alone."""

from __future__ import annotations

from dataclasses import dataclass

from voxcpm_grpc.models.base import KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory that a model takes on a GPU before the first step, in bytes."""

    weights: int  # bytes of the networks
    adapters: int  # bytes for LoRA adapters by request
    codec: int  # bytes of the audio codec's weights
    # Bytes of a second copy of some weights for the kernels of a single stream, on GPUs that support it.
    single_stream: int
    slot: int  # bytes of the state of a stream, without its KV pages
    layout: KVLayout
    positions: int  # positions of a request of full length
    working: int  # bytes, an estimate for LoadOptions.max_slots: steps, CUDA graphs and libraries
