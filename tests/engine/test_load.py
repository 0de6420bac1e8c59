"""Every setting of an engine has its effect, and an unusable one is refused at the start with the remedy."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engines.checkpoints import TINY
from support.engines.gpus import Gpu, stand_in

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.engine.start.device import default_slots, select_dtype
from voxcpm_grpc.errors import StartupError, TooLong
from voxcpm_grpc.request import Request
from voxcpm_grpc.settings.engine import EngineSettings


def load(**settings: Any) -> Engine:
    return load_engine(TINY, "tiny", EngineSettings(device="cpu", **settings))


def test_sizes():
    engine = load(
        max_slots=3, kv_positions=100, page_size=32, prefill_tokens=48, timesteps=(5,), max_queue=1, max_model_len=90
    )
    stats = engine.stats()
    assert (stats.slots_total, stats.pages_total) == (3, 4)
    assert engine.scheduler.budget.most == 48
    (timesteps,) = (option for option in engine.info.options if option.name == "inference_timesteps")
    assert (timesteps.choices, timesteps.default) == ((5,), 5)
    assert engine.info.max_model_len == 90
    assert engine.scheduler.max_queue == 1


@pytest.mark.parametrize(
    ("settings", "banks"), [({}, 16), ({"max_loras": 3}, 3), ({"max_loras": 0}, 0)], ids=["default", "some", "none"]
)
def test_an_engine_has_memory_for_adapters_that_may_be_registered(settings, banks):
    engine = load_engine(TINY, "tiny", EngineSettings(device="cpu", **settings), registers_loras=True)
    assert engine.adapters.count == banks
    assert load(**settings).adapters.count == (banks if settings else 0)


@pytest.mark.parametrize(("gigabytes", "slots"), [(24, 64), (42, 128), (141, 128)])
def test_a_large_gpu_has_twice_as_many_slots(monkeypatch, gigabytes, slots):
    class Properties:
        total_memory = gigabytes * 10**9

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert default_slots(torch.device("cuda", 0)) == slots
    assert default_slots(torch.device("cpu")) == 8


def test_a_stream_is_limited_by_max_model_len_and_kv_positions():
    for settings in ({"max_model_len": 12}, {"kv_positions": 16}):
        engine = load(**settings)
        with pytest.raises(TooLong):
            engine.add(Request(id="a", text="A text that needs more than that, for it is not short. " * 3))


def test_engines_on_one_cpu_share_its_threads(monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.engine.load.SMALL_MODEL", 0)
    before = torch.get_num_threads()
    try:
        for threads, engines, share in ((4, 2, 2), (4, 3, 1), (2, 4, 1), (4, 1, 4)):
            torch.set_num_threads(threads)
            load_engine(TINY, "tiny", EngineSettings(device="cpu"), engines=engines)
            assert torch.get_num_threads() == share
    finally:
        torch.set_num_threads(before)


def test_threads():
    before = torch.get_num_threads()
    try:
        load(threads=before + 1)
        assert torch.get_num_threads() == before + 1
        load()  # the tiny model is small
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "toaster"}, "auto, cpu, cuda or cuda:N"),
        ({"device": "meta"}, "auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:99"}, f"PyTorch finds {torch.cuda.device_count()} GPUs; use cpu or another number"),
        ({"dtype": "bfloat16"}, "engine.dtype bfloat16 needs a GPU"),
        ({"codec_dtype": "float16"}, "engine.codec_dtype float16 needs a GPU"),
        ({"quantization": "fp8"}, "engine.quantization fp8 needs a Hopper GPU .* set engine.quantization to none"),
        ({"attention": "triton"}, "auto or reference"),
        ({"attention": "flash"}, "auto or reference"),
        ({"recorded_noise": Path("nowhere.npy")}, "nowhere.npy cannot be read"),
        ({"kv_positions": 10**9}, "lower it"),
    ],
)
def test_an_unusable_setting_is_refused(settings, message):
    with pytest.raises(StartupError, match=message):
        load_engine(TINY, "tiny", EngineSettings(**{"device": "cpu", **settings}))


@pytest.mark.parametrize(
    ("capability", "dtype", "lacks"),
    [
        ((7, 5), torch.float32, ["bfloat16", "start early", "Hopper"]),
        ((8, 6), torch.bfloat16, ["start early", "Hopper"]),
        ((9, 0), torch.bfloat16, []),
        ((10, 0), torch.bfloat16, ["Hopper"]),
    ],
)
def test_an_engine_does_without_what_its_gpu_lacks_and_says_so_in_one_line(capability, dtype, lacks, caplog):
    gpu = Gpu("GPU", capability, 40, 64 << 10)
    with stand_in(gpu), caplog.at_level(logging.INFO):
        assert select_dtype("auto", torch.device("cuda", 0)) == dtype
        assert select_dtype("float32", torch.device("cuda", 0)) == torch.float32
    lines = caplog.messages[: len(caplog.messages) // 2]  # of the first call
    assert len(lines) == bool(lacks)
    assert all(word in lines[0] for word in lacks)


def test_bfloat16_is_refused_on_a_gpu_without_it():
    with (
        stand_in(Gpu("GPU", (7, 5), 40, 64 << 10)),
        pytest.raises(StartupError, match=r"has 7\.5; use auto or float32"),
    ):
        select_dtype("bfloat16", torch.device("cuda", 0))


def test_noise_that_is_not_an_array_is_refused(tmp_path):
    (tmp_path / "broken.npy").write_bytes(b"not an array")
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object))
    for name in ("broken.npy", "pickled.npy"):
        with pytest.raises(StartupError, match=name):
            load(recorded_noise=tmp_path / name)


@pytest.mark.gpu
def test_graphs_without_cuda_bindings_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(StartupError, match=r"engine.graphs needs the package cuda-bindings .* to false"):
        load_engine(TINY, "tiny", EngineSettings(device="cuda"))
    load_engine(TINY, "tiny", EngineSettings(device="cuda", graphs=False))


@pytest.mark.gpu
def test_products_in_float32_are_not_tf32():
    """Some container images of PyTorch enable TF32 by an environment variable."""
    torch.set_float32_matmul_precision("high")
    load_engine(TINY, "tiny", EngineSettings(device="cuda", graphs=False))
    assert torch.get_float32_matmul_precision() == "highest"
