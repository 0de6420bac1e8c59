"""The decoder from codes to audio, whole and in steps with the memory of streams in slots.

Dimensions: b sequences, n frames, q quantizers, c channels, T samples or frames at the rate of a module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.cpu_streaming import with_cpu_modules
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import Ops, TorchOps
from voxcpm_grpc.layers.streaming import (
    CausalConv,
    CausalUpsample,
    DelayLine,
    Module,
    ResidualUnit,
    Snake,
    StreamingNet,
)
from voxcpm_grpc.layers.transformer import StackShape, Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.base import upload
from voxcpm_grpc.models.qwen3_tts.codec.quantizer import codebook
from voxcpm_grpc.models.qwen3_tts.codec.windowed import Window, WindowTable, attend
from voxcpm_grpc.models.qwen3_tts.config.codec import DILATIONS, KERNEL, DecoderConfig


@dataclass(frozen=True, slots=True)
class DecoderState:
    """The memory of the decoder for each slot. The last slot is scratch, if a step may leave streams as they are."""

    kv: Tensor  # [slots, layers, 2, past, g, d]: rings of keys and values
    rings: Tensor  # [slots, m]: recent inputs of the convolutions
    position: Tensor  # [slots] int64: see `WindowTable`

    @classmethod
    def zeros(
        cls, slots: int, config: DecoderConfig, memory: int, dtype: torch.dtype, device: torch.device
    ) -> DecoderState:
        """The state of streams before their first frame, whose convolutions have a memory of so many values."""
        ring = config.past, config.num_key_value_heads, config.head_dim
        return cls(
            kv=torch.zeros(slots, config.num_hidden_layers, 2, *ring, dtype=dtype, device=device),
            rings=torch.zeros(slots, memory, dtype=dtype, device=device),
            position=torch.zeros(slots, dtype=torch.int64, device=device),
        )

    def reset(self, slots: Tensor) -> None:
        """Forget all frames of slots [o], broken values included, which no mask would hide."""
        for tensor in (self.kv, self.rings, self.position):
            tensor.index_fill_(0, slots, 0)

    def map(self, function: Callable[[Tensor], Tensor]) -> DecoderState:
        return DecoderState(function(self.kv), function(self.rings), function(self.position))

    def copy_(self, other: DecoderState) -> None:
        """Copy all of another state without a wait for the device."""
        self.kv.copy_(other.kv, non_blocking=True)
        self.rings.copy_(other.rings, non_blocking=True)
        self.position.copy_(other.position, non_blocking=True)


@dataclass(frozen=True, slots=True)
class BlockUpsample:
    """A transposed convolution whose kernel is as wide as its stride: one product for all outputs of an input."""

    linear: Linear  # inputs to outputs * stride
    stride: int

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> BlockUpsample:
        """weight [in, out, stride], bias [out]"""
        stride = weight.shape[-1]
        return cls(Linear(weight.flatten(1).T.contiguous(), bias.repeat_interleave(stride)), stride)

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        y = self.linear(x.transpose(1, 2)).unflatten(-1, (-1, self.stride))  # [b, T, out, stride]
        return y.transpose(1, 2).flatten(2)


@dataclass(frozen=True, slots=True)
class ConvNeXt:
    """A block of a depthwise convolution and an MLP, added to its input. `down` has the scale of the branch."""

    depthwise: CausalConv
    norm: tuple[Tensor, Tensor]  # weight and bias [c]
    up: Linear
    down: Linear

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        y = self.depthwise(x, line).transpose(1, 2)
        y = F.layer_norm(y, y.shape[-1:], *self.norm, eps=1e-6)
        return x + self.down(F.gelu(self.up(y))).transpose(1, 2)


class AudioDecoder(Protocol):
    """Decodes frames of codes to audio. Streams keep their memory in slots of a `DecoderState`.

    Audio does not depend on how frames are grouped into calls, except for rounding. No call waits for the host.
    """

    config: DecoderConfig
    device: torch.device
    dtype: torch.dtype

    def prepare(self, frames: int) -> None:
        """Make calls of `decode` with so many frames ready for a capture. A capture of `step` needs no preparation."""
        ...

    def allocate(self, slots: int) -> DecoderState:
        """State for `slots` streams before their first frame."""
        ...

    def step(self, codes: Tensor, slot: Tensor, state: DecoderState, spoken: Tensor | None = None) -> Tensor:
        """Audio [b, samples] float32 of the next frame [b, q] of the streams in slots [b].

        Codes that are none, such as the end of the speech, are clamped. A stream for which `spoken` [b] bool is false
        keeps its memory as it was, and its audio has no meaning.
        """
        ...

    def decode(self, codes: Tensor, slot: Tensor, state: DecoderState, spoken: Tensor | None = None) -> Tensor:
        """Audio [b, n * samples] float32 of the next frames [b, n, q], as `step`."""
        ...

    def prime(self, slot: int, codes: Tensor, state: DecoderState) -> None:
        """Start a stream in a slot behind frames [n, q], of which the last `DecoderConfig.reach` decide.

        All of these pass the transformer, and the last ones the convolutions behind it.
        """
        ...


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """The networks of a decoder, in the order in which a frame passes them."""

    codebooks: Tensor  # [q, v, w]
    projections: tuple[Linear, Linear]  # of the entry of the first codebook, and of the sum of the others
    front: StreamingNet
    input: Linear
    stack: Transformer
    output: Linear
    back: StreamingNet


class Decoder:
    """The `AudioDecoder` of plain operations, which is the reference."""

    def __init__(self, config: DecoderConfig, weights: Weights) -> None:
        """Take the weights, whose names begin with `decoder.` in the file, in their dtype."""
        self.config, self.device, self.dtype = config, weights.device, weights.dtype
        self._window = WindowTable(config.past, config.head_dim, config.rope_theta, weights.device)
        parts = read_parts(config, weights, TorchOps())
        self._table = parts.codebooks.flatten(0, 1)
        self._first_row = torch.arange(config.num_quantizers, device=self.device) * config.codebook_size
        self._project_first, self._project_rest = parts.projections
        self._input, self._stack, self._output = parts.input, parts.stack, parts.output
        self._front, self._back = parts.front, parts.back
        if weights.device.type == "cpu" and self.dtype == torch.float32:
            self._back = with_cpu_modules(self._back)

    def prepare(self, frames: int) -> None:
        pass

    def allocate(self, slots: int) -> DecoderState:
        memory = self._front.memory + self._back.memory
        return DecoderState.zeros(slots, self.config, memory, self.dtype, self.device)

    @torch.inference_mode()
    def step(self, codes: Tensor, slot: Tensor, state: DecoderState, spoken: Tensor | None = None) -> Tensor:
        return self.decode(codes[:, None], slot, state, spoken)

    @torch.inference_mode()
    def decode(self, codes: Tensor, slot: Tensor, state: DecoderState, spoken: Tensor | None = None) -> Tensor:
        scratch = len(state.position) - 1
        target = slot if spoken is None else torch.where(spoken, slot, scratch)
        latents = self._latents(codes, slot, target, state)
        audio, rings = self._back(latents.transpose(1, 2), state.rings[slot, self._front.memory :])
        state.rings[:, self._front.memory :].index_copy_(0, target, rings)
        return audio[:, 0].float().clamp(-1, 1)

    @torch.inference_mode()
    def prime(self, slot: int, codes: Tensor, state: DecoderState) -> None:
        slots = torch.full((1,), slot, dtype=torch.int64, device=self.device)
        state.reset(slots)
        frames = upload(codes[-self.config.reach :].long(), self.device)
        if len(frames):
            latents = self._latents(frames[None], slots, slots, state)[:, -self.config.context :]
            rings = state.rings[slots, self._front.memory :]
            state.rings[:, self._front.memory :].index_copy_(0, slots, self._back(latents.transpose(1, 2), rings)[1])

    def _latents(self, codes: Tensor, slot: Tensor, target: Tensor, state: DecoderState) -> Tensor:
        """The latents [b, n, latent_dim] of frames [b, n, q]. Writes the memory of slots to those in `target`."""
        x, rings = self._front(self._embed(codes).transpose(1, 2), state.rings[slot, : self._front.memory])
        state.rings[:, : self._front.memory].index_copy_(0, target, rings)
        x = x.transpose(1, 2)
        window = self._window.at(state.position[slot], x.shape[1], self.dtype)
        attention = partial(attend_frames, past=state.kv[slot], target=target[:, None], window=window, kv=state.kv)
        x = self._output(self._stack(self._input(x), attention))
        state.position.index_copy_(0, target, window.next)
        return x

    def _embed(self, codes: Tensor) -> Tensor:
        """The sum of the entries of all codebooks, [b, n, codebook_dim]."""
        rows = F.embedding(codes.long().clamp(0, self.config.codebook_size - 1) + self._first_row, self._table)
        first, rest = rows[..., 0, :], rows[..., 1:, :].sum(-2)
        return self._project_first(first) + self._project_rest(rest)


def attend_frames(
    q: Tensor, k: Tensor, v: Tensor, layer: int, *, past: Tensor, target: Tensor, window: Window, kv: Tensor
) -> Tensor:
    """Attention of new frames to those in the rings `past` [b, layers, 2, p, g, d], and to each other.

    Writes the last new ones to the rings `kv` of the slots in target [b, 1].
    """
    keys, values = (torch.cat([past[:, layer, part], new], dim=1) for part, new in enumerate((k, v)))
    kept = window.write.shape[1]
    for part, new in enumerate((k, v)):
        kv[target, layer, part, window.write] = new[:, -kept:]
    return attend(q, keys, values, window)


def read_parts(config: DecoderConfig, weights: Weights, ops: Ops) -> DecoderParts:
    """Take the weights of a decoder, whose names begin with `decoder.` in the file, in their dtype."""
    c = config
    codebooks, projections = _read_codebooks(c, weights.scope("quantizer"))
    conv = _conv(weights, "pre_conv.conv", c.latent_dim, c.codebook_dim, 3)
    scope = weights.scope("pre_transformer")
    return DecoderParts(
        codebooks=codebooks,
        projections=projections,
        front=StreamingNet((conv,), ((c.codebook_dim, 2),)),
        input=Linear.load(scope, "input_proj", c.hidden_size, c.latent_dim),
        stack=_read_transformer(c, scope, ops),
        output=Linear.load(scope, "output_proj", c.latent_dim, c.hidden_size),
        back=_build_back(c, weights),
    )


def _read_codebooks(c: DecoderConfig, weights: Weights) -> tuple[Tensor, tuple[Linear, Linear]]:
    width, tables = c.codebook_dim // 2, []
    for part, count in (("rvq_first", 1), ("rvq_rest", c.num_quantizers - 1)):
        weights.drop(f"{part}.input_proj.weight")  # only the training needs it
        for number in range(count):
            book = f"{part}.vq.layers.{number}._codebook"
            tables.append(codebook(weights.scope(book), "embedding_sum", c.codebook_size, width))
    first, rest = (
        Linear(weights.take(f"{part}.output_proj.weight", c.codebook_dim, width, 1)[..., 0])
        for part in ("rvq_first", "rvq_rest")
    )
    return torch.stack(tables).to(weights.dtype), (first, rest)


def _read_transformer(c: DecoderConfig, weights: Weights, ops: Ops) -> Transformer:
    shape = StackShape(
        hidden=c.hidden_size,
        ffn=c.intermediate_size,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        layers=c.num_hidden_layers,
        eps=c.rms_norm_eps,
    )
    stack = Transformer(shape, weights, ops)
    for layer in stack.layers:  # the scale of a branch goes into its last map
        scope = weights.scope(f"layers.{layer.index}")
        layer.out = _scaled(layer.out, scope.take("self_attn_layer_scale.scale", c.hidden_size))
        layer.down = _scaled(layer.down, scope.take("mlp_layer_scale.scale", c.hidden_size))
    return stack


def _build_back(config: DecoderConfig, weights: Weights) -> StreamingNet:
    """The network from latents [b, latent_dim, n] to audio [b, 1, n * samples], before the clamp."""
    modules: list[Module] = []
    tails: list[tuple[int, int]] = []

    def add(module: Module, channels: int = 0, samples: int = 0) -> None:
        modules.append(module)
        if samples:
            tails.append((channels, samples))

    latent, size = config.latent_dim, config.decoder_dim
    for number, ratio in enumerate(config.upsampling_ratios):
        scope = weights.scope(f"upsample.{number}")
        weight, bias = scope.take("0.conv.weight", latent, latent, ratio), scope.take("0.conv.bias", latent)
        add(BlockUpsample.of(weight, bias))
        add(_convnext(scope.scope("1"), latent), latent, KERNEL - 1)
    scope = weights.scope("decoder")
    add(_conv(scope, "0.conv", size, latent, KERNEL), latent, KERNEL - 1)
    for number, rate in enumerate(config.upsample_rates, 1):
        block = scope.scope(f"{number}.block")
        add(_snake(block, "0", size))
        upsample = block.take("1.conv.weight", size, size // 2, 2 * rate), block.take("1.conv.bias", size // 2)
        add(CausalUpsample(*upsample, rate), size, 1)
        size //= 2
        for unit, dilation in enumerate(DILATIONS, 2):
            add(_residual(block.scope(str(unit)), size, dilation), size, (KERNEL - 1) * dilation)
    last = 1 + len(config.upsample_rates)
    add(_snake(scope, str(last), size))
    add(_conv(scope, f"{last + 1}.conv", 1, size, KERNEL), size, KERNEL - 1)
    return StreamingNet(tuple(modules), tuple(tails))


def _conv(weights: Weights, name: str, size: int, inputs: int, kernel: int, dilation: int = 1) -> CausalConv:
    weight, bias = weights.take(f"{name}.weight", size, inputs, kernel), weights.take(f"{name}.bias", size)
    return CausalConv(weight, bias, dilation=dilation)


def _snake(weights: Weights, name: str, channels: int) -> Snake:
    exact = replace(weights, dtype=torch.float32)
    alpha, beta = (exact.take(f"{name}.{part}", channels).exp()[:, None] for part in ("alpha", "beta"))
    return Snake(alpha.to(weights.dtype), (beta + 1e-9).reciprocal().to(weights.dtype))


def _residual(weights: Weights, channels: int, dilation: int) -> ResidualUnit:
    return ResidualUnit(
        (
            _snake(weights, "act1", channels),
            _conv(weights, "conv1.conv", channels, channels, KERNEL, dilation),
            _snake(weights, "act2", channels),
            _conv(weights, "conv2.conv", channels, channels, 1),
        )
    )


def _convnext(weights: Weights, channels: int) -> ConvNeXt:
    name = "dwconv.conv"
    weight, bias = weights.take(f"{name}.weight", channels, 1, KERNEL), weights.take(f"{name}.bias", channels)
    return ConvNeXt(
        CausalConv(weight, bias, groups=channels),
        (weights.take("norm.weight", channels), weights.take("norm.bias", channels)),
        Linear.load(weights, "pwconv1", 4 * channels, channels),
        _scaled(Linear.load(weights, "pwconv2", channels, 4 * channels), weights.take("gamma", channels)),
    )


def _scaled(linear: Linear, scale: Tensor) -> Linear:
    """The map with its outputs times `scale` [out]."""
    bias = None if linear.bias is None else linear.bias * scale
    return replace(linear, weight=linear.weight * scale[:, None], bias=bias)
