"""The Euler loop of one stream in a single launch: a kernel that runs all layers of all evaluations.

With one stream the loop is bound by the loading of weights, and separate kernels leave the memory idle between them.
This kernel loads the weights through shared memory without a pause while 128 blocks compute the layers together, which
exchange packets through the cache. It serves one shape, that of VoxCPM2's released diffusion transformer, on GPUs of
compute capability 9.0, and is compiled at its first use. `KernelUnavailable` gives the reason if it cannot be used.

Dimensions: e hidden size, P frames of a patch, D latent channels, n evaluations.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import Function, KernelUnavailable, Shape, compile_cuda, load_function

SOURCE = "flow.cu"

# The constants of block.cuh, stack.cuh and flow.cu, which are written for these sizes.
HIDDEN, FFN, HEADS, KV_HEADS, HEAD, PATCH, LATENT, TOKENS = 1024, 4096, 16, 2, 128, 4, 64, 11
HALF = 12  # rows of one guidance half, including padding
BLOCKS, CLUSTER, RANKS, THREADS = 128, 2, 16, 256
PAIRS, GROUPS = BLOCKS // CLUSTER, BLOCKS // RANKS
SLOT = 2048  # elements of a slot: 16 outputs x 128 inputs
LAYER, VELOCITY = 66, 16  # slots of a block: of a layer, of the projection to velocities
SLOTS, OPERANDS, VARIABLES = 42, 36864, 20480  # slots in shared memory; bytes of what lies there before and behind them
SHARED = SLOTS * SLOT * 2 + OPERANDS + VARIABLES

PACKETS = {
    "x": 2 * HIDDEN // 8,
    "q": HEADS * HEAD // 8,
    "k": KV_HEADS * HEAD // 8,
    "v": KV_HEADS * HEAD // 8,
    "mlp": FFN // 8,
    "sums": BLOCKS * RANKS * 2,
}  # groups of 32 packets of 16 bytes
INPUTS = ("noise", "mu", "condition", "cfg", "time", "size")
FIXED = ("in_weight", "in_bias", "condition_weight", "condition_bias", "out_bias", "rotation")


class _Model(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("tail", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("layers", "tail_slots", "evaluations", "tokens")),
        ("eps", ctypes.c_float),
    )


class _Packets(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in (*PACKETS, "tags"))


class _Arguments(ctypes.Structure):
    """The parameter of the kernel, as flow.cu declares it."""

    _fields_ = (
        ("model", _Model),
        ("packets", _Packets),
        *((name, ctypes.c_void_p) for name in (*INPUTS, *FIXED, "out")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """The matrices of a layer, bfloat16 [outputs, inputs]. qkv and gate_up include the norm before them."""

    qkv: Tensor  # q, k, v
    out: Tensor
    gate_up: Tensor  # gate, up
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowWeights:
    """The weights of the loop. `models.voxcpm.persistent.flow_weights` takes them from a model."""

    layers: Sequence[LayerWeights]
    eps: float
    in_proj: tuple[Tensor, Tensor]  # weight [e, D], bias [e]
    cond_proj: tuple[Tensor, Tensor]
    out_proj: tuple[Tensor, Tensor]  # weight [D, e], including that of the final norm, and bias [D]
    cos: Tensor  # float32 [>= 11, HEAD / 2]
    sin: Tensor


class PersistentFlow:
    """The loop with one set of weights, which it copies (415 MB with 12 layers).

    Its calls share memory, so they must not run at the same time.
    """

    def __init__(self, weights: FlowWeights) -> None:
        """Raises KernelUnavailable if the device, the dtype or the compiler does not meet the kernel's needs."""
        out, device = weights.out_proj[0], weights.out_proj[0].device
        if out.dtype != torch.bfloat16 or device.type != "cuda":
            raise KernelUnavailable(f"the kernel needs bfloat16 weights on a GPU, not {out.dtype} on {device}")
        self._kernel = load_kernel(device)
        self._layers, self._eps = len(weights.layers), weights.eps
        self._weights, self._tail = pack(weights.layers, out)
        words = functools.partial(torch.zeros, dtype=torch.int32, device=device)
        self._packets = {name: words(count * 32 * 4) for name, count in PACKETS.items()} | {"tags": words(BLOCKS)}
        rotation = torch.zeros(HALF, HEAD // 2, 2, device=device)
        rotation[:TOKENS] = torch.stack([weights.cos, weights.sin], dim=-1)[:TOKENS]
        self._fixed = {
            "in_weight": weights.in_proj[0].contiguous(),
            "in_bias": weights.in_proj[1],
            "condition_weight": weights.cond_proj[0].contiguous(),
            "condition_bias": weights.cond_proj[1],
            "out_bias": weights.out_proj[1],
            "rotation": rotation,
        }

    def __call__(self, noise: Tensor, mu: Tensor, condition: Tensor, cfg: Tensor, time: Tensor, size: Tensor) -> Tensor:
        """The new patch, float32 [1, P, D].

        noise float32 [1, P, D]; mu bfloat16 [1, 2, e]; condition bfloat16 [1, P, D], the previous patch; cfg float32
        [1]; time bfloat16 [n, e] and size float32 [n], the time token and the step size of each evaluation.
        """
        n = len(size)
        out = torch.empty_like(noise)
        given = {"noise": noise, "mu": mu, "condition": condition, "cfg": cfg, "time": time, "size": size, "out": out}
        shapes = ((1, PATCH, LATENT), (1, 2, HIDDEN), (1, PATCH, LATENT), (1,), (n, HIDDEN), (n,), (1, PATCH, LATENT))
        wide = {"noise", "cfg", "size", "out"}
        for (name, tensor), shape in zip(given.items(), shapes, strict=True):
            dtype = torch.float32 if name in wide else torch.bfloat16
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, not contiguous {dtype} {list(shape)}")
        model = _Model(
            weights=self._weights.data_ptr(),
            tail=self._tail.data_ptr(),
            layers=self._layers,
            tail_slots=VELOCITY,
            evaluations=n,
            tokens=TOKENS,
            eps=self._eps,
        )
        packets = _Packets(**{name: tensor.data_ptr() for name, tensor in self._packets.items()})
        pointers = {name: tensor.data_ptr() for name, tensor in (self._fixed | given).items()}
        self._kernel.launch((BLOCKS, 1, 1), _Arguments(model=model, packets=packets, **pointers))
        return out


def packed_bytes(layers: int) -> int:
    """Bytes of the weights of so many layers as `pack` writes them."""
    return (LAYER * layers * BLOCKS + VELOCITY * CLUSTER) * SLOT * 2


@functools.cache
def load_kernel(device: torch.device) -> Function:
    """The kernel, compiled for the device. Raises KernelUnavailable."""
    compiler.require_hopper(device)
    shape = Shape(threads=THREADS, shared=SHARED, cluster=(CLUSTER, 1, 1), cooperative=True)
    kernel = load_function(compile_cuda(SOURCE), "flow", shape, device)
    if (fit := kernel.max_active_clusters((BLOCKS, 1, 1))) < PAIRS:
        raise KernelUnavailable(f"the device runs {fit} clusters at the same time, the kernel needs {PAIRS}")
    return kernel


def pack(layers: Sequence[LayerWeights], out: Tensor) -> tuple[Tensor, Tensor]:
    """The weights in the order in which blocks use them, and those of the projection to velocities.

    bfloat16 [blocks, layers x LAYER, SLOT] and [CLUSTER, VELOCITY, SLOT].
    """
    slots = out.new_empty(BLOCKS, len(layers), LAYER, SLOT)
    for i, layer in enumerate(layers):
        parts = _pack_qkv(layer.qkv), _pack_output(layer.out), _pack_gate_up(layer.gate_up), _pack_output(layer.down)
        torch.cat([part.reshape(BLOCKS, -1, SLOT) for part in parts], dim=1, out=slots[:, i])
    tiles = out.view(4, 16, CLUSTER, 2, -1).permute(2, 3, 0, 1, 4)  # side, team, tile, output, input
    return slots.view(BLOCKS, -1, SLOT), _fragments(tiles).reshape(CLUSTER, VELOCITY, SLOT)


def _pack_qkv(weight: Tensor) -> Tensor:
    """[2560, e] -> [blocks, 10 slots]. A pair of blocks has two tiles of q and half a tile of k or v."""
    q, k, v = weight.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD])
    # Channels that are rotated together share a tile: 8 and 8 of q, 4 and 4 of k.
    tiles = q.view(HEADS, 2, HEAD // 16, 8, HIDDEN).transpose(1, 2).reshape(PAIRS, 2, 16, HIDDEN)
    k = k.view(KV_HEADS, 2, HEAD // 8, 4, HIDDEN).transpose(1, 2)
    halves = torch.cat([k.reshape(-1, 1, 2, 4, HIDDEN), v.view(-1, 1, 2, 4, HIDDEN)])
    halves = F.pad(halves, (0, 0, 0, 4)).view(PAIRS, 1, 16, HIDDEN)
    parts = _fragments(torch.cat([tiles, halves], dim=1).view(PAIRS, 3, 16, CLUSTER, 2, -1).permute(0, 3, 4, 1, 2, 5))
    half = parts[:, :, :, 2].unflatten(-1, (-1, 32, 8))[..., :16, :].flatten(-3)  # the lanes of its outputs
    return torch.cat([parts[:, :, :, :2].flatten(3), half], dim=-1)


def _pack_output(weight: Tensor) -> Tensor:
    """[e, inputs] -> [blocks, slots]. A block has the 128 outputs of its group and a sixteenth of the inputs."""
    return _fragments(weight.view(GROUPS, 8, 16, RANKS, -1).permute(0, 3, 1, 2, 4))


def _pack_gate_up(weight: Tensor) -> Tensor:
    """[2 FFN, e] -> [blocks, 32 slots]. A tile has 8 gates and the 8 values that they gate."""
    return _fragments(weight.view(2, PAIRS, 8, 8, CLUSTER, -1).permute(1, 4, 2, 0, 3, 5).flatten(3, 4))


def _fragments(tiles: Tensor) -> Tensor:
    """[..., 16, inputs] -> [..., 16 x inputs] in the order of the matrix unit's lanes, 16 bytes each."""
    lanes = tiles.reshape(*tiles.shape[:-2], 2, 8, -1, 2, 4, 2)  # output 8 r + g, input 16 s + 8 h + 2 t + i
    order = [-4, -5, -2, -3, -6, -1]  # s, g, t, h, r, i
    return lanes.permute(*range(tiles.ndim - 2), *order).flatten(-6)
