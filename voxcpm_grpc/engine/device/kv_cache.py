"""The page tensors of the KV cache, and the number of pages that fit on a device."""

from __future__ import annotations

import torch

from voxcpm_grpc.attention import PagedKV
from voxcpm_grpc.engine.start.gpu_memory import CONTEXT, gpu_name, others_on
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.base import KVLayout
from voxcpm_grpc.settings.engine import EngineSettings

CPU_BUDGET = 2 << 30  # bytes


def allocate_kv(layout: KVLayout, pages: int, page_size: int, device: torch.device) -> PagedKV:
    """A cache of pages 1..pages and the scratch page 0, filled with zeros."""
    shape = (layout.layers, pages + 1, page_size, layout.heads, layout.head_dim)
    return PagedKV(
        torch.zeros(shape, dtype=layout.dtype, device=device), torch.zeros(shape, dtype=layout.dtype, device=device)
    )


def count_pages(
    layout: KVLayout, settings: EngineSettings, device: torch.device, *, slots: int, max_len: int, working: int
) -> int:
    """The number of pages, once weights and slots are in memory, with `working` bytes left for steps and graphs.

    Raises StartupError, with the calculation, if the requested positions or one stream of full length do not fit.
    """
    page_bytes = layout.bytes_per_position * settings.page_size
    stream_pages = -(-max_len // settings.page_size)  # pages of a stream of full length
    wanted = -(-(settings.kv_positions or slots * max_len) // settings.page_size)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        used, share = total - free, f"{settings.gpu_memory_utilization:.0%}"
        if settings.gpu_memory_part < 1:  # the memory of others is in their parts
            used = torch.cuda.memory_reserved(device) + CONTEXT
            share += f" x {settings.gpu_memory_part:g}"
        budget = int(total * settings.gpu_memory_utilization * settings.gpu_memory_part) - used - working
        budget = min(budget, free - working)
        source = (
            f"{share} of {total / 2**30:.1f} GiB, less {used / 2**30:.1f} GiB in use and {working / 2**30:.1f} GiB for "
            "steps and graphs"
        )
    else:
        budget, source = CPU_BUDGET, "the budget on a CPU"
    fits = budget // page_bytes
    if settings.kv_positions and wanted > fits:
        raise StartupError(
            f"engine.kv_positions {settings.kv_positions} needs {wanted * page_bytes / 2**30:.2f} GiB and "
            f"{max(budget, 0) / 2**30:.2f} GiB is available ({source}); lower it or raise engine.gpu_memory_utilization"
            + _beside(device)
        )
    pages = min(wanted, fits)
    if pages < (stream_pages if not settings.kv_positions else 1):
        raise StartupError(
            f"one stream of {max_len} positions needs {stream_pages * page_bytes / 2**30:.2f} GiB of KV cache and "
            f"{max(budget, 0) / 2**30:.2f} GiB is available ({source}); lower engine.max_model_len or "
            f"engine.max_slots, or raise engine.gpu_memory_utilization{_beside(device)}"
        )
    return pages


def _beside(device: torch.device) -> str:
    """A clause about other programs on the GPU; empty without any, and on a CPU."""
    others = others_on(device) if device.type == "cuda" else ""
    return f". On {gpu_name(device)}, {others}" if others else ""
