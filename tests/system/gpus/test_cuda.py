"""The kernels of a single stream in CUDA C++ compile for Hopper.

They take no GPU, but the packages cuda-bindings and nvidia-cuda-nvrtc.
"""

import pytest
from support.engines.compiled_kernels import read_resources

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.models.voxcpm.kernels import packed_stack, persistent

REGISTERS, SHARED = 65536, 228 << 10  # of a multiprocessor


@pytest.mark.parametrize("source", [persistent.FLOW[0], persistent.ENCODER[0]])
def test_a_part_in_one_launch_fits_a_multiprocessor(source, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    resources = read_resources(compiler.compile_cuda(source).result())
    assert resources.stack == 0
    assert resources.registers * packed_stack.THREADS <= REGISTERS
    assert resources.shared + packed_stack.SHARED <= SHARED
