"""The parts of a step, each alone in a captured graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.replays import median_seconds
from voxcpm_grpc.engine.device.graphs import advance_buckets, bucket
from voxcpm_grpc.engine.device.rows import step_rows
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.models.voxcpm.model import VoxCPM


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Milliseconds of each part without the others. A step runs audio and language models at the same time."""

    streams: int
    patch_ms: float  # the generation of a patch, of which
    diffusion_ms: float  # LocDiT in all evaluations
    language_ms: float  # the encoder of patches and the language models, of which
    encoder_ms: float  # LocEnc
    audio_ms: float  # the codec's decoder


@torch.inference_mode()
def measure(engine: Engine, streams: int, timesteps: int) -> Parts:
    """Measure the parts for the first slots, in the state in which the streams before have left them.

    As in a step, the language models advance as many rows as the next larger captured size has. The engine must be
    idle. It must not serve afterwards.
    """
    model, state, kv = engine.model, engine.runner.slots.state, engine.runner.kv
    assert isinstance(model, VoxCPM)
    networks, own, slot = model.networks, state.model, torch.arange(streams, device=engine.runner.slots.device)
    advanced = torch.arange(bucket(advance_buckets(len(state.seed) - 1), streams), device=slot.device)
    page, position = kv.page_size, state.position.clone()

    def diffuse() -> None:
        mu, noise = networks.mu(own.semantic[slot], own.acoustic[slot], None), torch.zeros_like(own.condition[slot])
        model.flow(noise.float(), mu, own.condition[slot], own.cfg[slot], timesteps, None)

    def advance() -> None:
        state.position.copy_(position)  # each replay has the same contexts
        rows = step_rows(advanced, state, page, state.block_table.shape[1] * page)
        model.advance(rows, state, kv)

    work = {
        "patch_ms": partial(model.generate, slot, timesteps, state),
        "diffusion_ms": diffuse,
        "language_ms": advance,
        "encoder_ms": lambda: model.encode_patch(own.condition[advanced]),
        "audio_ms": lambda: model.decode(slot, state),
    }
    return Parts(streams=streams, **{name: median_seconds(call) * 1e3 for name, call in work.items()})
