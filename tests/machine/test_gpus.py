"""The count of GPUs, with drivers and PyTorch packages that are made up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = "import sys; from voxcpm_grpc.machine.gpus import visible_gpus; print(visible_gpus(), 'torch' in sys.modules)"
NEEDS_COMPILER = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


def counted(folder: Path, cuda: str | None, driver: str) -> str:
    """The count of a process with a PyTorch of this CUDA, and a driver of this C code."""
    torch = folder / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise AssertionError('PyTorch is imported')")
    (torch / "version.py").write_text(f"cuda = {cuda!r}")
    if driver:
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(folder / "libcuda.so.1"), "-"]
        subprocess.run(command, input=driver, text=True, check=True)
    environment = {**os.environ, "PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def driver(status: int, count: int) -> str:
    return f"int cuInit(unsigned flags) {{return {status};}} int cuDeviceGetCount(int *n) {{*n = {count}; return 0;}}"


@NEEDS_COMPILER
@pytest.mark.parametrize(("status", "count", "found"), [(0, 3, 3), (0, 1, 1), (100, 3, 0)])
def test_the_driver_counts_the_gpus_and_pytorch_is_not_imported(tmp_path, status, count, found):
    assert counted(tmp_path, "12.8", driver(status, count)) == f"{found} False"


@NEEDS_COMPILER
def test_a_driver_that_crashes_costs_no_server(tmp_path):
    assert counted(tmp_path, "12.8", "int cuInit(unsigned flags) {__builtin_trap();}") == "0 False"


@NEEDS_COMPILER
def test_gpus_that_this_pytorch_cannot_use_do_not_count(tmp_path):
    assert counted(tmp_path, None, driver(0, 3)) == "0 False"
