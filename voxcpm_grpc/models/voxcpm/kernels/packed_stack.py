"""The layers of a small transformer, packed for a kernel that computes all of them in one launch.

With one stream a stack is bound by the loading of weights, and separate kernels leave the memory idle between them.
Such a kernel loads the weights through shared memory without a pause while 128 blocks compute the layers together.
The blocks exchange packets through the cache (stack.cuh). It serves the sizes of the encoder of patches and of the
diffusion transformer of VoxCPM2, on GPUs of compute capability 9.0.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import Function, KernelUnavailable, Shape, compile_cuda, load_function

# block.cuh and stack.cuh have the same constants, and are written for these sizes.
HIDDEN, FFN, HEADS, KV_HEADS, HEAD = 1024, 4096, 16, 2, 128
HALF = 12  # rows of one sequence, including padding
BLOCKS, CLUSTER, RANKS, THREADS = 128, 2, 16, 256
PAIRS, GROUPS = BLOCKS // CLUSTER, BLOCKS // RANKS
SLOT = 2048  # elements of a slot: 16 outputs x 128 inputs
LAYER = 66  # a block has so many slots for each layer
# Shared memory has so many slots; the bytes of what lies there before and behind them follow.
SLOTS, OPERANDS, VARIABLES = 42, 36864, 20480
SHARED = SLOTS * SLOT * 2 + OPERANDS + VARIABLES

PACKETS = {
    "x": 2 * HIDDEN // 8,
    "q": HEADS * HEAD // 8,
    "k": KV_HEADS * HEAD // 8,
    "v": KV_HEADS * HEAD // 8,
    "mlp": FFN // 8,
    "sums": BLOCKS * RANKS * 2,
}  # packets of 16 bytes, in groups of 32


class Model(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("tail", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("layers", "tail_slots", "evaluations", "tokens")),
        ("eps", ctypes.c_float),
    )


class Packets(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in (*PACKETS, "tags"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """The matrices of a layer, bfloat16 [outputs, inputs]. qkv and gate_up include the norm before them."""

    qkv: Tensor  # q, k and v follow each other
    out: Tensor
    gate_up: Tensor  # gate and up follow each other
    down: Tensor


class PackedStack:
    """Layers with a copy of their weights (415 MB with 12 layers), and the memory in which blocks exchange packets.

    What follows the layers, bfloat16 [64, e], may be packed with them.
    """

    def __init__(self, layers: Sequence[LayerWeights], eps: float, device: torch.device, tail: Tensor | None = None):
        self._layers, self._eps = len(layers), eps
        self._weights = pack(layers, device)
        self._tail = torch.empty(CLUSTER, 0, SLOT, device=device) if tail is None else pack_tail(tail)
        words = functools.partial(torch.zeros, dtype=torch.int32, device=device)
        self._packets = {name: words(count * 32 * 4) for name, count in PACKETS.items()} | {"tags": words(BLOCKS)}

    def model(self, evaluations: int, tokens: int) -> Model:
        return Model(
            weights=self._weights.data_ptr(),
            tail=self._tail.data_ptr(),
            layers=self._layers,
            tail_slots=self._tail.shape[1],
            evaluations=evaluations,
            tokens=tokens,
            eps=self._eps,
        )

    def packets(self) -> Packets:
        return Packets(**{name: tensor.data_ptr() for name, tensor in self._packets.items()})


def rotation_table(cos: Tensor, sin: Tensor) -> Tensor:
    """float32 [HALF, HEAD / 2, 2] of the cosines and sines of at most HALF positions."""
    table = torch.zeros(HALF, HEAD // 2, 2, device=cos.device)
    table[: len(cos)] = torch.stack([cos, sin], dim=-1)
    return table


def packed_bytes(layers: int, tail: int = 0) -> int:
    """Bytes of the packed weights of so many layers, and of a tail of so many slots."""
    return (LAYER * layers * BLOCKS + tail * CLUSTER) * SLOT * 2


@functools.cache
def load_kernel(source: Path, name: str, device: torch.device) -> Function:
    """The kernel `name` of a source, compiled for the device. Raises KernelUnavailable."""
    compiler.require_hopper(device)
    shape = Shape(threads=THREADS, shared=SHARED, cluster=(CLUSTER, 1, 1), cooperative=True)
    kernel = load_function(compile_cuda(source), name, shape, device)
    if (fit := kernel.max_active_clusters((BLOCKS, 1, 1))) < PAIRS:
        raise KernelUnavailable(f"the device runs {fit} clusters at the same time, the kernel needs {PAIRS}")
    return kernel


def pack(layers: Sequence[LayerWeights], device: torch.device) -> Tensor:
    """The weights in the order in which blocks use them, bfloat16 [blocks, layers x LAYER, SLOT]."""
    slots = torch.empty(BLOCKS, len(layers), LAYER, SLOT, dtype=torch.bfloat16, device=device)
    for i, layer in enumerate(layers):
        parts = _pack_qkv(layer.qkv), _pack_output(layer.out), _pack_gate_up(layer.gate_up), _pack_output(layer.down)
        torch.cat([part.reshape(BLOCKS, -1, SLOT) for part in parts], dim=1, out=slots[:, i])
    return slots.view(BLOCKS, -1, SLOT)


def pack_tail(weight: Tensor) -> Tensor:
    """[64, e] -> [CLUSTER, slots, SLOT]. Each team of a pair of blocks has all outputs of a quarter of the inputs."""
    tiles = weight.view(4, 16, CLUSTER, 2, -1).permute(2, 3, 0, 1, 4)  # [side, team, tile, output, input]
    return _fragments(tiles).reshape(CLUSTER, -1, SLOT)


def _pack_qkv(weight: Tensor) -> Tensor:
    """[2560, e] -> [blocks, 10 slots]. A pair of blocks has two tiles of q and half a tile of k or v."""
    q, k, v = weight.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD])
    # Channels that are rotated together share a tile: 8 and 8 of q, 4 and 4 of k.
    tiles = q.view(HEADS, 2, HEAD // 16, 8, HIDDEN).transpose(1, 2).reshape(PAIRS, 2, 16, HIDDEN)
    k = k.view(KV_HEADS, 2, HEAD // 8, 4, HIDDEN).transpose(1, 2)
    halves = torch.cat([k.reshape(-1, 1, 2, 4, HIDDEN), v.view(-1, 1, 2, 4, HIDDEN)])
    halves = F.pad(halves, (0, 0, 0, 4)).view(PAIRS, 1, 16, HIDDEN)
    parts = _fragments(torch.cat([tiles, halves], dim=1).view(PAIRS, 3, 16, CLUSTER, 2, -1).permute(0, 3, 4, 1, 2, 5))
    # The lanes of the outputs it has are kept.
    half = parts[:, :, :, 2].unflatten(-1, (-1, 32, 8))[..., :16, :].flatten(-3)
    return torch.cat([parts[:, :, :, :2].flatten(3), half], dim=-1)


def _pack_output(weight: Tensor) -> Tensor:
    """[e, inputs] -> [blocks, slots]. A block has the 128 outputs of its group and a sixteenth of the inputs."""
    return _fragments(weight.view(GROUPS, 8, 16, RANKS, -1).permute(0, 3, 1, 2, 4))


def _pack_gate_up(weight: Tensor) -> Tensor:
    """[2 FFN, e] -> [blocks, 32 slots]. A tile has 8 gates and the 8 values that they gate."""
    return _fragments(weight.view(2, PAIRS, 8, 8, CLUSTER, -1).permute(1, 4, 2, 0, 3, 5).flatten(3, 4))


def _fragments(tiles: Tensor) -> Tensor:
    """[..., 16, inputs] -> [..., 16 x inputs] in the order of the matrix unit's lanes, 16 bytes each."""
    # The outputs are 8 r + g, the inputs 16 s + 8 h + 2 t + i.
    lanes = tiles.reshape(*tiles.shape[:-2], 2, 8, -1, 2, 4, 2)
    order = [-4, -5, -2, -3, -6, -1]  # [s, g, t, h, r, i]
    return lanes.permute(*range(tiles.ndim - 2), *order).flatten(-6)
