"""The codec's decoder on a CPU, compiled by PyTorch's compiler for a step of one stream or of several.

Dimensions: b streams, P latent frames of a patch, D latent channels, m values of the memory of a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from voxcpm_grpc.layers.compilable_streaming import compilable
from voxcpm_grpc.models.voxcpm.codec.vae import StreamingDecoder
from voxcpm_grpc.models.voxcpm.compiled.files import Compiled, load_library


def compilable_decoder(net: StreamingDecoder) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The definition of what is compiled, from a network of `with_cpu_modules` that is not packed.

    Patches [b, P, D] and memory [b, m] give audio [b, samples] and the next memory.
    """
    net = compilable(net)

    def decode(patches: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        audio, memory = net(patches.transpose(1, 2), memory)
        return audio[:, 0], memory

    return decode


def example(net: StreamingDecoder, patch: tuple[int, int], streams: int) -> tuple[Tensor, Tensor]:
    """Arguments of a step, for patches of (P, D)."""
    random = partial(torch.randn, generator=torch.Generator().manual_seed(streams))
    return random(streams, *patch), random(streams, net.memory) / 8


@torch.inference_mode()
def load_decoder(path: Path, net: StreamingDecoder, patch: tuple[int, int], streams: int) -> Compiled | None:
    """The decoder of a file; None if it cannot be loaded or differs from `net`."""
    patches, memory = example(net, patch, streams)
    audio, after = net(patches.transpose(1, 2), memory)
    return load_library(path, (patches, memory), (audio[:, 0], after))


class CompiledDecoder:
    """A `vae.Decoder` that has functions for one patch of each stream. `net` serves all other calls."""

    def __init__(self, net: StreamingDecoder, one: Compiled | None, several: Compiled | None) -> None:
        self.net, self.one, self.several = net, one, several

    @property
    def memory(self) -> int:
        return self.net.memory

    @property
    def dtype(self) -> torch.dtype:
        return self.net.dtype

    @torch.inference_mode()
    def decode(self, patches: Tensor, state: Tensor, slot: Tensor) -> Tensor:
        step = self.one if len(slot) == 1 else self.several
        if step is None or patches.shape[1] != 1:
            return self.net.decode(patches, state, slot)
        audio, memory = step(patches[:, 0].float().contiguous(), state[slot])
        state.index_copy_(0, slot, memory)
        return audio
