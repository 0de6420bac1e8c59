"""The parts of a step, each alone in a captured graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.replays import median_seconds
from voxcpm_grpc.engine.device.graphs import advance_buckets, bucket
from voxcpm_grpc.engine.device.rows import step_rows
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.models.voxcpm.model import VoxCPM


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Milliseconds of each part without the others. A step runs audio and language models at the same time."""

    streams: int
    patch_ms: float  # the generation of a patch or of the codes of a frame, of which
    diffusion_ms: float | None = None  # LocDiT in all evaluations, in VoxCPM
    language_ms: float  # the encoder of patches and the language models, of which
    encoder_ms: float | None = None  # LocEnc, in VoxCPM
    audio_ms: float  # the codec's decoder


@torch.inference_mode()
def measure(engine: Engine, streams: int, timesteps: int | None) -> Parts:
    """Measure the parts for the first slots, in the state in which the streams before have left them.

    timesteps: flow-matching steps, None for those of the model or for a model without

    As in a step, the language models advance as many rows as the next larger captured size has. The engine must be
    idle. It must not serve afterwards.
    """
    model, state, kv = engine.model, engine.runner.slots.state, engine.runner.kv
    slot = torch.arange(streams, device=engine.runner.slots.device)
    advanced = torch.arange(bucket(advance_buckets(len(state.seed) - 1), streams), device=slot.device)
    page, position = kv.page_size, state.position.clone()
    variant = model.variants[-1] if timesteps is None else timesteps

    def advance() -> None:
        state.position.copy_(position)  # each replay has the same contexts
        rows = step_rows(advanced, state, page, state.block_table.shape[1] * page)
        model.advance(rows, state, kv)

    work = {
        "patch_ms": partial(model.generate, slot, variant, state),
        "language_ms": advance,
        "audio_ms": lambda: model.decode(slot, state),
    }
    if isinstance(model, VoxCPM):
        work |= _parts_of_voxcpm(model, slot, advanced, state.model, variant)
    return Parts(streams=streams, **{name: median_seconds(call) * 1e3 for name, call in work.items()})


def _parts_of_voxcpm(
    model: VoxCPM, slot: Tensor, advanced: Tensor, own: Any, timesteps: Any
) -> dict[str, Callable[[], object]]:
    def diffuse() -> None:
        mu, noise = (
            model.networks.mu(own.semantic[slot], own.acoustic[slot], None),
            torch.zeros_like(own.condition[slot]),
        )
        model.flow(noise.float(), mu, own.condition[slot], own.cfg[slot], timesteps, None)

    return {"diffusion_ms": diffuse, "encoder_ms": lambda: model.encode_patch(own.condition[advanced])}
