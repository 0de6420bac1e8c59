"""The layers of a language model in a single launch: a kernel that decodes the new position of one sequence.

With one row the layers are bound by the loading of weights, and separate kernels leave the memory idle between them.
This kernel loads the weights through shared memory without a pause while 128 blocks compute the layers together, which
exchange packets through the cache. It reads the weights where they are, so it takes no memory for them. It serves one
shape, that of VoxCPM2's released language models, on GPUs of compute capability 9.0, and is compiled at its first use.
`KernelUnavailable` gives the reason if it cannot be used.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import Function, KernelUnavailable, Shape, compile_cuda, load_function
from voxcpm_grpc.models.voxcpm.kernels.persistent import LayerWeights

SOURCE = Path(__file__).with_name("decode_layers.cu")

# decode_layers.cu has the same constants, and is written for these sizes.
HIDDEN, FFN, HEADS, KV_HEADS, HEAD = 2048, 6144, 16, 2, 128
BLOCKS, THREADS, SHARED = 128, 288, 220 * 1024
MAX_CONTEXT = 512 * BLOCKS // KV_HEADS  # positions
COPIES = 4  # all blocks read packets, which have so many copies

PACKETS = {
    "x": COPIES * HIDDEN // 4,
    "q": HIDDEN // 4,
    "kv": 2 * KV_HEADS * HEAD // 4,
    "parts": BLOCKS * HEADS // KV_HEADS * HEAD // 4 * 2,
    "mixed": COPIES * HIDDEN // 4,
    "gated": COPIES * BLOCKS * 8,
}  # packets of 16 bytes
POINTERS = ("input", "norm", "output", "cos", "sin", "keys", "values", "context", "table", "write")


def arguments_type(counts: Sequence[str]) -> type[ctypes.Structure]:
    """The parameter of a kernel, as its source declares it, with these numbers."""
    fields = (
        *((name, ctypes.c_void_p) for name in ("layers", *PACKETS, "tags", *POINTERS)),
        ("layer_stride", ctypes.c_longlong),
        *((name, ctypes.c_uint) for name in counts),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWeights:
    """The weights of a language model. `models.voxcpm.few_rows.decode_weights` takes them from a model."""

    layers: Sequence[LayerWeights]
    norm: Tensor  # bfloat16 [HIDDEN]
    eps: float
    residual_scale: float


class DecodeLayers:
    """The layers with one set of weights, and the norm behind them, for one row.

    Calls share memory, so they must not run at the same time.
    """

    packets: ClassVar = PACKETS
    counts: ClassVar = ("count", "page_size", "capacity")
    arguments: ClassVar = arguments_type(counts)

    def __init__(self, weights: DecodeWeights) -> None:
        """Raises KernelUnavailable if the device, the dtype or the compiler does not meet the kernel's needs."""
        device, dtype = weights.norm.device, weights.norm.dtype
        if dtype != torch.bfloat16 or device.type != "cuda":
            raise KernelUnavailable(f"the kernel needs bfloat16 weights on a GPU, not {dtype} on {device}")
        self._kernels = self.load(device)
        self._weights = weights  # the kernel reads them where they are
        pointers = [
            [w.data_ptr() for w in (layer.qkv, layer.out, layer.gate_up, layer.down)] for layer in weights.layers
        ]
        self._layers = torch.tensor(pointers, dtype=torch.int64).to(device)
        words = functools.partial(torch.zeros, dtype=torch.int32, device=device)
        self._packets = {name: words(count * 4) for name, count in self.packets.items()} | {"tags": words(BLOCKS)}

    @staticmethod
    def load(device: torch.device) -> dict[int, Function]:
        """The kernel by the number of rows. Raises KernelUnavailable."""
        return {1: load_kernel(device)}

    def __call__(
        self,
        x: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        k_pages: Tensor,
        v_pages: Tensor,
        context: Tensor,
        block_table: Tensor,
        write: Tensor,
    ) -> Tensor:
        """Computes `reference.decode_layers`: the normalized output of the layers, [s, HIDDEN].

        x bfloat16 [s, HIDDEN], with a number of rows that the kernel serves; cos and sin float32 [s, HEAD / 2], or None
        for no rotation; k_pages and v_pages [layers, pages, page_size, KV_HEADS, HEAD], with 16 or 32 positions in a
        page; context int32 [s], at most MAX_CONTEXT; block_table int32 [s, p]; write int64 [s].
        """
        out = torch.empty_like(x)
        given = {"input": x, "norm": self._weights.norm, "output": out, "cos": cos, "sin": sin, "keys": k_pages}
        given |= {"values": v_pages, "context": context, "table": block_table, "write": write}
        for name, tensor in given.items():
            if tensor is not None and not tensor.is_contiguous():
                raise ValueError(f"{name} must be contiguous")
        if len(k_pages) != len(self._layers) or x.shape[1:] != (HIDDEN,) or len(x) not in self._kernels:
            raise ValueError(f"x is {list(x.shape)} and the cache has {len(k_pages)} layers")
        tensors = {"layers": self._layers} | self._packets | given
        pointers = {name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()}
        weights = self._weights
        pages, page_size = block_table.shape[1], k_pages.shape[2]
        sizes = {"count": len(self._layers), "page_size": page_size, "pages": pages}
        sizes["capacity"] = min(pages * page_size, MAX_CONTEXT)
        pointers |= {name: sizes[name] for name in self.counts}
        arguments = self.arguments(
            **pointers, layer_stride=k_pages.stride(0), eps=weights.eps, scale=weights.residual_scale
        )
        self._kernels[len(x)].launch((BLOCKS, 1, 1), arguments)
        return out


@functools.cache
def load_kernel(device: torch.device) -> Function:
    """The kernel, compiled for the device. Raises KernelUnavailable."""
    compiler.require_hopper(device)
    if (have := torch.cuda.get_device_properties(device).multi_processor_count) < BLOCKS:
        raise KernelUnavailable(
            f"the device has {have} multiprocessors, and each runs one of the kernel's {BLOCKS} blocks"
        )
    shape = Shape(threads=THREADS, shared=SHARED, cooperative=True)
    return load_function(compile_cuda(SOURCE), "decode_layers", shape, device)
