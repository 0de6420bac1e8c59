"""The residual units of a block of the codec's decoder in one launch on Hopper, in half precision.

The sum of the residual units stays in registers, so a block moves its input and its output only. See
`residual_units.cu`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from voxcpm_grpc.kernels.conv.reference import Depthwise, Pointwise
from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import Function, KernelUnavailable, Shape
from voxcpm_grpc.kernels.cuda.hopper import multiply_function
from voxcpm_grpc.kernels.launch.overlap import multiprocessors

logger = logging.getLogger(__name__)

SOURCE, NAME = Path(__file__).with_name("residual_units.cu"), "residual_units"
DILATIONS, TAPS = (1, 3, 9), 7
HISTORY = (TAPS - 1) * sum(DILATIONS)  # inputs of all units in the past, which a segment computes again
REACH = (TAPS - 1) * max(DILATIONS)  # samples of a call, at least
START = 0.3  # a segment's first samples take this share of the time of its other ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The division of a launch. The names are those of the kernel's constants.

    It pays from `least` samples of all streams on.
    """

    channels: int
    tiles: int
    groups: int
    least: int
    parts: int = 1
    stages: int = 0
    pairs: bool = False

    def __post_init__(self) -> None:
        if self.pairs and self.tiles != 2:
            raise ValueError("with pairs each of two tiles has one sample of a pair")

    @property
    def rows(self) -> int:
        """Samples that a group computes at a time."""
        return 64 * self.tiles * self.parts

    @property
    def threads(self) -> int:
        return 128 * self.parts * self.groups

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        depths, pitch = _depths(self.channels), 2 * self.channels + 16
        if self.stages:
            weights = self.stages * self.channels * 128
        else:
            weights = (3 * depths * self.channels + self.pairs * _depths(4 * self.channels) * 2 * self.channels) * 128
        group = -(-(HISTORY + self.rows) * pitch // 1024) * 1024
        return weights + self.groups * group + 16 * max(self.stages, 1)


# These cuts were measured on an H200: the kernel pays from 16 streams of the released codec on with 256 and 128
# channels, and from one stream on with fewer.
CUTS = (
    Cut(channels=256, tiles=1, groups=1, least=16 * 960, parts=2, stages=3),
    Cut(channels=128, tiles=1, groups=1, least=16 * 1920, parts=2),
    Cut(channels=64, tiles=2, groups=2, least=3840, pairs=True),
    Cut(channels=32, tiles=2, groups=3, least=7680, pairs=True),
)


class _Arguments(ctypes.Structure):
    """The parameter of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weights", "values", "before", "after", "out")),
        *((name, ctypes.c_longlong) for name in ("x_stride", "history_stride", "out_stride")),
        *((name, ctypes.c_int) for name in ("samples", "segments", "length", "items")),
    )


class ResidualUnits:
    """Computes `reference.residual_units` with one set of weights."""

    def __init__(self, upsample: Pointwise, units: Sequence[tuple[Depthwise, Pointwise]]) -> None:
        """Raises KernelUnavailable if the device, the dtype or the modules are not those that the kernel serves."""
        self._cut = cut = choose_cut(upsample, units)
        self._device = device = upsample.weight.device
        compiler.require_hopper(device)
        self._code = compile_units(cut)
        self._weights, self._values = pack(upsample, units, cut.pairs)
        self._slots = multiprocessors(device) * cut.groups

    @property
    def pairs(self) -> bool:
        """True if the input of a call is that of the upsampling."""
        return self._cut.pairs

    def serves(self, streams: int, samples: int) -> bool:
        """True if the kernel is faster for so many samples of each stream. The first call waits for the compiler."""
        return samples >= REACH and streams * samples >= self._cut.least and self._kernel is not None

    @functools.cached_property
    def _kernel(self) -> Function | None:
        shape = Shape(threads=self._cut.threads, shared=self._cut.shared)
        try:
            return compiler.load_function(self._code, NAME, shape, self._device)
        except KernelUnavailable as error:
            logger.warning("residual units of %d channels use more launches: %s", self._cut.channels, error)
            return None

    def __call__(self, x: Tensor, before: Tensor, after: Tensor, out: Tensor, *, length: int | None = None) -> None:
        """Arguments as of `reference.residual_units`, half precision; `length` samples are computed at once."""
        (streams, samples, channels), cut = out.shape, self._cut
        inputs = (1 + samples // 2, 2 * channels) if cut.pairs else (samples, channels)
        shapes = ((streams, *inputs), *2 * ((streams, HISTORY, channels),), (streams, samples, cut.channels))
        for tensor, shape in zip((x, before, after, out), shapes, strict=True):
            if tensor.shape != shape or tensor.dtype != torch.float16 or not tensor[0].is_contiguous():
                raise ValueError(f"expected contiguous float16 {shape}, not {tensor.dtype} {tuple(tensor.shape)}")
            if tensor.data_ptr() % 16 or tensor.stride(0) % 8:
                raise ValueError("each stream must start at a multiple of 16 bytes")
        if samples < REACH or before.stride(0) != after.stride(0):
            raise ValueError(f"a call has at least {REACH} samples, and the past inputs have one stride")
        segments, length = divide(samples, length) if length else plan(streams, samples, cut.rows, self._slots)
        items = streams * segments
        tensors = (x, self._weights, self._values, before, after, out)
        arguments = _Arguments(
            *(tensor.data_ptr() for tensor in tensors),
            x_stride=x.stride(0),
            history_stride=before.stride(0),
            out_stride=out.stride(0),
            samples=samples,
            segments=segments,
            length=length,
            items=items,
        )
        if self._kernel is None:
            raise KernelUnavailable(f"there is no kernel for {cut.channels} channels")
        blocks = max(-(-items // cut.groups), min(items, multiprocessors(self._device)))
        self._kernel.launch((blocks, 1, 1), arguments)


def choose_cut(upsample: Pointwise, units: Sequence[tuple[Depthwise, Pointwise]]) -> Cut:
    """The cut for these modules. Raises KernelUnavailable."""
    if upsample.weight.dtype != torch.float16:
        raise KernelUnavailable(f"the kernel computes in float16, not in {upsample.weight.dtype}")
    shapes = tuple((first.taps.shape[0], first.dilation) for first, _ in units)
    if shapes != tuple((TAPS, dilation) for dilation in DILATIONS):
        raise KernelUnavailable(f"the kernel serves {TAPS} taps with dilations of {DILATIONS}, not {shapes}")
    channels = units[0][0].taps.shape[1]
    by_two = upsample.weight.shape == (2 * channels, 4 * channels)
    for cut in CUTS:
        if cut.channels == channels and (by_two or not cut.pairs):
            return cut
    raise KernelUnavailable(
        f"the kernel does not serve {channels} channels behind {tuple(upsample.weight.shape)} weights"
    )


def compile_units(cut: Cut) -> Future[bytes]:
    """Start to compile a cut. See `compile_cuda`."""
    constants = {
        "C": cut.channels,
        "TILES": cut.tiles,
        "GROUPS": cut.groups,
        "PARTS": cut.parts,
        "STAGES": cut.stages,
        "PAIRS": int(cut.pairs),
        "SHARED": cut.shared,
    }
    multiply = multiply_function(cut.channels, "f16", registers=True)
    return compiler.compile_cuda(SOURCE, constants, before=multiply)


def plan(streams: int, samples: int, rows: int, slots: int) -> tuple[int, int]:
    """The segments of a stream and their length, a multiple of `rows`, with the least time in so many slots."""

    def time(length: int) -> float:
        waves = -(-streams * divide(samples, length)[0] // slots)
        return waves * (length / rows + START)

    lengths = range(rows, samples + rows, rows)
    return divide(samples, min((n for n in lengths if n > HISTORY or n >= samples), key=time))


def divide(samples: int, length: int) -> tuple[int, int]:
    """The segments of a stream if each computes `length` samples, and the length."""
    return 1 + max(0, -(-(samples - length) // (length - HISTORY))) if length < samples else 1, length


def pack(upsample: Pointwise, units: Iterable[tuple[Depthwise, Pointwise]], pairs: bool) -> tuple[Tensor, Tensor]:
    """The weights as they lie in shared memory, and the values per channel, as the kernel declares them."""
    modules = list(units)
    channels = len(modules[0][0].bias)
    order = column_order(channels).to(upsample.weight.device)
    weights = [image(product.weight[order]) for _, product in modules]
    bias = upsample.bias[:channels] if pairs else torch.zeros_like(modules[0][0].bias)
    if pairs:
        both = upsample.weight.view(2, channels, -1)[:, order].flatten(0, 1)
        weights.insert(0, image(both[:, depth_order(both.shape[1]).to(both.device)]))
    assert upsample.snake is not None
    values = [torch.ones_like(bias), bias, upsample.snake.alpha[:channels], upsample.snake.inverse[:channels]]
    for first, second in modules:
        assert second.snake is not None
        bias = bias + second.bias  # a sum in the kernel lacks the biases of all products in it
        scale, shift = second.affine or (torch.ones_like(bias), torch.zeros_like(bias))
        values += [convolution_values(first)]
        values += [scale, scale * bias + shift, second.snake.alpha, second.snake.inverse]
    return torch.cat(weights), torch.cat(values)


def convolution_values(conv: Depthwise) -> Tensor:
    """The values of a convolution for each 8 channels, as the kernel declares them."""
    assert conv.snake is not None
    channels = conv.taps.shape[1]
    taps = conv.taps.new_zeros(channels, 8, dtype=torch.float16)
    taps[:, : len(conv.taps)] = conv.taps.T
    bias, alpha, inverse = (v.view(-1, 4, 2) for v in (conv.bias, conv.snake.alpha, conv.snake.inverse))
    both = torch.cat([bias, bias, alpha, inverse], 2)
    return torch.cat([taps.view(torch.float32).view(-1, 32), both.view(-1, 32)], 1).flatten()


def column_order(channels: int) -> Tensor:
    """The channel of each row of a weight: the matrix unit gives a thread two of every 8 columns."""
    n = torch.arange(channels)
    return 32 * (n // 32) + 8 * (n % 8 // 2) + 2 * (n % 32 // 8) + n % 2


def depth_order(inputs: int) -> Tensor:
    """The input of each column of a weight: a thread loads 8 contiguous inputs for two instructions."""
    n = torch.arange(inputs)
    step, place = n // 16, n % 16
    return 32 * (step // 2) + 8 * (place % 8 // 2) + 4 * (step % 2) + 2 * (place // 8) + place % 2


def image(weight: Tensor) -> Tensor:
    """A weight [n, k] in slabs of 64 inputs, the 16-byte parts of a row exchanged as the matrix unit expects."""
    n, k = weight.shape
    padded = weight.new_zeros(n, 64 * _depths(k))
    padded[:, :k] = weight
    parts = padded.view(n, -1, 8, 8).transpose(0, 1)
    row, part = (torch.arange(size, device=weight.device) for size in (n, 8))
    return parts[:, row[:, None], part ^ row[:, None] & 7].flatten()


def _depths(inputs: int) -> int:
    """Slabs of 64 inputs."""
    return -(-inputs // 64)
