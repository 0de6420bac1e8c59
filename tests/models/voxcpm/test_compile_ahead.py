"""Kernels in CUDA C++ are compiled while the weights of a model are read."""

from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from support.engines.gpus import GPUS, Gpu, stand_in

from tools.make_checkpoint import MODELS, VOXCPM2, VOXCPM15, config
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.voxcpm.backend import choose_backend
from voxcpm_grpc.models.voxcpm.config.parse import parse_config

pytest.importorskip("triton")
from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.launch.overlap import multiprocessors
from voxcpm_grpc.kernels.products import gated_cuts, gated_product, split_cuts, split_product
from voxcpm_grpc.models.voxcpm.kernels import decode_layers, decode_rows, packed_stack
from voxcpm_grpc.models.voxcpm.kernels.persistent import ENCODER, FLOW

PRODUCTS = {"split_product.cu": len(split_cuts.CUTS), "gated_product.cu": len(gated_cuts.CUTS)}
LANGUAGE = {"decode_layers.cu": 1, "decode_rows.cu": 3}
LOCAL = {"flow.cu": 1, "encoder.cu": 1}
SMALLER = Gpu("H100 PCIe", (9, 0), 114, GPUS["sm_90"].shared)
HOPPER = torch.device("cuda", 0)


@pytest.fixture
def started(monkeypatch) -> list[tuple]:
    """The compilations that were started; they do not end."""
    calls = []
    compiler.require_hopper.cache_clear()

    def start(*call) -> Future[bytes]:
        calls.append(call)
        return Future()

    monkeypatch.setattr(compiler, "_start", start)
    return calls


def compile_ahead(*, full: bool = True, model: str = VOXCPM2, gpu: Gpu = GPUS["sm_90"], **options: Any) -> None:
    multiprocessors.cache_clear()
    chosen = {"dtype": torch.bfloat16, "attention": "triton"} | options
    content = {"architecture": "voxcpm"} | config(full, "bfloat16", model)
    with stand_in(gpu):
        choose_backend(LoadOptions(device=HOPPER, **chosen), 4, 64).compile_ahead(parse_config(content))
    multiprocessors.cache_clear()
    compiler.require_hopper.cache_clear()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, LANGUAGE | LOCAL | PRODUCTS),
        ({"persistent": False}, PRODUCTS),
        ({"quantization": "fp8"}, LOCAL | PRODUCTS),
        ({"attention": "reference"}, LOCAL | PRODUCTS),
        ({"dtype": torch.float32}, {}),
        ({"dtype": torch.float32, "fused": True}, {}),
        ({"dtype": torch.float16}, {}),
        ({"gpu": SMALLER}, {"gated_product.cu": PRODUCTS["gated_product.cu"]}),
        ({"model": VOXCPM15}, PRODUCTS),  # its heads are smaller
        *(({"full": False, "model": model}, {}) for model in MODELS),
        *(({"gpu": GPUS[target]}, {}) for target in ("sm_80", "sm_89", "sm_100")),
    ],
    ids=str,
)
def test_a_model_starts_the_compilation_of_its_kernels(started, options, expected):
    compile_ahead(**options)
    assert Counter(source.name for source, *_ in started) == expected


def test_a_load_asks_for_what_was_compiled_ahead(request, started, monkeypatch):
    """Otherwise kernels would be compiled twice."""
    compile_ahead()
    ahead = set(started)
    started.clear()
    monkeypatch.setattr(compiler, "require_hopper", lambda device: None)

    def load(code, *_):
        assert isinstance(code, Future)
        raise compiler.KernelUnavailable("this is a test")

    for module in (split_product, gated_product, decode_rows, packed_stack, decode_layers):
        monkeypatch.setattr(module, "load_function", load)
    device = torch.device("cpu")
    for loaded in (split_cuts.load_cuts, gated_cuts.load_cuts):
        loaded.cache_clear()
        request.addfinalizer(loaded.cache_clear)
    assert not split_cuts.load_cuts(device)
    assert not gated_cuts.load_cuts(device)
    for call in (
        lambda: decode_rows.load_kernels(device),
        lambda: packed_stack.load_kernel(*FLOW, device),
        lambda: packed_stack.load_kernel(*ENCODER, device),
    ):
        with pytest.raises(compiler.KernelUnavailable):
            call()
    assert len(set(started)) == len(ahead) - 1  # all but decode_layers, which asks the device for more
    assert set(started) < ahead
