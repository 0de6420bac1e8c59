"""The kernels that engines launch on a GPU, found on a host that has none.

An engine starts on a stand-in for the GPU, where tensors have no values, and calls what it would capture as CUDA
graphs. Triton binds the arguments of each launch and stops before it compiles.
"""

from __future__ import annotations

import ast
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from support.engines.gpus import Gpu, stand_in

from voxcpm_grpc.kernels.cuda import compiler

ROOT = Path(__file__).parents[3]
RELEASED, OLDER, BUNDLED = "VoxCPM2", ("VoxCPM1.5", "VoxCPM-0.5B"), "bundled"  # the last is the demo's model
QWEN = ("base06", "base17")  # of the layouts of Qwen3-TTS those with all parts
LAYERS = 2  # of a stack: its last layer differs from the others, which are alike


@dataclass(frozen=True, slots=True)
class Start:
    """An engine to start: the dimensions of its model, and its settings."""

    model: str
    settings: dict[str, Any]
    hopper_only: bool = False


ADAPTERS = {"max_loras": 16, "lora_targets": ("attention", "mlp", "projections")}
HOPPER_ONLY = frozenset(  # kernels that serve on no other GPU
    {"_conditioning_kernel", "_dequantize_kernel", "_linear_kernel", "_skinny_gemm_kernel"}
)
FEW = (
    Start(RELEASED, {"max_slots": 16, "prefill_tokens": 64, **ADAPTERS}),
    Start(QWEN[0], {"max_slots": 2, "prefill_tokens": 512}),
    Start(RELEASED, {"max_slots": 2, "prefill_tokens": 512, "quantization": "fp8"}, hopper_only=True),
    Start(QWEN[1], {"max_slots": 2, "prefill_tokens": 64}),
)
EVERY = (
    Start(RELEASED, {"max_slots": 128, **ADAPTERS}),
    Start(RELEASED, {"max_slots": 128, "dtype": "float32", **ADAPTERS, "max_lora_rank": 128}),
    Start(RELEASED, {"max_slots": 128, "page_size": 32}),
    Start(RELEASED, {"max_slots": 128, "dtype": "float32"}),
    *(Start(model, {"max_slots": 128}) for model in OLDER),
    *(Start(model, {"max_slots": 128, "dtype": "float32"}) for model in OLDER),
    Start(QWEN[0], {"max_slots": 8, "dtype": "float32", "prefill_tokens": 512}),
    Start(QWEN[1], {"max_slots": 8, "prefill_tokens": 512}),
    Start(BUNDLED, {"max_slots": 128}),
    Start(BUNDLED, {"max_slots": 128, "dtype": "float32"}),
    Start(RELEASED, {"max_slots": 128, "quantization": "fp8", **ADAPTERS}, hopper_only=True),
    *(Start(model, {"max_slots": 128, "quantization": "fp8"}, hopper_only=True) for model in OLDER),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with the types, constants and options that it is compiled for."""

    kernel: Any  # triton.runtime.JITFunction
    specialization: str  # JSON, written by Triton

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__

    @property
    def constants(self) -> dict[str, Any]:
        content = json.loads(self.specialization)
        names = (self.kernel.arg_names[int(key[0])] for key in content["constant_keys"])
        return dict(zip(names, content["constant_vals"], strict=True))

    @property
    def options(self) -> dict[str, Any]:
        return json.loads(self.specialization)["options"]


def launched_names() -> list[str]:
    """The names of all kernels that the source launches: `name[grid](...)`."""
    names = set()
    for path in (ROOT / "voxcpm_grpc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Subscript(value=ast.Name(id=name))) if name.endswith("_kernel"):
                    names.add(name)
    return sorted(names)


def find_variants(gpu: Gpu, starts: tuple[Start, ...]) -> list[Variant]:
    """The variants that Triton compiles for these engines on this GPU, in the order of their first launches.

    One process serves one GPU: a kernel keeps the target of its first launch.
    """
    found: dict[tuple[str, str], Variant] = {}

    def note(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        found.setdefault((fn.name, key), Variant(fn.jit_function, compile["specialization_data"]))
        return True  # no compilation

    with _binding_only(gpu, note), stand_in(gpu):
        for start in starts:
            if gpu.capability == (9, 0) or not start.hopper_only:
                _start_engine(start)
    return list(found.values())


@contextlib.contextmanager
def _binding_only(gpu: Gpu, hook: Any) -> Iterator[None]:
    """Within the block a launch for `gpu` binds its arguments, calls the hook and does nothing else."""
    from triton import knobs
    from triton.runtime.jit import JITFunction

    set_target(gpu)
    run = JITFunction.run

    def bind(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        bound = (_Pointer(one) if isinstance(one, torch.Tensor) else one for one in arguments)
        return run(kernel, *bound, grid=grid, warmup=True, **options)

    with knobs.runtime.scope(), mock.patch.object(JITFunction, "run", bind):
        knobs.runtime.jit_cache_hook = hook
        yield


def set_target(gpu: Gpu) -> None:
    """Let Triton compile for a GPU, whatever this host has."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = mock.Mock()
    target.get_current_device.return_value = target.get_current_stream.return_value = 0
    target.get_current_target.return_value = GPUTarget("cuda", gpu.arch, 32)
    driver.set_active(target)


class _Pointer:
    """A tensor as Triton sees it. Memory comes from PyTorch at multiples of 512 bytes; views may start anywhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._address = 512 + int(tensor.storage_offset()) * tensor.element_size()

    def data_ptr(self) -> int:
        return self._address


def _start_engine(start: Start) -> None:
    from voxcpm_grpc.engine.load import load_engine
    from voxcpm_grpc.kernels.launch.graph import Graph
    from voxcpm_grpc.settings.engine import EngineSettings

    def call_once(graph: Any, call: Any, pool: Any) -> None:
        graph.output = call()

    # Without the kernels in CUDA C++ those in Triton serve instead, as they do on most GPUs.
    own = {} if start.model in QWEN else {"timesteps": (4,), "persistent": False}
    settings = EngineSettings(**own, **start.settings)
    no_gpu = compiler.KernelUnavailable("there is no GPU")
    triton_only = mock.patch.object(compiler, "require_hopper", side_effect=no_gpu)
    no_compilation = mock.patch("voxcpm_grpc.engine.runner.precompile")
    no_graphs = mock.patch.object(Graph, "__init__", call_once)
    with triton_only, no_compilation, no_graphs, _checkpoint(start.model) as directory:
        load_engine(directory, "model", settings)


@contextlib.contextmanager
def _checkpoint(model: str) -> Iterator[Path]:
    """The directory of a model; that of the released dimensions has fewer layers, and weights without values."""
    if model == BUNDLED:
        yield ROOT / "voxcpm_grpc" / "demo"
        return
    from voxcpm_grpc.layers import weights

    def load_file(path: Path) -> dict[str, torch.Tensor]:
        file = path.relative_to(folder).as_posix()
        return {name: torch.empty(shape, device="meta") for name, shape in shapes[file].items()}

    with tempfile.TemporaryDirectory() as name, mock.patch.object(weights, "load_file", load_file):
        folder = Path(name)
        shapes = _write_qwen(folder, model) if model in QWEN else _write_voxcpm(folder, model)
        for file in shapes:
            (folder / file).touch()
        yield folder


Shapes = dict[str, dict[str, tuple[int, ...]]]  # of tensors, by file


def _write_voxcpm(folder: Path, model: str) -> Shapes:
    tool = _tool("make_checkpoint")
    config = tool.config(True, "bfloat16", model)
    config["residual_lm_num_layers"] = config["lm_config"]["num_hidden_layers"] = LAYERS
    for part in ("encoder_config", "dit_config"):
        config[part]["num_layers"] = LAYERS
    tool.write_tokenizer(folder, config["lm_config"]["vocab_size"])
    tool.write_json(folder / "config.json", config)
    return {
        "model.safetensors": dict(tool.model_shapes(config)),
        "audiovae.safetensors": dict(tool.vae_shapes(config["audio_vae_config"])),
    }


def _write_qwen(folder: Path, variant: str) -> Shapes:
    tool = _tool("make_qwen3_checkpoint")
    codec = folder / "speech_tokenizer"
    codec.mkdir()
    config = tool.model_config(tool.VARIANTS[variant], full=True, first_special=tool.RELEASED_VOCABULARY)
    sizes = tool.codec_config(tool.VARIANTS[variant], full=True)
    talker = config["talker_config"]
    for stack in (talker, talker["code_predictor_config"], sizes["decoder_config"], sizes["encoder_config"]):
        stack["num_hidden_layers"] = LAYERS
    tool.write_tokenizer(folder, config, full=True)
    tool.write_json(folder / "config.json", config)
    tool.write_json(folder / "generation_config.json", tool.GENERATION)
    tool.write_json(codec / "config.json", sizes)
    return {
        "model.safetensors": dict(tool.model_shapes(config)),
        "speech_tokenizer/model.safetensors": dict(tool.codec_shapes(sizes)),
    }


def _tool(name: str) -> ModuleType:
    spec = spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
