"""The number of processes that run the GPU tests, and the tests that share one, by the memory of the GPU.

pytest-xdist asks for both with `-n auto --dist loadgroup`, as `make test-gpu` has it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import pytest

GIB = 1 << 30
LARGE_GIB = 40  # of a process with models of the released dimensions, its engines included
SMALL_GIB = 4  # of any other, in the mean: two or three files take 8 to 12, all others below 3
GIB_PER_LANE = 64
LARGE = {"full_size", "full_sizes"}  # fixtures
SPREAD = (
    "tests/layers/test_ops.py",
    "tests/layers/test_low_rank.py",
)  # files whose tests need minutes, and no fixtures


def lanes(gib: float) -> int:
    """The number of processes that may have models of the released dimensions at the same time."""
    return max(1, int(gib // GIB_PER_LANE))


def workers(gib: float, cores: int) -> int:
    """The number of processes for a GPU with `gib` GiB of memory."""
    small = max(0, int((gib - lanes(gib) * LARGE_GIB) // SMALL_GIB))
    return max(1, min(cores, lanes(gib) + small))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """The number of processes of `-n auto`. None, which leaves it to pytest-xdist, on a host without a GPU."""
    gib = _gib()
    return workers(gib, os.cpu_count() or 1) if gib else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Give the memory of a file's tests back, which PyTorch would keep for this process alone."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or (nextitem and _file(nextitem) == _file(item)):
        return
    gc.collect()
    torch.cuda.empty_cache()


def group(items: Sequence[pytest.Item]) -> None:
    """Keep the tests of a file in one process, and those of large models in as many as there are lanes."""
    count = lanes(_gib())
    large: dict[str, str] = {}
    for item in items:
        if LARGE & set(getattr(item, "fixturenames", ())):
            large.setdefault(_file(item), f"large-{len(large) % count}")
    for item in items:
        file = _file(item)
        if file not in SPREAD:
            item.add_marker(pytest.mark.xdist_group(large.get(file, file)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _gib() -> float:
    """The memory of the first GPU in GiB; 0 on a host without one."""
    import torch  # most test processes need it not, and would wait for it

    return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else 0.0
