"""The Euler loop of one stream in a single launch: a kernel that runs all layers of all evaluations.

With one stream the loop is bound by the loading of weights, and separate kernels leave the memory idle between them.
This kernel loads the weights through shared memory without a pause while blocks on all multiprocessors compute the
layers together. It serves one shape, that of VoxCPM2's released diffusion transformer, on GPUs of compute capability
9.0, and is compiled at its first use. `KernelUnavailable` gives the reason if it cannot be used.

Dimensions: e hidden size, P frames of a patch, D latent channels, n evaluations.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxcpm_grpc.kernels.cuda.compiler import (
    Function,
    KernelUnavailable,
    Shape,
    compile_cuda,
    load_function,
    require_hopper,
)

SOURCE = "flow.cu"

# The constants of flow.cu, which is written for these sizes.
HIDDEN, FFN, HEADS, KV_HEADS, HEAD, PATCH, LATENT, TOKENS = 1024, 4096, 16, 2, 128, 4, 64, 11
HALF, ROWS = 12, 24  # rows of one guidance half and of both, including padding
BLOCKS, RANKS, CLUSTER, THREADS = 128, 4, 2, 256
SLOT = 8192  # elements of a slot: 16 outputs x 512 inputs
SLOTS, INPUT = 11, 49152  # slots in shared memory; bytes of the input of a phase


POINTERS = (
    *("weights", "q", "kv", "mlp", "x", "noise", "mu", "condition", "cfg", "time", "size", "in_weight", "in_bias"),
    *("condition_weight", "condition_bias", "out_bias", "rotation", "out", "received", "velocity", "counters"),
)


class _Arguments(ctypes.Structure):
    """The parameter of the kernel, as flow.cu declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("layers", ctypes.c_int),
        ("evaluations", ctypes.c_int),
        ("eps", ctypes.c_float),
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
        self._weights = pack(weights.layers, out)
        zeros = functools.partial(torch.zeros, dtype=torch.bfloat16, device=device)
        rotation = torch.zeros(HALF, HEAD // 2, 2, device=device)
        rotation[:TOKENS] = torch.stack([weights.cos, weights.sin], dim=-1)[:TOKENS]
        self._fixed: dict[str, Tensor] = {
            "weights": self._weights,
            "q": zeros(HEADS, 2, 16, HEAD),
            "kv": zeros(KV_HEADS, 2, 2, 16, HEAD),
            "mlp": zeros(ROWS, FFN),
            "x": zeros(ROWS, HIDDEN),
            "in_weight": weights.in_proj[0].contiguous(),
            "in_bias": weights.in_proj[1],
            "condition_weight": weights.cond_proj[0].contiguous(),
            "condition_bias": weights.cond_proj[1],
            "out_bias": weights.out_proj[1],
            "rotation": rotation,
            "received": torch.zeros(BLOCKS * RANKS * 4 * ROWS, 4, dtype=torch.int32, device=device),
            "velocity": torch.zeros(BLOCKS // RANKS * 2 * PATCH * LATENT, 2, dtype=torch.int32, device=device),
            "counters": torch.zeros(3, dtype=torch.int32, device=device),
        }
        self._sizes = {"layers": len(weights.layers), "eps": weights.eps}

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
        pointers = {name: tensor.data_ptr() for name, tensor in (self._fixed | given).items()}
        self._kernel.launch((BLOCKS, 1, 1), _Arguments(evaluations=n, **self._sizes, **pointers))
        return out


def packed_bytes(layers: int) -> int:
    """Bytes of the weights of so many layers as `pack` writes them."""
    lead = BLOCKS // RANKS
    return ((16 * layers + 2) * BLOCKS + 2 * layers * lead) * SLOT * 2


@functools.cache
def load_kernel(device: torch.device) -> Function:
    """The kernel, compiled for the device. Raises KernelUnavailable."""
    require_hopper(device)
    shape = Shape(threads=THREADS, shared=SLOTS * SLOT * 2 + INPUT, cluster=(CLUSTER, 1, 1), cooperative=True)
    kernel = load_function(compile_cuda(SOURCE), "flow", shape, device)
    if (fit := kernel.max_active_clusters((BLOCKS, 1, 1))) < BLOCKS // CLUSTER:
        raise KernelUnavailable(
            f"the device runs {fit} clusters at the same time, the kernel needs {BLOCKS // CLUSTER}"
        )
    return kernel


def pack(layers: Sequence[LayerWeights], out: Tensor) -> Tensor:
    """The weights of every block in the order in which it uses them, bfloat16 [slots, SLOT]."""
    block = torch.arange(BLOCKS, device=out.device)
    lead = block[block % RANKS == 0]  # blocks with two tiles of q, k, v: there are 160 tiles for 128 blocks
    lean, more = 16 * len(layers) + 2, 2 * len(layers)
    start = lean * block + more * ((block + RANKS - 1) // RANKS)
    slots = torch.empty(lean * BLOCKS + more * len(lead), SLOT, dtype=out.dtype, device=out.device)
    end = start.clone()

    def put(blocks: Tensor, tiles: Tensor) -> None:
        """Append tiles [blocks, tiles, 16, inputs] to the slots of these blocks."""
        fragments = _fragments(tiles)
        count = fragments.shape[1]
        slots[end[blocks, None] + torch.arange(count, device=out.device)] = fragments
        end[blocks] += count

    for layer in layers:
        q, k, v = layer.qkv.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD])
        rotated = torch.cat([q, k]).view(-1, 2, HEAD // 16, 8, HIDDEN).transpose(1, 2).reshape(-1, 16, HIDDEN)
        qkv = torch.cat([rotated, v.view(-1, 16, HIDDEN)])[:, None]  # channels rotated together share a tile
        put(block, qkv[:BLOCKS])
        put(lead, qkv[BLOCKS:])
        put(block, _quarters(layer.out))
        put(block, layer.gate_up.view(2, BLOCKS, 4, 8, HIDDEN).permute(1, 2, 0, 3, 4).reshape(BLOCKS, 4, 16, HIDDEN))
        put(block, _quarters(layer.down))
    put(block, out.view(RANKS, 1, 16, HIDDEN).repeat(BLOCKS // RANKS, 1, 1, 1))
    return slots


def _quarters(weight: Tensor) -> Tensor:
    """[e, inputs] -> [blocks, 2, 16, inputs / 4]: 32 outputs of a group, a quarter of the inputs in each block."""
    parts = weight.view(BLOCKS // RANKS, 2, 16, RANKS, -1)
    return parts.permute(0, 3, 1, 2, 4).reshape(BLOCKS, 2, 16, -1)


def _fragments(tiles: Tensor) -> Tensor:
    """[blocks, tiles, 16, inputs] -> [blocks, slots, SLOT] in the order of the matrix unit's lanes, 16 bytes each."""
    lanes = tiles.reshape(*tiles.shape[:2], 2, 8, -1, 2, 4, 2)  # output 8 r + g, input 16 s + 8 h + 2 t + i
    return lanes.permute(0, 1, 4, 3, 6, 5, 2, 7).reshape(len(tiles), -1, SLOT)  # s, g, t, h, r, i
