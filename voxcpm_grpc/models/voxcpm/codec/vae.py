"""The networks of the audio codec: causal convolutions with memory, so that chunks of any length join exactly.

Dimensions: b sequences, c channels, T samples or latent frames at the rate of a module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxcpm_grpc.layers.streaming import (
    CausalConv,
    CausalUpsample,
    DelayLine,
    Module,
    ResidualUnit,
    Snake,
    StreamingNet,
)
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.config.config import VAE2Config, VAEConfig


@dataclass(frozen=True, slots=True)
class ChannelAffine:
    scale: Tensor  # [c, 1]
    bias: Tensor

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        return x * self.scale + self.bias


@dataclass(frozen=True, slots=True)
class ChannelConcat:
    """Appends channels that are the same for every sample."""

    channels: Tensor  # [c', 1]

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        return torch.cat([x, self.channels.expand(len(x), -1, x.shape[-1])], dim=1)


def saturate(x: Tensor, line: DelayLine) -> Tensor:
    return torch.tanh(x)


class StreamingDecoder(StreamingNet):
    """The reference for every faster decoder of latents. Streams keep their memory in slots."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the memory."""
        return torch.float32

    @property
    def has_kernels(self) -> bool:
        """True for the modules of the released decoders, for which `fused_vae` has kernels."""
        narrow, wide = self.modules[:2]
        depthwise = isinstance(narrow, CausalConv) and narrow.groups > 1 and isinstance(wide, CausalConv)
        # A dense convolution of width 1, besides the first one, and a concatenation belong to a conditioning.
        return depthwise and not any(isinstance(m, CausalConv | ChannelConcat) for m in self.modules[2:-2])

    @torch.inference_mode()
    def decode(self, patches: Tensor, state: Tensor, slot: Tensor) -> Tensor:
        """Audio [b, samples] of the next patches [b, n, P, D] of the streams in `slot` [b] of state [slots, m].

        Updates their memory, and never waits for the host. The memory of a slot that several streams share is
        undefined.
        """
        frames = patches.flatten(1, 2).transpose(1, 2).float()  # [b, D, n * P]
        audio, memory = self(frames, state[slot])
        state.index_copy_(0, slot, memory)
        return audio[:, 0]


