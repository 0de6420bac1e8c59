"""The kernel in CUDA C++ compiles for Hopper. It takes no GPU, but the packages cuda-bindings and nvidia-cuda-nvrtc."""

from support.compiled_kernels import read_resources

from voxcpm_grpc.kernels.cuda import compiler, persistent

REGISTERS, SHARED = 65536, 228 << 10  # of a multiprocessor


def test_the_loop_in_one_launch_fits_a_multiprocessor(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    resources = read_resources(compiler.compile_cuda(persistent.SOURCE))
    assert resources.stack == 0
    assert resources.registers * persistent.THREADS <= REGISTERS
    assert resources.shared + persistent.SHARED <= SHARED
