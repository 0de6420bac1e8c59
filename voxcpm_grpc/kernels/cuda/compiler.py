"""Compiles kernels in CUDA C++ for Hopper at their first use, and launches them.

They serve what Triton cannot express. `KernelUnavailable` gives the reason if a kernel cannot be used. Threads compile
kernels beside each other, and while their user does something else.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


class CudaError(RuntimeError):
    """A CUDA call failed. The message is its status."""


def checked(result: tuple[Any, ...], *, many: bool = False) -> Any:
    """The first value that a CUDA call returns beside its status, or all values. Raises CudaError."""
    status, *values = result
    if int(status) != 0:
        raise CudaError(status.name)
    return values if many else values[0] if values else None


logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
HEADER, CACHED = "hopper.cuh", "code.cubin"
MAX_THREADS = 8


class KernelUnavailable(RuntimeError):
    """The kernel does not serve this machine or this model."""


@contextmanager
def suppress_unavailable(consequence: str) -> Iterator[None]:
    """End the block at KernelUnavailable, and log the consequence for the user with the reason."""
    try:
        yield
    except KernelUnavailable as error:
        logger.info("%s: %s", consequence, error)


@contextmanager
def _cuda_errors_as_unavailable() -> Iterator[None]:
    try:
        yield
    except CudaError as error:
        raise KernelUnavailable(f"CUDA rejects the kernel: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a launch. Blocks of a `cluster` share memory. A `cooperative` grid runs all blocks at once.

    An `early` kernel may start before the previous one has ended, and waits for it itself (see `kernels.launch`).
    """

    threads: int
    shared: int  # bytes of dynamic shared memory
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    early: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    handle: Any
    shape: Shape
    device: torch.device

    def launch(self, grid: tuple[int, int, int], *parameters: Any) -> None:
        """Launch on the current stream; can be captured. `parameters` are ctypes values as declared in the source."""
        from cuda.bindings import driver

        config = _launch_config(driver, self.shape, grid, torch.cuda.current_stream(self.device).cuda_stream)
        pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(value) for value in parameters))
        checked(driver.cuLaunchKernelEx(config, self.handle, ctypes.addressof(pointers), 0))

    @_cuda_errors_as_unavailable()
    def max_active_clusters(self, grid: tuple[int, int, int]) -> int:
        """The number of clusters of such a grid that the device can run at the same time."""
        from cuda.bindings import driver

        return checked(driver.cuOccupancyMaxActiveClusters(self.handle, _launch_config(driver, self.shape, grid, 0)))


@_cuda_errors_as_unavailable()
def load_function(code: Future[bytes], name: str, shape: Shape, device: torch.device) -> Function:
    """The kernel `name` of the machine code, on a device of compute capability 9.0. Raises KernelUnavailable.

    Waits for the compiler.
    """
    require_hopper(device)
    binary = code.result()
    from cuda.bindings import driver

    if not torch.cuda.is_current_stream_capturing():  # a capture would record it
        torch.zeros(1, device=device)  # the tensor creates the context that the driver's calls need
    with torch.cuda.device(device):
        module = checked(driver.cuModuleLoadData(binary))
        handle = checked(driver.cuModuleGetFunction(module, name.encode()))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(handle, attribute, shape.shared))
    return Function(handle, shape, device)


@functools.cache
def require_hopper(device: torch.device) -> None:
    """Raise KernelUnavailable if the device cannot run kernels that are compiled here."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        raise KernelUnavailable(f"the kernel is written for compute capability 9.0 (H100, H200), not for {device}")
    try:
        from cuda.bindings import driver as _  # noqa: F401
    except ImportError as error:
        raise KernelUnavailable("the kernel needs the package cuda-bindings to be compiled") from error


def compile_cuda(source: Path, constants: Mapping[str, int] | None = None, *, before: str = "") -> Future[bytes]:
    """Start to compile a source for Hopper, with preprocessor constants and the text `before` it.

    It may include the headers of its own folder and of this one. The result is machine code, from Triton's cache if it
    was compiled before. It raises KernelUnavailable with the compiler's message. A second call with the same arguments
    returns the same future.
    """
    text = f'#include "{HEADER}"\n{before}\n#line 1 "{source.name}"\n{source.read_text("utf-8")}'.encode()
    return _start(
        source, text, tuple(f"-D{constant}={value}".encode() for constant, value in (constants or {}).items())
    )


@functools.cache
def _start(source: Path, text: bytes, definitions: tuple[bytes, ...]) -> Future[bytes]:
    return _threads().submit(_compile, source, text, definitions)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    # With more threads than cores the run-time compiler takes longer for all programs than with one.
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    return ThreadPoolExecutor(min(MAX_THREADS, cores), "compiler")


@_cuda_errors_as_unavailable()
def _compile(source: Path, text: bytes, definitions: tuple[bytes, ...]) -> bytes:
    folders = dict.fromkeys((SOURCES, source.parent))
    headers = {path.name.encode(): path.read_bytes() for folder in folders for path in sorted(folder.glob("*.cuh"))}
    name = source.name
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17", *definitions]
    try:
        from cuda.bindings import nvrtc
        from triton.runtime.cache import get_cache_manager

        version = repr(checked(nvrtc.nvrtcVersion(), many=True)).encode()
        key = hashlib.sha256(b"\0".join([text, *headers.values(), *options, version])).hexdigest()
        cache = get_cache_manager(key)
        if path := cache.get_file(CACHED):
            return Path(path).read_bytes()
        program = checked(
            nvrtc.nvrtcCreateProgram(text, name.encode(), len(headers), list(headers.values()), list(headers))
        )
        if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
            log = bytes(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise KernelUnavailable(f"{name} does not compile: {log.decode(errors='replace')[:2000]}")
        code = bytes(checked(nvrtc.nvrtcGetCUBINSize(program)))
        checked(nvrtc.nvrtcGetCUBIN(program, code))
    except (ImportError, RuntimeError, OSError) as error:
        if isinstance(error, KernelUnavailable | CudaError):
            raise
        raise KernelUnavailable(f"the compiler cannot be used: {error}") from error
    try:
        cache.put(code, CACHED, binary=True)
    except OSError as error:
        logger.warning("the cache of kernels cannot be written, so %s is compiled at every start: %s", name, error)
    return code


def _launch_config(driver: Any, shape: Shape, grid: tuple[int, int, int], stream: int) -> Any:
    attributes = []

    def attribute(name: str) -> Any:
        made = driver.CUlaunchAttribute()
        made.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        attributes.append(made)
        return made.value

    if shape.cluster != (1, 1, 1):
        value = attribute("CLUSTER_DIMENSION")
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = shape.cluster
    if shape.cooperative:
        attribute("COOPERATIVE").cooperative = 1
    if shape.early:
        attribute("PROGRAMMATIC_STREAM_SERIALIZATION").programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.threads, 1, 1
    config.sharedMemBytes = shape.shared
    config.hStream = driver.CUstream(stream)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config
