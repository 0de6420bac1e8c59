"""Kernels in CUDA C++ are compiled in the background."""

import sys
from concurrent.futures import wait

import pytest
import torch

pytest.importorskip("triton")
from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable, compile_cuda, load_function
from voxcpm_grpc.models.voxcpm.kernels.flow_advance import SOURCE

CONSTANTS = {"FRAMES": 4, "FIRST": 3}


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiler._start.cache_clear()
    yield
    compiler._start.cache_clear()


@pytest.fixture
def no_bindings(monkeypatch):
    """This process has no access to the run-time compiler."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)


def test_a_kernel_is_compiled_once(no_bindings):
    first = compile_cuda(SOURCE, CONSTANTS)
    assert compile_cuda(SOURCE, dict(CONSTANTS)) is first
    others = [compile_cuda(SOURCE, CONSTANTS | {"FRAMES": 2}), compile_cuda(SOURCE, CONSTANTS, before="// other text")]
    assert first not in others
    wait([first, *others])  # none shall run when the compiler can be used again


def test_without_the_run_time_compiler_the_result_is_the_reason(no_bindings):
    code = compile_cuda(SOURCE, CONSTANTS)
    with pytest.raises(KernelUnavailable, match=r"the compiler cannot be used: .*cuda\.bindings"):
        code.result(60)


def test_a_kernel_that_does_not_compile_cannot_be_loaded(monkeypatch):
    monkeypatch.setattr(compiler, "require_hopper", lambda device: None)
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the run-time compiler, which PyTorch for CUDA brings")
    code = compile_cuda(SOURCE, CONSTANTS, before="not C++")
    if "cannot be used" in str(code.exception(60)):
        pytest.skip(str(code.exception()))
    with pytest.raises(KernelUnavailable, match="does not compile"):
        load_function(code, "flow_advance", compiler.Shape(threads=1, shared=0), torch.device("cpu"))


def test_a_compiled_kernel_is_in_the_cache(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the run-time compiler, which PyTorch for CUDA brings")
    code = compile_cuda(SOURCE, CONSTANTS)
    if code.exception(60):
        pytest.skip(str(code.exception()))
    (cached,) = tmp_path.rglob("code.cubin")
    assert cached.read_bytes() == code.result()
    cached.write_bytes(b"what the cache holds")
    compiler._start.cache_clear()
    assert compile_cuda(SOURCE, CONSTANTS).result(60) == b"what the cache holds"
