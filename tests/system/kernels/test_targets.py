"""The kernels compile for the GPUs that are supported, within the limits of each; no GPU is needed.

One variant of each kernel is compiled here. tests/system/gpus compiles every variant for every GPU.
"""

import pytest
from support.engines.compiled_kernels import compile_elsewhere, faults
from support.engines.gpus import GPUS
from support.engines.kernel_launches import HOPPER_ONLY, launched_names

pytest.importorskip("triton")

CHOSEN = {
    "sm_86": sorted({*launched_names()} - HOPPER_ONLY),  # the least shared memory of a block
    "sm_90": sorted(HOPPER_ONLY),
    "sm_120": ["_paged_attention_kernel", "_local_attention_kernel", "pointwise_kernel"],
}


@pytest.fixture(scope="module", params=CHOSEN)
def compiled(request):
    gpu = GPUS[request.param]
    return gpu, compile_elsewhere(gpu, "--kernels", *CHOSEN[gpu.target])


def test_every_kernel_fits(compiled):
    gpu, kernels = compiled
    assert {kernel.kernel for kernel in kernels} == set(CHOSEN[gpu.target])
    assert [fault for kernel in kernels for fault in faults(kernel, gpu)] == []


def test_only_gpus_that_can_overlap_kernels_are_asked_to(compiled):
    gpu, kernels = compiled
    overlap = {kernel.overlaps for kernel in kernels if "OVERLAP" in kernel.constants}
    assert overlap == {gpu.capability >= (9, 0)}
