"""The audio codec as an engine uses it: recordings and latents in chunks, beside the running streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority
from voxcpm_grpc.layers.streaming import StreamingNet
from voxcpm_grpc.models.base import Codec, upload
from voxcpm_grpc.models.voxcpm.codec.vae import Decoder
from voxcpm_grpc.models.voxcpm.config.abilities import LATENTS
from voxcpm_grpc.models.voxcpm.config.config import VAEConfig
from voxcpm_grpc.request import Role

# The codec converts so much audio at once. On a CPU a chunk delays the next step, so it takes less time than a step.
CHUNK_SECONDS = {"cuda": 2.0, "cpu": 0.32, "meta": 2.0}


class Conversion(Protocol):
    """Converts consecutive chunks [n, ...] of one waveform, from audio to latents or back."""

    @property
    def start(self) -> Tensor:
        """The memory before the first chunk."""
        ...

    def __call__(self, chunk: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The conversion of a chunk on the host, and the memory for the next chunk."""
        ...


class VoxCPMCodec(Codec):
    """The codec of all generations. With a graph pool, conversions are recorded there as CUDA graphs and replayed."""

    def __init__(
        self,
        config: VAEConfig,
        patch_size: int,
        encoder: StreamingNet,
        decoder: Decoder,
        device: torch.device,
        pool: GraphPool | None = None,
    ) -> None:
        self.config, self.patch_size, self.device = config, patch_size, device
        self.encoder, self.decoder = encoder, decoder
        self.samples_per_patch = patch_size * config.encode_hop  # samples at the input rate
        self.chunk_patches = max(1, round(CHUNK_SECONDS[device.type] * config.sample_rate / self.samples_per_patch))
        self._captured_encoding: Conversion | None = None
        self._captured_decoding: Conversion | None = None
        if pool is not None:
            samples = (self.chunk_patches * self.samples_per_patch,)
            patches = (self.chunk_patches, patch_size, config.latent_dim)
            self._captured_encoding = _CapturedConversion(self._encoding(), samples, pool)
            self._captured_decoding = _CapturedConversion(self._decoding(), patches, pool)

    def allocate(self, slots: int) -> Tensor:
        """The memory [slots, m] of decoders before their first patch."""
        return torch.zeros(slots, self.decoder.memory, dtype=self.decoder.dtype, device=self.device)

    @torch.inference_mode()
    def encode_chunk(self, waveform: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Latents [patches, P, D] of the next whole patches of one waveform [samples], and its memory [1, m]."""
        latents, memory = self.encoder(upload(waveform, self.device)[None, None], memory)
        return latents[0].T.unflatten(0, (-1, self.patch_size)).contiguous(), memory

    @torch.inference_mode()
    def decode_chunk(self, patches: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Audio [samples] of the next patches [n, P, D] of one waveform, and its memory [1, m]."""
        memory = memory.clone()
        only = torch.zeros(1, dtype=torch.int64, device=self.device)
        return self.decoder.decode(upload(patches, self.device)[None], memory, only)[0], memory

    def encode(self, waveform: np.ndarray, role: Role) -> Iterator[tuple[str, Tensor]]:
        """Latents [patches, P, D]. Zeros fill the first patch of a prompt, or the last one of a reference."""
        missing = -len(waveform) % self.samples_per_patch
        padded = np.pad(waveform, (missing, 0) if role is Role.PROMPT else (0, missing))
        convert = self._captured_encoding or self._encoding()
        chunks = _converted(padded, self.chunk_patches * self.samples_per_patch, convert)
        return ((LATENTS, chunk) for chunk in chunks)

    def decode(self, content: Mapping[str, np.ndarray]) -> Iterator[Tensor]:
        return _converted(content[LATENTS], self.chunk_patches, self._captured_decoding or self._decoding())

    def capture(self) -> VoxCPMCodec:
        pool = GraphPool(Priority.SPARE, self.device)
        return VoxCPMCodec(self.config, self.patch_size, self.encoder, self.decoder, self.device, pool)

    def _encoding(self) -> _EagerConversion:
        return _EagerConversion(self.encode_chunk, lambda: torch.zeros(1, self.encoder.memory, device=self.device))

    def _decoding(self) -> _EagerConversion:
        return _EagerConversion(self.decode_chunk, lambda: self.allocate(1))


def _converted(whole: np.ndarray, size: int, convert: Conversion) -> Iterator[Tensor]:
    """The conversion of an array in chunks of at most `size` entries."""
    memory = convert.start
    for chunk in torch.from_numpy(whole.astype(np.float32, copy=False)).split(size):
        if len(chunk):
            result, memory = convert(chunk, memory)
            yield result


@dataclass(frozen=True, slots=True)
class _EagerConversion:
    """A `Conversion` by calls. Its memory is on the device, allocated on the stream of the first chunk."""

    call: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    allocate: Callable[[], Tensor]

    @property
    def start(self) -> Tensor:
        return self.allocate()

    def __call__(self, chunk: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.call(chunk, memory)


class _CapturedConversion:
    """A `Conversion` by one graph launch between copies from and to the host, where its memory is.

    Zeros are appended to a shorter chunk, so it must be the last one. Results must be copied to the host as they are:
    a single kernel on the stream would slow down every graph (see `kernels.graph.stream`).
    """

    @torch.inference_mode()
    def __init__(self, eager: _EagerConversion, size: tuple[int, ...], pool: GraphPool) -> None:
        self._memory = eager.start
        self._chunk = torch.zeros(size, device=self._memory.device)
        self.start = self._memory.cpu().pin_memory()
        self._graph = Graph(lambda: eager(self._chunk, self._memory), pool)

    @torch.inference_mode()
    def __call__(self, chunk: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        padded = torch.zeros(self._chunk.shape, pin_memory=True)
        padded[: len(chunk)].view_as(chunk).copy_(chunk)
        self._chunk.copy_(padded, non_blocking=True)
        self._memory.copy_(memory, non_blocking=True)
        result, after = self._graph.replay()
        after = torch.empty_like(memory, pin_memory=True).copy_(after, non_blocking=True)
        return result[: len(result) * len(chunk) // len(padded)], after
