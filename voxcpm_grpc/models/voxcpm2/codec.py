"""The audio codec as an engine uses it: recordings and latents in pieces, beside the running streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.kernels.graph import Graph, GraphPool, Priority
from voxcpm_grpc.models.base import Codec
from voxcpm_grpc.models.voxcpm2.config import VAEConfig
from voxcpm_grpc.models.voxcpm2.vae import Decoder, StreamingNet

PIECE_SECONDS = 2.0  # of audio that the codec handles at once


class Coding(Protocol):
    """A piece [n, ...] of one waveform, in latents or audio, to the other; each continues the one before it."""

    @property
    def start(self) -> Tensor:
        """The memory before the first piece."""
        ...

    def __call__(self, piece: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What becomes of a piece on the host, and the memory for the next."""
        ...


class VoxCPM2Codec(Codec):
    """Waveforms to latents and back, each piece continuing the last."""

    def __init__(
        self,
        config: VAEConfig,
        patch_size: int,
        encoder: StreamingNet,
        decoder: Decoder,
        device: torch.device,
        pool: GraphPool | None = None,
    ) -> None:
        """With a pool, pieces are recorded there as CUDA graphs and replayed."""
        self.config, self.patch_size, self.device = config, patch_size, device
        self.encoder, self.decoder = encoder, decoder
        self.samples_per_patch = patch_size * config.encode_hop  # of input
        self.piece = max(1, round(PIECE_SECONDS * config.sample_rate / self.samples_per_patch))  # patches
        self._captured_encoding: Coding | None = None
        self._captured_decoding: Coding | None = None
        if pool is not None:
            samples, patches = (self.piece * self.samples_per_patch,), (self.piece, patch_size, config.latent_dim)
            self._captured_encoding = _CapturedCoding(self._encoding(), samples, pool)
            self._captured_decoding = _CapturedCoding(self._decoding(), patches, pool)

    def allocate(self, slots: int) -> Tensor:
        """The memory [slots, m] of decoders that have not begun."""
        return torch.zeros(slots, self.decoder.memory, dtype=self.decoder.dtype, device=self.device)

    @torch.inference_mode()
    def encode_piece(self, waveform: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Latents [patches, P, D] of the next whole patches of one waveform [samples], and its memory [1, m]."""
        latents, memory = self.encoder(self._upload(waveform)[None, None], memory)
        return latents[0].T.unflatten(0, (-1, self.patch_size)).contiguous(), memory

    @torch.inference_mode()
    def decode_piece(self, patches: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Audio [samples] of the next patches [n, P, D] of one waveform, and its memory [1, m]."""
        memory = memory.clone()
        return self.decode_one(self._upload(patches), memory), memory

    def decode_one(self, patches: Tensor, state: Tensor) -> Tensor:
        """Audio [samples] of the next patches [n, P, D] of the one stream in state [1, m]."""
        return self.decoder.decode(patches[None], state, torch.zeros(1, dtype=torch.int64, device=self.device))[0]

    def encode(self, waveform: np.ndarray, *, pad_left: bool) -> Iterator[Tensor]:
        missing = -len(waveform) % self.samples_per_patch
        padded = np.pad(waveform, (missing, 0) if pad_left else (0, missing))
        return _coded(padded, self.piece * self.samples_per_patch, self._captured_encoding or self._encoding())

    def decode(self, latents: np.ndarray) -> Iterator[Tensor]:
        return _coded(latents, self.piece, self._captured_decoding or self._decoding())

    def capture(self) -> VoxCPM2Codec:
        pool = GraphPool(Priority.SPARE, self.device)
        return VoxCPM2Codec(self.config, self.patch_size, self.encoder, self.decoder, self.device, pool)

    def _encoding(self) -> _Calls:
        return _Calls(self.encode_piece, lambda: torch.zeros(1, self.encoder.memory, device=self.device))

    def _decoding(self) -> _Calls:
        return _Calls(self.decode_piece, lambda: self.allocate(1))

    def _upload(self, piece: Tensor) -> Tensor:
        if piece.device.type == "cpu" and self.device.type == "cuda":
            piece = piece.pin_memory().to(self.device, non_blocking=True)
        return piece


def _coded(whole: np.ndarray, size: int, code: Coding) -> Iterator[Tensor]:
    """What becomes of the whole, piece by piece of at most `size` entries."""
    memory = code.start
    for piece in torch.from_numpy(whole.astype(np.float32, copy=False)).split(size):
        if len(piece):
            result, memory = code(piece, memory)
            yield result


@dataclass(frozen=True, slots=True)
class _Calls:
    """A `Coding` by calls; its memory is on the device, and made on the stream that the first piece is coded on."""

    call: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    allocate: Callable[[], Tensor]

    @property
    def start(self) -> Tensor:
        return self.allocate()

    def __call__(self, piece: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.call(piece, memory)


class _CapturedCoding:
    """A `Coding` by one launch between copies from and to the host, where its memory is.

    Zeros fill a piece that is shorter; they come behind it, so it must be the last. What follows the graph must be
    copied to the host at once and as it lies: a single kernel beside it could do what `kernels.graph.stream` tells of.
    """

    @torch.inference_mode()
    def __init__(self, calls: _Calls, size: tuple[int, ...], pool: GraphPool) -> None:
        self._memory = calls.start
        self._piece = torch.zeros(size, device=self._memory.device)
        self.start = self._memory.cpu().pin_memory()
        self._graph = Graph(lambda: calls(self._piece, self._memory), pool)

    @torch.inference_mode()
    def __call__(self, piece: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        filled = torch.zeros(self._piece.shape, pin_memory=True)
        filled[: len(piece)].view_as(piece).copy_(piece)
        self._piece.copy_(filled, non_blocking=True)
        self._memory.copy_(memory, non_blocking=True)
        result, after = self._graph.replay()
        after = torch.empty_like(memory, pin_memory=True).copy_(after, non_blocking=True)
        return result[: len(result) * len(piece) // len(filled)], after
