"""The codec's decoder in few launches. `decoder.Decoder` is the reference, with the same weights.

A step copies the memory of its streams to the windows of `layout`, runs the modules from window to window, and copies
the ends of the windows back, so that no module reads memory that another one writes. A convolution is a matrix product
with the window of each sample; the activation in front of the next one, and the sum of a residual unit, belong to it.
The sums of the modules behind the transformer are float32; only the input of a convolution is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear

from voxcpm_grpc.kernels.conv.reference import Snake
from voxcpm_grpc.layers import streaming
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import Ops, RMSNorm
from voxcpm_grpc.layers.streaming import CausalConv, CausalUpsample, ResidualUnit
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.base import upload
from voxcpm_grpc.models.qwen3_tts.codec.decoder import (
    BlockUpsample,
    ConvNeXt,
    DecoderParts,
    DecoderState,
    attend_frames,
    read_parts,
)
from voxcpm_grpc.models.qwen3_tts.codec.layout import Layout, lay_out, windows_of
from voxcpm_grpc.models.qwen3_tts.codec.windowed import WindowTable
from voxcpm_grpc.models.qwen3_tts.config.codec import DecoderConfig
from voxcpm_grpc.models.qwen3_tts.kernels.codec_reference import Convolution, Norm

Kind = TypeVar("Kind")

# cuDNN's attention would keep a workspace in each captured graph, and flash attention takes no mask.
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True, slots=True)
class WideBlock:
    """An upsampling of latents, and a ConvNeXt block behind it."""

    upsample: Convolution  # to all samples of an input, side by side
    taps: Tensor  # [k, c] float32, of the depthwise convolution
    bias: Tensor  # [c] float32
    norm: Norm
    up: Convolution
    down: Convolution


@dataclass(frozen=True, slots=True)
class Block:
    """An upsampling, as a product with the current and the previous sample, and the convolutions of residual units."""

    upsample: Convolution
    units: tuple[tuple[Convolution, Convolution], ...]


class FusedDecoder:
    """An `AudioDecoder` in few launches. The rings of a stream hold the samples of each module as rows of channels."""

    def __init__(
        self, config: DecoderConfig, weights: Weights, dtype: torch.dtype, kernels: ModuleType, ops: Ops
    ) -> None:
        """Take the weights, whose names begin with `decoder.` in the file, and round them once, to `dtype`.

        kernels: `kernels.codec`, or `kernels.codec_reference` on a device without Triton
        ops: the operations of the layers of the transformer
        """
        self.config, self.device, self.dtype = config, weights.device, dtype
        self._kernels = kernels
        parts = read_parts(config, replace(weights, dtype=torch.float32), ops)
        self._table = _projected(parts).to(dtype)
        self._input, self._output = _rounded(parts.input, dtype), _rounded(parts.output, dtype)
        self._stack = _rounded_stack(parts.stack, dtype)
        self._widen = _convolution(_take(list(parts.front.modules), CausalConv), dtype)
        modules = list(parts.back.modules)
        self._wide = tuple(_wide_block(modules, dtype) for _ in config.upsampling_ratios)
        self._first = _convolution(_take(modules, CausalConv), dtype, _take(modules, streaming.Snake))
        self._blocks = tuple(_block(modules, dtype) for _ in config.upsample_rates)
        last = _take(modules, CausalConv)
        self._taps, self._bias = last.weight[0].T.contiguous(), last.bias
        self._windows = windows_of(config)
        self._memory = parts.front.memory + parts.back.memory
        if modules or sum(w.channels * w.reach for w in self._windows) != self._memory:
            raise ValueError("the fused decoder does not support these modules")
        self._ring = WindowTable(config.past, config.head_dim, config.rope_theta, self.device)
        self._turns = self._ring.turns()
        self._layouts: dict[tuple[int, int], Layout] = {}
        self.prepare(1)

    def prepare(self, frames: int) -> None:
        self._layout(frames, frames)

    def allocate(self, slots: int) -> DecoderState:
        return DecoderState.zeros(slots, self.config, self._memory, self.dtype, self.device)

    @torch.inference_mode()
    def step(self, codes: Tensor, slot: Tensor, state: DecoderState, spoken: Tensor | None = None) -> Tensor:
        return self.decode(codes[:, None], slot, state, spoken)

    @torch.inference_mode()
    def decode(self, codes: Tensor, slot: Tensor, state: DecoderState, spoken: Tensor | None = None) -> Tensor:
        target = slot if spoken is None else torch.where(spoken, slot, len(state.position) - 1)
        return self._decode(codes.contiguous(), codes.shape[1], slot, target, state)

    @torch.inference_mode()
    def prime(self, slot: int, codes: Tensor, state: DecoderState) -> None:
        slots = torch.full((1,), slot, dtype=torch.int64, device=self.device)
        state.reset(slots)
        frames = upload(codes[-self.config.reach :], self.device).contiguous()
        if len(frames):
            self._decode(frames[None], min(len(frames), self.config.context), slots, slots, state)

    def _decode(self, codes: Tensor, frames: int, slot: Tensor, target: Tensor, state: DecoderState) -> Tensor:
        """Audio of the last `frames` frames of codes [b, n, q]. All of them pass the transformer."""
        layout = self._layout(codes.shape[1], frames)
        workspace = torch.empty(len(slot), layout.width, dtype=self.dtype, device=self.device)
        windows = layout.views(workspace)
        self._kernels.load_windows(state.rings, slot, workspace[:, :0], workspace, layout.runs, 0)
        latents = self._latents(codes, slot, target, state, windows[0])
        past = iter(windows[1:])
        audio = self._synthesize(latents[:, -frames:], past)
        self._kernels.store_windows(state.rings, target, workspace, layout.runs)
        return audio

    def _latents(self, codes: Tensor, slot: Tensor, target: Tensor, state: DecoderState, window: Tensor) -> Tensor:
        """The latents [b, n, latent_dim] of codes [b, n, q]. Writes rings and positions to the slots in `target`."""
        frames = codes.shape[1]
        self._kernels.look_up(codes, self._table, _new(window, self._widen))
        x = self._plain(window, self._widen)
        if frames == 1:
            attention = partial(self._attend_next, slot=slot, target=target, state=state)
            x = self._output(self._stack(self._input(x), attention))
            self._kernels.advance(state.position, slot, target, 1, self.config.past)
            return x
        places = self._ring.at(state.position[slot], frames, self.dtype)
        attention = partial(attend_frames, past=state.kv[slot], target=target[:, None], window=places, kv=state.kv)
        with sdpa_kernel(BACKENDS):
            x = self._output(self._stack(self._input(x), attention))
        state.position.index_copy_(0, target, places.next)
        return x

    def _attend_next(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, *, slot: Tensor, target: Tensor, state: DecoderState
    ) -> Tensor:
        q, k, v = (x[:, 0] for x in (q, k, v))
        return self._kernels.attend_next(q, k, v, state.kv, layer, state.position, slot, target, self._turns)

    def _synthesize(self, x: Tensor, past: Iterator[Tensor]) -> Tensor:
        """The audio [b, T] of latents x [b, n, c], with the windows of the modules behind the transformer."""
        convolve = self._kernels.convolve
        window = next(past)
        for number, block in enumerate(self._wide, 1):
            total = self._upsampled(x, block.upsample, window, len(block.taps) - 1, True)
            x = self._kernels.depthwise_norm(window, block.taps, block.bias, block.norm)
            x = self._plain(x, block.up)
            if number < len(self._wide):
                x = self._plain(x, block.down, total)
                window = next(past)
            else:
                window = next(past)
                convolve(x, block.down, _new(window, self._first), total, False)
        x, window = window, next(past)
        convolve(x, self._first, window[:, 1:], None, False)
        for block in self._blocks:
            x, window = window, next(past)
            total = self._upsampled(x, block.upsample, window, block.units[0][0].reach, True)
            for number, (wide, narrow) in enumerate(block.units, 1):
                x, window = self._plain(window, wide), next(past)
                ahead = window[:, window.shape[1] - x.shape[1] :]
                total = convolve(x, narrow, ahead, total, number < len(block.units))
        return self._kernels.mix_down(window, self._taps, self._bias)

    def _upsampled(self, x: Tensor, conv: Convolution, window: Tensor, reach: int, keep: bool) -> Tensor:
        """The sums [b, T, c] of an upsampling. Their activation goes to the new samples of a window."""
        new = window[:, reach:]
        samples = x.shape[1] - conv.reach
        total = self._kernels.convolve(x, conv, new.view(len(x), samples, -1), None, keep)
        return total.view(new.shape)

    def _plain(self, x: Tensor, conv: Convolution, residual: Tensor | None = None) -> Tensor:
        """The activation of a convolution, in memory of its own."""
        out = torch.empty(len(x), x.shape[1] - conv.reach, len(conv.bias), dtype=self.dtype, device=x.device)
        self._kernels.convolve(x, conv, out, residual, False)
        return out

    def _layout(self, codes: int, frames: int) -> Layout:
        key = codes, frames
        if key not in self._layouts:
            layout = lay_out(self._windows, codes, frames)
            self._layouts[key] = replace(layout, runs=upload(layout.runs, self.device))
        return self._layouts[key]


def _new(window: Tensor, conv: Convolution) -> Tensor:
    """The new samples of the window of a convolution."""
    return window[:, conv.reach :]


def _projected(parts: DecoderParts) -> Tensor:
    """The entries of all codebooks behind their projections, [q, v, codebook_dim]."""
    first, rest = (part.weight for part in parts.projections)
    return torch.cat([linear(parts.codebooks[:1], first), linear(parts.codebooks[1:], rest)])


def _rounded(part: Linear, dtype: torch.dtype) -> Linear:
    return Linear(part.weight.to(dtype), None if part.bias is None else part.bias.to(dtype))


def _rounded_stack(stack: Transformer, dtype: torch.dtype) -> Transformer:
    def norm(part: RMSNorm) -> RMSNorm:
        return part if part.weight is None else replace(part, weight=part.weight.to(dtype))

    for layer in stack.layers:
        layer.norm, layer.mlp_norm = norm(layer.norm), norm(layer.mlp_norm)
        layer.qkv, layer.out = _rounded(layer.qkv, dtype), _rounded(layer.out, dtype)
        layer.gate_up, layer.down = _rounded(layer.gate_up, dtype), _rounded(layer.down, dtype)
    stack.norm = norm(stack.norm)
    return stack


def _take(modules: list, kind: type[Kind]) -> Kind:
    module = modules.pop(0)
    if not isinstance(module, kind):
        raise ValueError(f"the fused decoder expects {kind.__name__}, the decoder has {type(module).__name__}")
    return module


def _convolution(conv: CausalConv, dtype: torch.dtype, snake: streaming.Snake | None = None) -> Convolution:
    weight = conv.weight.transpose(1, 2).to(dtype).contiguous()
    return Convolution(weight, conv.bias, conv.dilation, snake and _snake(snake))


def _wide_block(modules: list, dtype: torch.dtype) -> WideBlock:
    up, block = _take(modules, BlockUpsample), _take(modules, ConvNeXt)
    weight, bias = up.linear.weight, up.linear.bias
    assert bias is not None
    weight = weight.unflatten(0, (-1, up.stride)).transpose(0, 1).flatten(0, 1)  # samples, then channels
    bias = bias.unflatten(0, (-1, up.stride)).T.flatten()
    return WideBlock(
        Convolution(weight[:, None].to(dtype).contiguous(), bias.contiguous()),
        block.depthwise.weight[:, 0].T.contiguous(),
        block.depthwise.bias,
        Norm(*block.norm, eps=1e-6),
        _product(block.up, dtype, gelu=True),
        _product(block.down, dtype),
    )


def _product(part: Linear, dtype: torch.dtype, *, gelu: bool = False) -> Convolution:
    assert part.bias is not None
    return Convolution(part.weight[:, None].to(dtype), part.bias, gelu=gelu)


def _block(modules: list, dtype: torch.dtype) -> Block:
    """The next block, whose last unit is followed by the activation in front of the next block or convolution."""
    up, branches = _take(modules, CausalUpsample), []
    while isinstance(modules[0], ResidualUnit):
        branches.append(modules.pop(0).branch)
    current, previous = up.weight.permute(2, 1, 0).chunk(2)  # [s, o, c] each
    weight = torch.stack([previous, current], dim=2).flatten(0, 1).to(dtype)
    upsample = Convolution(weight, up.bias.repeat(up.stride), snake=_snake(branches[0][0], repeat=up.stride))
    after = [branch[0] for branch in branches[1:]] + [_take(modules, streaming.Snake)]
    units = tuple(
        (_convolution(wide, dtype, inner), _convolution(narrow, dtype, outer))
        for (_, wide, inner, narrow), outer in zip(branches, after, strict=True)
    )
    return Block(upsample, units)


def _snake(module: streaming.Snake, repeat: int = 1) -> Snake:
    return Snake(module.alpha.flatten().repeat(repeat), module.inverse.flatten().repeat(repeat))
