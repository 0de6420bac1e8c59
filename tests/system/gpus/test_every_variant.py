"""Every variant of every kernel that an engine launches compiles for every GPU that is supported."""

import os

import pytest
from support.engines.compiled_kernels import compile_elsewhere, faults
from support.engines.gpus import GPUS
from support.engines.kernel_launches import HOPPER_ONLY, launched_names


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_every_variant_fits(gpu):
    kernels = compile_elsewhere(gpu, "--every", processes=os.cpu_count() or 1)
    used = set(launched_names()) if gpu.capability == (9, 0) else set(launched_names()) - HOPPER_ONLY
    assert {kernel.kernel for kernel in kernels} == used
    assert [fault for kernel in kernels for fault in faults(kernel, gpu)] == []
