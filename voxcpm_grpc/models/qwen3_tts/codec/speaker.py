"""The speaker encoder: an ECAPA-TDNN from a recording to the vector of its voice.

Dimensions: c channels, t frames of the spectrogram.

The vector depends on statistics of the whole recording. So each block passes over all of it in slices of bounded size,
with as many frames on both sides as its convolutions reach.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.qwen3_tts.codec.mel import HOP, PADDING, MelSpectrogram
from voxcpm_grpc.models.qwen3_tts.config.codec import SpeakerConfig

LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Tdnn:
    """A convolution whose output has the length of its input, which is mirrored at both ends."""

    weight: Tensor  # [out, in, k]
    bias: Tensor
    dilation: int = 1

    @property
    def reach(self) -> int:
        return self.dilation * (self.weight.shape[-1] - 1) // 2

    def linear(self, x: Tensor) -> Tensor:
        """x [1, c, t] -> [1, out, t] without the activation."""
        if self.reach:
            x = F.pad(x, (self.reach, self.reach), mode="reflect")
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return F.conv1d(x, self.weight, self.bias, dilation=self.dilation)

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear(x).relu_()

    @classmethod
    def load(cls, weights: Weights, name: str, outputs: int, inputs: int, kernel: int = 1, dilation: int = 1) -> Tdnn:
        weight, bias = weights.take(f"{name}.weight", outputs, inputs, kernel), weights.take(f"{name}.bias", outputs)
        return cls(weight, bias, dilation)


class Block:
    """A residual block of convolutions over groups of channels, with a gate of each channel for the whole recording."""

    def __init__(self, config: SpeakerConfig, number: int, weights: Weights) -> None:
        size, kernel, dilation = (
            values[number] for values in (config.enc_channels, config.enc_kernel_sizes, config.enc_dilations)
        )
        self._groups, width = config.enc_res2net_scale, size // config.enc_res2net_scale
        self._first = Tdnn.load(weights, "tdnn1.conv", size, size)
        self._narrow = [
            Tdnn.load(weights, f"res2net_block.blocks.{part}.conv", width, width, kernel, dilation)
            for part in range(self._groups - 1)
        ]
        self._last = Tdnn.load(weights, "tdnn2.conv", size, size)
        self._squeeze = Tdnn.load(weights, "se_block.conv1", config.enc_se_channels, size)
        self._excite = Tdnn.load(weights, "se_block.conv2", size, config.enc_se_channels)
        self.reach = sum(conv.reach for conv in self._narrow)

    def branch(self, x: Tensor) -> Tensor:
        """The branch of x [1, c, t] before the gate."""
        first, *others = self._first(x).chunk(self._groups, dim=1)
        parts, last = [first], torch.zeros_like(first)
        for conv, part in zip(self._narrow, others, strict=True):
            parts.append(last := conv(part + last))
        return self._last(torch.cat(parts, dim=1))

    def gate(self, branch: Tensor) -> Tensor:
        """The gates [1, c, 1] of the whole branch."""
        return self._excite.linear(self._squeeze(branch.mean(-1, keepdim=True))).sigmoid()


class SpeakerEncoder:
    """Encodes recordings to vectors [enc_dim] in float32."""

    def __init__(self, config: SpeakerConfig, weights: Weights) -> None:
        """Take the weights, whose names begin with `speaker_encoder.` in the file."""
        weights = replace(weights, dtype=torch.float32, table=torch.float32)
        self.config, self.mel = config, MelSpectrogram(config, weights.device)
        sizes, wide, attention = config.enc_channels, config.enc_channels[-1], config.enc_attention_channels
        kernels, dilations = config.enc_kernel_sizes, config.enc_dilations
        self._first = Tdnn.load(weights, "blocks.0.conv", sizes[0], config.mel_dim, kernels[0], dilations[0])
        self._blocks = [Block(config, i, weights.scope(f"blocks.{i}")) for i in range(1, len(sizes) - 1)]
        self._join = Tdnn.load(weights, "mfa.conv", wide, wide, kernels[-1], dilations[-1])
        self._attention = Tdnn.load(weights, "asp.tdnn.conv", attention, 3 * wide)
        self._weigh = Tdnn.load(weights, "asp.conv", wide, attention)
        self._project = Tdnn.load(weights, "fc", config.enc_dim, 2 * wide)
        mirrored = max(dilation * (kernel - 1) // 2 for kernel, dilation in zip(kernels, dilations, strict=True))
        self.least_samples = max(PADDING + 1, HOP * (mirrored + 1))  # the samples that are mirrored must be there

    @torch.inference_mode()
    def encode(self, waveform: Tensor, frames: int) -> Generator[None, None, Tensor]:
        """Computes the vector [enc_dim] of a recording [samples] on the device; `frames` of its spectrogram at once.

        Stops after each part of the work, so that it takes bounded time. Raises InvalidRequest if it is too short.
        """
        if len(waveform) < self.least_samples:
            rate = self.config.sample_rate
            raise InvalidRequest(
                f"the recording has {len(waveform)} samples ({1000 * len(waveform) / rate:.0f} ms), and this model "
                f"needs {self.least_samples} ({1000 * self.least_samples / rate:.0f} ms) or more; send a longer one"
            )
        windows = self.mel.windows(waveform)
        x = yield from _sliced(lambda part: self._first(self.mel(part.T)), windows.T, self._first.reach, frames)
        outputs = []
        for block in self._blocks:
            branch = yield from _sliced(block.branch, x, block.reach, frames)
            x = torch.addcmul(x, branch, block.gate(branch))
            outputs.append(x)
        x = yield from _sliced(self._join, torch.cat(outputs, dim=1), self._join.reach, frames)
        statistics = torch.cat(_statistics(x, torch.full_like(x[:, :1], 1 / x.shape[-1])), dim=1)
        logits = yield from _sliced(lambda part: self._weights(part, statistics), x, 0, frames)
        pooled = torch.cat(_statistics(x, logits.softmax(-1)), dim=1)
        return self._project.linear(pooled)[0, :, 0]

    def _weights(self, x: Tensor, statistics: Tensor) -> Tensor:
        """The logits of the weights of frames x [1, c, t]."""
        x = torch.cat([x, statistics.expand(-1, -1, x.shape[-1])], dim=1)
        return self._weigh.linear(self._attention(x).tanh())


def _sliced(function: Callable[[Tensor], Tensor], x: Tensor, reach: int, frames: int) -> Generator[None, None, Tensor]:
    """`function` of x [..., t], computed on slices of so many frames, whose results depend on `reach` frames around."""
    parts = []
    for start, stop in _slices(x.shape[-1], frames):
        first = max(0, start - reach)
        part = function(x[..., first : stop + reach])
        parts.append(part[..., start - first : stop - first])
        yield
    return torch.cat(parts, dim=-1)


def _slices(length: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + size, length)) for start in range(0, length, size))


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation of x [1, c, t] over its frames, [1, c, 1] each."""
    mean = (weights * x).sum(-1, keepdim=True)
    variance = (weights * (x - mean).square()).sum(-1, keepdim=True)
    return mean, variance.clamp(min=LEAST_VARIANCE).sqrt()
