"""The windows of the convolutions of a decoder that runs from window to window, and the memory that they take.

The windows of a stream follow each other in a row of a workspace. The window of a module holds its past input, then its
new input, as rows of contiguous channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from voxcpm_grpc.models.qwen3_tts.config.codec import DILATIONS, KERNEL, DecoderConfig

ALIGNMENT = 64  # elements: a kernel can read from the start of a window 16 bytes at a time
RUN = 1024  # elements that one program of `load_windows` copies


@dataclass(frozen=True, slots=True)
class Window:
    """The input of a module with memory: `reach` past samples, then `rate` new samples for each frame."""

    channels: int
    reach: int
    rate: int
    codes: bool = False  # it is in front of the transformer, which may have more frames than the modules behind it


@dataclass(frozen=True, slots=True)
class Layout:
    """The windows of a stream in its row of the workspace, for a number of frames."""

    windows: tuple[Window, ...]
    starts: tuple[int, ...]  # elements from the start
    samples: tuple[int, ...]  # of each window, past and new ones
    width: int
    runs: Tensor  # int32 on the host; `load_windows` takes it

    def views(self, workspace: Tensor) -> list[Tensor]:
        """The windows [b, reach + T, c] in a workspace [b, width]."""
        return [
            workspace[:, start : start + count * w.channels].unflatten(1, (-1, w.channels))
            for start, count, w in zip(self.starts, self.samples, self.windows, strict=True)
        ]


def windows_of(config: DecoderConfig) -> tuple[Window, ...]:
    """The windows in the order of the modules."""
    return tuple(_windows(config))


def _windows(config: DecoderConfig) -> Iterator[Window]:
    yield Window(config.codebook_dim, 2, 1, codes=True)
    rate, size = 1, config.decoder_dim
    for ratio in config.upsampling_ratios:
        rate *= ratio
        yield Window(config.latent_dim, KERNEL - 1, rate)
    yield Window(config.latent_dim, KERNEL - 1, rate)
    for factor in config.upsample_rates:
        yield Window(size, 1, rate)
        rate, size = rate * factor, size // 2
        for dilation in DILATIONS:
            yield Window(size, (KERNEL - 1) * dilation, rate)
    yield Window(size, KERNEL - 1, rate)


def lay_out(windows: tuple[Window, ...], codes: int, frames: int) -> Layout:
    """The layout for so many frames of codes, of which the last `frames` pass the modules behind the transformer."""
    starts, counts, runs, offset, start = [], [], [], 0, 0
    for w in windows:
        starts.append(start)
        new = (codes if w.codes else frames) * w.rate
        counts.append(w.reach + new)
        size = w.reach * w.channels
        for begin in range(0, size, RUN):
            runs.append((offset + begin, start + begin, start + new * w.channels + begin, min(RUN, size - begin)))
        offset, start = offset + size, -(-(start + size + new * w.channels) // ALIGNMENT) * ALIGNMENT
    return Layout(windows, tuple(starts), tuple(counts), start, torch.tensor(runs, dtype=torch.int32))


def step_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes that a frame of a stream takes while it is decoded.

    These are the windows, and of the module with the most samples the sums float32 in front of it and behind it, and
    its input.
    """
    windows = windows_of(config)
    largest = max(w.channels * w.rate for w in windows)
    return lay_out(windows, 1, 1).width * dtype.itemsize + largest * (2 * 4 + dtype.itemsize)
