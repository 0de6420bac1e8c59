"""The codec's decoder in few launches. `vae.StreamingDecoder` is the reference, with the same weights.

The windows of a stream follow each other in a row of a workspace. The window of a module holds its past input, then its
new input, as rows of contiguous channels. A step copies the memory of its streams to the windows, runs the modules from
window to window, and copies the ends of the windows back, so that no module reads memory that another one writes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voxcpm_grpc.kernels.conv import streams as conv
from voxcpm_grpc.kernels.conv.reference import Depthwise, Pointwise, Snake
from voxcpm_grpc.kernels.conv.state import BLOCK, load_windows, store_windows
from voxcpm_grpc.kernels.cuda.compiler import suppress_unavailable
from voxcpm_grpc.models.base import upload
from voxcpm_grpc.models.voxcpm.codec import vae
from voxcpm_grpc.models.voxcpm.kernels.residual_units import ResidualUnits

FUSED_CHANNELS = 128  # with more channels the programs of a single launch for a residual unit would repeat too much
GROUP = 64  # the windows of so many streams exist at the same time: 8 MB each at the released size
ALIGNMENT = 64  # elements: a kernel can read from the start of a window 16 bytes at a time


@dataclass(frozen=True, slots=True)
class Window:
    """The input of a module with memory: `reach` past samples, then `rate` new samples for each latent frame."""

    channels: int
    reach: int
    rate: int
    replaced: bool = False  # a kernel writes all past samples for the next step, behind those before it

    def new(self, frames: int) -> int:
        """Samples behind the past ones."""
        return self.reach if self.replaced else frames * self.rate


@dataclass(frozen=True, slots=True)
class Block:
    """An upsampling, as a product with the current and the previous sample, and residual units."""

    upsample: Pointwise
    stride: int
    units: tuple[tuple[Depthwise, Pointwise], ...]
    windows: tuple[Window, ...]  # the window of the upsampling comes first, then that of each unit
    kernel: ResidualUnits | None  # the kernel computes the units of many streams

    @property
    def rate(self) -> int:
        """Samples of a frame behind the upsampling."""
        return self.windows[-1].rate

    @property
    def joined(self) -> tuple[Window, ...]:
        """The windows if the kernel computes the units: it has the past samples of all of them in one."""
        entry, *units = self.windows
        return entry, replace(units[0], reach=sum(w.reach for w in units), replaced=True)


@dataclass(frozen=True, slots=True)
class Layout:
    """The windows of a stream in its row of the workspace, for a number of frames and a choice of kernels."""

    windows: tuple[Window, ...]
    starts: tuple[int, ...]  # elements from the start
    width: int
    runs: Tensor  # `load_windows` takes it


class FusedDecoder:
    """A `vae.Decoder` in few launches. The memory of a stream holds the samples of each module as rows of channels.

    The memory is the same whether a kernel computes all units of a block or not, so the number of streams may change.
    """

    def __init__(self, net: vae.StreamingNet, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.memory = net.memory
        modules = list(net.modules)
        first, widen = (_take(modules, vae.CausalConv) for _ in range(2))
        self.first = _depthwise(first, None)
        self.widen = _pointwise(widen.weight[..., 0], widen.bias, *_entry(modules), dtype)
        blocks, rate = [], 1
        while isinstance(modules[0], vae.CausalUpsample):
            blocks.append(_block(modules, dtype, rate))
            rate = blocks[-1].rate
        self.blocks, self.rate = tuple(blocks), rate
        last = _take(modules, vae.CausalConv)
        self.taps, self.bias = last.weight[0].T.contiguous(), last.bias
        windows = self._windows((False,) * len(blocks))
        if sum(w.channels * w.reach for w in windows) != net.memory or modules != [vae.saturate]:
            raise ValueError("the fused decoder does not support these modules")
        self._layouts = functools.cache(self._lay_out_all)

    @torch.inference_mode()
    def decode(self, patches: Tensor, state: Tensor, slot: Tensor) -> Tensor:
        """See `vae.Decoder.decode`. The first call with a number of frames must not be captured."""
        groups = zip(patches.flatten(1, 2).split(GROUP), slot.split(GROUP), strict=True)
        audio = [self._decode(frames.contiguous(), state, rows) for frames, rows in groups]
        return audio[0] if len(audio) == 1 else torch.cat(audio)

    def _decode(self, frames: Tensor, state: Tensor, slot: Tensor) -> Tensor:
        streams, count = frames.shape[:2]
        joined = self._joined(streams, count)
        layout = self._layouts(count, state.device)[joined]
        workspace = torch.empty(streams, layout.width, dtype=self.dtype, device=state.device)
        # [b, reach + T, c] each
        past = [
            workspace[:, start : start + (w.reach + w.new(count)) * w.channels].unflatten(1, (-1, w.channels))
            for start, w in zip(layout.starts, layout.windows, strict=True)
        ]
        new = [x[:, w.reach :] for x, w in zip(past, layout.windows, strict=True)]
        load_windows(state, slot, frames, workspace, layout.runs, self.first.reach * frames.shape[2])
        i = 1
        conv.depthwise_pointwise(past[0], self.first, self.widen, new[i], None, False)
        for block, join in zip(self.blocks, joined, strict=True):
            pairs = past[i].as_strided(  # each sample comes with the one before it
                (streams, past[i].shape[1] - 1, 2 * past[i].shape[2]), past[i].stride(), past[i].storage_offset()
            )
            if join and block.kernel:
                x = past[i] if block.kernel.pairs else self._upsampled(pairs, block)
                block.kernel(x, past[i + 1][:, : layout.windows[i + 1].reach], new[i + 1], new[i + 2])
                i += 2
                continue
            kept = conv.pointwise(pairs, block.upsample, new[i + 1].view(*pairs.shape[:2], -1), None, True)
            i += 1
            x = None if kept is None else kept.view(new[i].shape)
            for depthwise, pointwise in block.units:
                last = pointwise is block.units[-1][1]
                x = self._unit(past[i], depthwise, pointwise, new[i + 1], x, keep=not last)
                i += 1
        audio = conv.mix_down(past[i], self.taps, self.bias)
        store_windows(state, slot, workspace, layout.runs)
        return audio

    def _upsampled(self, pairs: Tensor, block: Block) -> Tensor:
        streams, samples, _ = pairs.shape
        x = torch.empty(streams, samples, len(block.upsample.bias), dtype=self.dtype, device=pairs.device)
        conv.pointwise(pairs, replace(block.upsample, snake=None), x, None, False)
        return x.view(streams, samples * block.stride, -1)

    def _unit(
        self, past: Tensor, first: Depthwise, second: Pointwise, out: Tensor, x: Tensor | None, keep: bool
    ) -> Tensor | None:
        if past.shape[2] <= FUSED_CHANNELS:
            return conv.depthwise_pointwise(past, first, second, out, x, keep)
        return conv.pointwise(conv.depthwise(past, first), second, out, x, keep)

    def _joined(self, streams: int, frames: int) -> tuple[bool, ...]:
        """True for each block whose kernel computes the units."""
        return tuple(b.kernel is not None and b.kernel.serves(streams, frames * b.rate) for b in self.blocks)

    def _windows(self, joined: tuple[bool, ...]) -> tuple[Window, ...]:
        windows = [Window(len(self.first.bias), self.first.reach, 1)]
        for block, join in zip(self.blocks, joined, strict=True):
            windows += block.joined if join else block.windows
        return *windows, Window(self.taps.shape[1], len(self.taps) - 1, self.rate)

    def _lay_out_all(self, frames: int, device: torch.device) -> dict[tuple[bool, ...], Layout]:
        """The layouts of all numbers of streams, because a call whose layout is new cannot be captured."""
        choices = {self._joined(streams, frames) for streams in range(1, GROUP + 1)}
        return {joined: _lay_out(self._windows(joined), frames, device) for joined in choices}


def _lay_out(windows: tuple[Window, ...], frames: int, device: torch.device) -> Layout:
    starts, runs, offset, start = [], [], 0, 0
    for w in windows:
        starts.append(start)
        size, new = w.reach * w.channels, w.new(frames) * w.channels
        for begin in range(0, size, BLOCK):
            runs.append((offset + begin, start + begin, start + new + begin, min(BLOCK, size - begin)))
        offset, start = offset + size, -(-(start + size + new) // ALIGNMENT) * ALIGNMENT
    return Layout(windows, tuple(starts), start, upload(torch.tensor(runs, dtype=torch.int32), device))


def _take(modules: list, kind: type):
    if not isinstance(modules[0], kind):
        raise ValueError(f"the fused decoder expects {kind.__name__}, the checkpoint has {type(modules[0]).__name__}")
    return modules.pop(0)


def _entry(modules: list) -> tuple[vae.Snake, vae.ChannelAffine | None]:
    """The activation, and the affine map if there is one, before an upsampling or the last convolution."""
    affine = modules.pop(0) if isinstance(modules[0], vae.ChannelAffine) else None
    return _take(modules, vae.Snake), affine


def _block(modules: list, dtype: torch.dtype, rate: int) -> Block:
    up = _take(modules, vae.CausalUpsample)
    branches = []
    while isinstance(modules[0], vae.ResidualUnit):
        branches.append(modules.pop(0).branch)
    current, previous = up.weight.permute(2, 1, 0).chunk(2)  # [s, out, in] each
    weight = torch.cat([previous, current], dim=-1).flatten(0, 1)
    snake = _snake(branches[0][0], repeat=up.stride)
    upsample = Pointwise(weight.to(dtype).contiguous(), up.bias.repeat(up.stride), snake)
    units = []
    for branch, after in zip(branches, [*branches[1:], None], strict=True):
        _, wide, snake, narrow = branch
        following = (after[0], None) if after else _entry(modules)
        units.append(
            (_depthwise(wide, _snake(snake)), _pointwise(narrow.weight[..., 0], narrow.bias, *following, dtype))
        )
    windows = [Window(weight.shape[1] // 2, 1, rate)]
    windows += (Window(len(first.bias), first.reach, rate * up.stride) for first, _ in units)
    return Block(upsample, up.stride, tuple(units), tuple(windows), _kernel(upsample, units))


def _kernel(upsample: Pointwise, units: list[tuple[Depthwise, Pointwise]]) -> ResidualUnits | None:
    """The kernel for residual units. None if it does not serve them."""
    with suppress_unavailable("residual units use one or two launches each, not one for all"):
        return ResidualUnits(upsample, units)
    return None


def _depthwise(module: vae.CausalConv, snake: Snake | None) -> Depthwise:
    return Depthwise(module.weight[:, 0].T.contiguous(), module.bias, module.dilation, snake)


def _pointwise(
    weight: Tensor, bias: Tensor, snake: vae.Snake, affine: vae.ChannelAffine | None, dtype: torch.dtype
) -> Pointwise:
    both = (affine.scale[:, 0].contiguous(), affine.bias[:, 0].contiguous()) if affine else None
    return Pointwise(weight.to(dtype).contiguous(), bias, _snake(snake), both)


def _snake(module: vae.Snake, repeat: int = 1) -> Snake:
    return Snake(module.alpha.flatten().repeat(repeat), module.inverse.flatten().repeat(repeat))
