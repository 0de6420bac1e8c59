"""The backend is chosen once, by device, dtype and options."""

import subprocess
import sys

import pytest
import torch
from support.engines.gpus import GPUS, stand_in

from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.choice import choose_attention
from voxcpm_grpc.layers.noise import GaussianNoise, RecordedNoise, SlotNoise
from voxcpm_grpc.layers.ops import TorchOps
from voxcpm_grpc.layers.packed import packing_serves
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.voxcpm.backend import choose_backend
from voxcpm_grpc.models.voxcpm.flow.cpu_flow import CpuFlow
from voxcpm_grpc.models.voxcpm.flow.flow import PlainFlow

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_takes_the_plain_implementations(dtype):
    backend = choose_backend(LoadOptions(device=CPU, dtype=dtype), 4, 8)
    assert isinstance(backend.attention, ReferenceAttention)
    assert isinstance(backend.ops, TorchOps)
    assert isinstance(backend.noise, SlotNoise) and isinstance(backend.noise.values, GaussianNoise)
    assert (backend.fused, backend.persistent, backend.codec_dtype) == (False, False, torch.float32)


@pytest.mark.parametrize("streams", [1, 2])
def test_a_model_on_a_cpu_runs_the_loop_and_decoder_of_a_cpu(tiny, streams):
    loop = tiny.flow.single if streams == 1 else tiny.flow.batch
    assert isinstance(loop, CpuFlow if packing_serves() else PlainFlow)
    assert tiny.codec.decoder.dtype == torch.float32
    assert not tiny.capturable


def test_recorded_noise_is_chosen_over_the_generator():
    noise = torch.randn(3, 8, 4)
    backend = choose_backend(LoadOptions(device=CPU, dtype=torch.float32, recorded_noise=noise), 4, 8)
    assert isinstance(backend.noise, SlotNoise) and isinstance(backend.noise.values, RecordedNoise)
    zeros, step, factor = torch.zeros(2, dtype=torch.int64), torch.tensor([9, 1]), torch.tensor([0.5, 2.0])
    drawn = backend.noise(torch.tensor([1, 0]), zeros, zeros, zeros, step, factor)
    assert torch.equal(drawn, noise[[1, 2]].transpose(1, 2) * torch.tensor([2.0, 0.5])[:, None, None])


@pytest.mark.parametrize(("name", "message"), [("triton", "auto or reference"), ("flash", "auto or reference")])
def test_attention_that_needs_a_gpu_is_refused_on_a_cpu(name, message):
    with pytest.raises(StartupError, match=message):
        choose_attention(name, CPU)


def test_unknown_attention_is_refused():
    with pytest.raises(StartupError, match="auto, reference, triton or flash"):
        choose_attention("dense", torch.device("cuda"))


def test_an_unknown_quantization_is_refused():
    with pytest.raises(StartupError, match="'int4'; it may be none or fp8"):
        choose_backend(LoadOptions(device=CPU, dtype=torch.float32, quantization="int4"), 4, 8)


@pytest.mark.parametrize("target", ["sm_86", "sm_89", "sm_100"])
def test_weights_of_8_bits_are_refused_on_other_gpus_than_hopper(target):
    with stand_in(GPUS[target]), pytest.raises(StartupError, match=r"needs a Hopper GPU .* set it to none"):
        choose_backend(LoadOptions(device=torch.device("cuda"), dtype=torch.bfloat16, quantization="fp8"), 4, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_takes_the_kernels_where_they_are_faster(dtype):
    backend = choose_backend(LoadOptions(device=torch.device("cuda", 0), dtype=dtype), 4, 8)
    half = dtype == torch.bfloat16
    assert backend.attention.capturable and not isinstance(backend.noise, SlotNoise)
    assert backend.fused == half and isinstance(backend.ops, TorchOps) != half
    assert backend.codec_dtype == (torch.float16 if half else torch.float32)


def test_a_cpu_needs_no_triton():
    code = (
        "import sys; sys.modules['triton'] = None; import torch; from voxcpm_grpc.models.base import LoadOptions;"
        "from voxcpm_grpc.models.voxcpm.backend import choose_backend;"
        "options = LoadOptions(device=torch.device('cpu'), dtype=torch.float32);"
        "backend = choose_backend(options, 4, 8); q = torch.ones(1, 2, 4, 8);"
        "assert torch.equal(backend.attention.attend_full(q, q, q), q); print(type(backend.attention).__name__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.stdout.strip() == "ReferenceAttention", result.stderr
