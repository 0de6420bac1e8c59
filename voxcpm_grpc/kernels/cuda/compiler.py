"""Kernels in CUDA C++, compiled for Hopper when they are first wanted, and how they are launched.

They are for what Triton cannot say. Where they cannot be had, `KernelUnavailable` says why.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from voxcpm_grpc.kernels.cuda.status import CudaError, checked

SOURCES = Path(__file__).parent
HEADER, KEPT = "hopper.cuh", "code.cubin"


class KernelUnavailable(RuntimeError):
    """This machine, or this model, cannot have the kernel."""


@contextmanager
def _kernel_wanted() -> Iterator[None]:
    try:
        yield
    except CudaError as error:
        raise KernelUnavailable(f"CUDA refuses the kernel: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a kernel is launched: `cluster` blocks share memory; `together` all blocks at once or none."""

    threads: int
    shared: int  # bytes, beside what the source declares
    cluster: tuple[int, int, int] = (1, 1, 1)
    together: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    handle: Any
    shape: Shape
    device: torch.device

    def launch(self, grid: tuple[int, int, int], *parameters: Any) -> None:
        """On the current stream; may be captured. `parameters` are ctypes values as the source declares them."""
        from cuda.bindings import driver

        config = _launch_config(driver, self.shape, grid, torch.cuda.current_stream(self.device).cuda_stream)
        pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(value) for value in parameters))
        checked(driver.cuLaunchKernelEx(config, self.handle, ctypes.addressof(pointers), 0))

    @_kernel_wanted()
    def clusters_at_once(self, grid: tuple[int, int, int]) -> int:
        """How many clusters of such a grid the device holds."""
        from cuda.bindings import driver

        return checked(driver.cuOccupancyMaxActiveClusters(self.handle, _launch_config(driver, self.shape, grid, 0)))


@_kernel_wanted()
def load_function(code: bytes, name: str, shape: Shape, device: torch.device) -> Function:
    """The kernel called `name` in machine code, on a device of compute capability 9.0."""
    require_hopper(device)
    from cuda.bindings import driver

    torch.zeros(1, device=device)  # the context, which the driver's calls expect to find
    with torch.cuda.device(device):
        module = checked(driver.cuModuleLoadData(code))
        handle = checked(driver.cuModuleGetFunction(module, name.encode()))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(handle, attribute, shape.shared))
    return Function(handle, shape, device)


@functools.cache
def require_hopper(device: torch.device) -> None:
    """KernelUnavailable where a device cannot run kernels that are compiled here."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        raise KernelUnavailable(f"the kernel is written for compute capability 9.0 (H100, H200), not for {device}")
    try:
        from cuda.bindings import driver as _  # noqa: F401
    except ImportError as error:
        raise KernelUnavailable("compiling the kernel takes the package cuda-bindings") from error


@_kernel_wanted()
def compile_cuda(name: str, constants: Mapping[str, int] | None = None) -> bytes:
    """Machine code for Hopper of the source called `name`; KernelUnavailable with the compiler's words where it fails.

    Kept beside what Triton keeps, for the next start.
    """
    text = f'#include "{HEADER}"\n#line 1 "{name}"\n{(SOURCES / name).read_text("utf-8")}'
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17"]
    options += [f"-D{constant}={value}".encode() for constant, value in (constants or {}).items()]
    header = (SOURCES / HEADER).read_bytes()
    try:
        from cuda.bindings import nvrtc
        from triton.runtime.cache import get_cache_manager

        version = repr(checked(nvrtc.nvrtcVersion(), many=True)).encode()
        key = hashlib.sha256(b"\0".join([text.encode(), header, *options, version])).hexdigest()
        kept = get_cache_manager(key)
        if path := kept.get_file(KEPT):
            return Path(path).read_bytes()
        program = checked(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 1, [header], [HEADER.encode()]))
        if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
            log = bytes(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise KernelUnavailable(f"{name} does not compile: {log.decode(errors='replace')[:2000]}")
        code = bytes(checked(nvrtc.nvrtcGetCUBINSize(program)))
        checked(nvrtc.nvrtcGetCUBIN(program, code))
    except (ImportError, RuntimeError, OSError) as error:
        if isinstance(error, KernelUnavailable | CudaError):
            raise
        raise KernelUnavailable(f"no compiler: {error}") from error
    kept.put(code, KEPT, binary=True)
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
    if shape.together:
        attribute("COOPERATIVE").cooperative = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.threads, 1, 1
    config.sharedMemBytes = shape.shared
    config.hStream = driver.CUstream(stream)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config
