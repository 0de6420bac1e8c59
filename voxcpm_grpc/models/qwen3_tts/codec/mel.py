"""Mel spectrograms as the speaker encoder reads them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.models.qwen3_tts.config.codec import SpeakerConfig

WIDTH = 1024  # samples of a window, and points of its transform
HOP = 256
PADDING = (WIDTH - HOP) // 2  # samples of the recording that are mirrored on both sides
HIGHEST_HZ = 12000.0
LEAST_MEL = 1e-5
LINEAR_HZ, LINEAR_MELS, MELS_PER_E = 1000.0, 15.0, 27.0 / np.log(6.4)  # Slaney's scale is linear, then logarithmic


class MelSpectrogram:
    """Logarithms of mel bands, float32, with Slaney's scale and norm."""

    def __init__(self, config: SpeakerConfig, device: torch.device) -> None:
        self._bands = torch.from_numpy(mel_bands(config.mel_dim, config.sample_rate)).to(device)  # [bands, bins]
        self._window = torch.hann_window(WIDTH, device=device)

    def windows(self, waveform: Tensor) -> Tensor:
        """A view of the windows [frames, WIDTH] of a recording [samples] of more than PADDING samples."""
        return F.pad(waveform[None, None], (PADDING, PADDING), mode="reflect")[0, 0].unfold(0, WIDTH, HOP)

    def __call__(self, windows: Tensor) -> Tensor:
        """The bands [1, bands, frames] of windows [frames, WIDTH]."""
        spectrum = torch.view_as_real(torch.fft.rfft(windows * self._window))
        magnitude = (spectrum.square().sum(-1) + 1e-9).sqrt()
        return (self._bands @ magnitude.T).clamp(min=LEAST_MEL).log()[None]


def mel_bands(bands: int, rate: int) -> np.ndarray:
    """The weight of each bin in each band, float32 [bands, WIDTH / 2 + 1], of triangles of equal area."""
    bins = np.linspace(0, rate / 2, WIDTH // 2 + 1)
    edges = _hertz(np.linspace(0, _mels(HIGHEST_HZ), bands + 2))
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


def _mels(hertz: float) -> float:
    if hertz < LINEAR_HZ:
        return hertz * LINEAR_MELS / LINEAR_HZ
    return LINEAR_MELS + np.log(hertz / LINEAR_HZ) * MELS_PER_E


def _hertz(mels: np.ndarray) -> np.ndarray:
    return np.where(
        mels < LINEAR_MELS,
        mels * LINEAR_HZ / LINEAR_MELS,
        LINEAR_HZ * np.exp((mels - LINEAR_MELS) / MELS_PER_E),
    )