class NetBuilder:
    """Takes modules from a checkpoint in the order in which they run, and records the size of their memory."""

    def __init__(self, weights: Weights, depthwise: bool) -> None:
        self.weights, self.depthwise = weights, depthwise
        self.modules: list[Module] = []
        self.tails: list[tuple[int, int]] = []

    def add(self, module: Module) -> None:
        self.modules.append(module)

    def groups(self, channels: int) -> int:
        """The groups of a wide convolution: its channels, or one group if the checkpoint has dense ones."""
        return channels if self.depthwise else 1

    def conv(self, name: str, size: int, inputs: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> CausalConv:
        weight, bias = self._normalized(name, (size, inputs // groups, kernel), size)
        if kernel > 1:
            self.tails.append((inputs, (kernel - 1) * dilation))
        return CausalConv(weight, bias, 1, dilation, groups)

    def downsample(self, name: str, size: int, inputs: int, stride: int, reach: int) -> CausalConv:
        """A convolution of kernel 2s and stride s, which needs `reach` samples of past input, s or more.

        With more than s, its last samples wait for the next chunk.
        """
        weight, bias = self._normalized(name, (size, inputs, 2 * stride), size)
        self.tails.append((inputs, reach))
        return CausalConv(weight, bias, stride)

    def upsample(self, name: str, size: int, inputs: int, stride: int) -> CausalUpsample:
        weight, bias = self._normalized(name, (inputs, size, 2 * stride), size)
        self.tails.append((inputs, 1))
        return CausalUpsample(weight, bias, stride)

    def snake(self, name: str, channels: int) -> Snake:
        alpha = self.weights.take(f"{name}.alpha", 1, channels, 1)
        return Snake(alpha, (alpha + 1e-9).reciprocal())

    def residual(self, name: str, channels: int, dilation: int) -> ResidualUnit:
        return ResidualUnit(
            (
                self.snake(f"{name}.block.0", channels),
                self.conv(f"{name}.block.1", channels, channels, 7, dilation=dilation, groups=self.groups(channels)),
                self.snake(f"{name}.block.2", channels),
                self.conv(f"{name}.block.3", channels, channels, 1),
            )
        )

    def _normalized(self, name: str, shape: tuple[int, int, int], size: int) -> tuple[Tensor, Tensor]:
        """The weight, from the magnitude and direction of each entry of its first dimension, and the bias."""
        scope = self.weights.scope(name)
        direction = scope.take("weight_v", *shape)
        magnitude = scope.take("weight_g", shape[0], 1, 1)
        return direction * (magnitude / direction.norm(dim=(1, 2), keepdim=True)), scope.take("bias", size)


def build_encoder(config: VAEConfig, weights: Weights) -> StreamingNet:
    """The network from waveforms [b, 1, T * hop] to latents [b, D, T].

    It does not use cuDNN, which computes the last convolution by Fourier transforms on streams of its own. A chunk of
    two seconds takes 7.5 ms with cuDNN and 2.8 ms without (H200), and single kernels on other streams can slow down
    every graph of the process (see kernels.graph.stream).
    """
    net, channels = NetBuilder(weights.scope("encoder"), config.depthwise), config.encoder_dim
    net.add(net.conv("block.0", channels, 1, 7))
    for i, rate in enumerate(config.encoder_rates):
        block = f"block.{1 + i}.block"
        for j, dilation in enumerate((1, 3, 9)):
            net.add(net.residual(f"{block}.{j}", channels, dilation))
        net.add(net.snake(f"{block}.3", channels))
        net.add(net.downsample(f"{block}.4", 2 * channels, channels, rate, config.reach(rate)))
        channels *= 2
    net.add(net.conv("fc_mu", config.latent_dim, channels, 3))
    net.weights.drop(*(f"fc_logvar.{part}" for part in ("weight_g", "weight_v", "bias")))
    return StreamingNet(tuple(net.modules), tuple(net.tails), cudnn=False)


def build_decoder(config: VAEConfig, weights: Weights) -> StreamingDecoder:
    """The network from latents [b, D, T] to waveforms [b, 1, T * hop], conditioned on the output rate if it varies."""
    net, channels = NetBuilder(weights.scope("decoder"), config.depthwise), config.decoder_dim
    if config.depthwise:
        net.add(net.conv("model.0", config.latent_dim, config.latent_dim, 7, groups=config.latent_dim))
        net.add(net.conv("model.1", channels, config.latent_dim, 1))
    else:
        net.add(net.conv("model.0", channels, config.latent_dim, 7))
    first = len(net.modules)
    conditioned, edges = None, ()
    if isinstance(config, VAE2Config) and config.sr_bin_boundaries is not None:
        # The bounds of the file win, as in the released code.
        conditioned, edges = config, net.weights.integers("sr_bin_boundaries", config.sr_bin_boundaries)
    else:
        net.weights.drop("sr_bin_boundaries")
    for i, rate in enumerate(config.decoder_rates):
        if conditioned is not None:
            _condition(net, f"sr_cond_model.{first + i}", conditioned, edges, channels)
        block = f"model.{first + i}.block"
        net.add(net.snake(f"{block}.0", channels))
        net.add(net.upsample(f"{block}.1", channels // 2, channels, rate))
        channels //= 2
        for j, dilation in enumerate((1, 3, 9)):
            net.add(net.residual(f"{block}.{2 + j}", channels, dilation))
    last = first + len(config.decoder_rates)
    net.add(net.snake(f"model.{last}", channels))
    net.add(net.conv(f"model.{last + 1}", 1, channels, 7))
    net.add(saturate)
    return StreamingDecoder(tuple(net.modules), tuple(net.tails))


def _condition(net: NetBuilder, name: str, config: VAE2Config, edges: tuple[int, ...], channels: int) -> None:
    """Add the conditioning on the output rate before an upsampling, which is constant because the rate is."""
    scope = net.weights.scope(name)
    row = sum(config.out_sample_rate > edge for edge in edges)

    def embedding(part: str, size: int) -> Tensor:
        return scope.take(f"{part}_embed.weight", len(edges) + 1, size)[row, :, None].clone()

    wide = channels
    match config.cond_type:
        case "concat":
            wide += config.cond_dim
            net.add(ChannelConcat(embedding("cond", config.cond_dim)))
        case "add":
            bias = embedding("cond", channels)
            net.add(ChannelAffine(torch.ones_like(bias), bias))
        case _:
            net.add(ChannelAffine(embedding("scale", channels), embedding("bias", channels)))
    if config.cond_out_layer:
        net.add(net.snake(f"{name}.out_layer.0", wide))
        net.add(net.conv(f"{name}.out_layer.1", channels, wide, 1))


def decoder_context(config: VAEConfig) -> int:
    """The number of past latent frames on which the audio of a frame depends."""
    first = -6  # sample 0 depends on this first sample, through the last convolution
    for rate in reversed(config.decoder_rates):
        first -= 6 * (1 + 3 + 9)  # the residual units reach further back
        first = first // rate - 1  # so does the upsampling
    return 6 - first  # so does the first convolution


def context_patches(config: VAEConfig, patch_size: int) -> int:
    """The number of past patches on which the audio of a patch depends."""
    return -(-decoder_context(config) // patch_size)


class Decoder(Protocol):
    """A decoder of latents; `StreamingDecoder` documents its members."""

    @property
    def memory(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def decode(self, patches: Tensor, state: Tensor, slot: Tensor) -> Tensor: ...
