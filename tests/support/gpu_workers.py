"""The number of processes that run the GPU tests, and the tests that share one, by the memory of the GPU.

pytest-xdist asks for both with `-n auto --dist loadscope`, as `make test-gpu` has it.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import pytest

GIB = 1 << 30
LARGE_GIB = 40  # of a process with models of the released dimensions, its engines included
SMALL_GIB = 4  # of any other, in the mean: two or three files take 8 to 12, all others below 3
GIB_PER_LANE = 64
LARGE = (  # files with models of the released dimensions
    "tests/models/voxcpm/test_full_size.py",
    "tests/models/voxcpm/flow/test_persistent.py",
    "tests/models/voxcpm/test_few_rows.py",
    "tests/models/voxcpm/test_pruning.py",
    "tests/test_served_gpu.py",
    "tests/test_two_gpus.py",
)
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of `--dist loadscope` on a host with a GPU."""
    gib = _gib()
    if config.getoption("dist") != "loadscope" or not gib:
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByMemory(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid, lanes(gib))

    return ByMemory(config, log)


def scope(nodeid: str, lanes: int) -> str:
    """The name of what one process runs as a whole: a lane of files with large models, another file, or a test."""
    file = nodeid.partition("::")[0]
    if file in LARGE:
        return f"large models {LARGE.index(file) % lanes}"
    return nodeid if file in SPREAD else file


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _gib() -> float:
    """The memory of the first GPU in GiB; 0 on a host without one."""
    import torch  # most test processes need it not, and would wait for it

    return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else 0.0
