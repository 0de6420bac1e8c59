"""The memory of an engine that is computed before it starts, against models that are loaded and engines measured."""

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from click.testing import CliRunner
from pydantic import ValidationError
from support.engines.checkpoints import OLDER, TINY
from torch import Tensor

from tools.make_checkpoint import config
from voxcpm_client.cli import main
from voxcpm_client.cli.operate.memory import TARGETS
from voxcpm_grpc.engine.device.kv_cache import allocate_kv
from voxcpm_grpc.engine.device.slots import Slots
from voxcpm_grpc.engine.start.memory import engine_memory
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.base import AdapterOptions, LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.voxcpm.model import VoxCPM
from voxcpm_grpc.settings.engine import EngineSettings

GIB = 2**30
PAGE = 16


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A directory with the config.json of the released dimensions, and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(config(full=True, dtype="bfloat16")))
    return tmp_path


def size(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("checkpoint", [TINY, *OLDER], ids=lambda path: path.name)
def test_weights_slots_and_kv_cache_are_those_of_a_loaded_model(checkpoint, tmp_path, monkeypatch):
    shutil.copy(checkpoint / "config.json", tmp_path)  # and no weights
    taken: list[Tensor] = []
    take = Weights.take

    def counted(self: Weights, name: str, *shape: int) -> Tensor:
        taken.append(take(self, name, *shape))
        return taken[-1]

    monkeypatch.setattr(Weights, "take", counted)
    device = torch.device("cpu")
    model: Any = load_model(checkpoint, LoadOptions(device=device, dtype=torch.float32, max_slots=3))
    monkeypatch.undo()
    found = engine_memory(tmp_path, 3, dtype="float32")
    assert found.footprint.single_stream == 0
    assert isinstance(model, VoxCPM)
    tables = size(model.rope.cos, model.rope.sin)
    assert found.weights == pytest.approx(size(*taken) + tables, rel=0.02)
    length = model.info.max_model_len
    state = Slots.allocate(model, 3, -(-length // PAGE), device).state
    own = [getattr(state.model, name) for name in state.model.__dataclass_fields__]
    assert found.state == size(*own)
    kv = allocate_kv(model.layout, 3 * length // PAGE - 1, PAGE, device)  # with the scratch page
    assert found.kv_cache == size(kv.k, kv.v)


@pytest.mark.parametrize(
    ("slots", "gib"), [(64, 25.647), (64, 25.862), (128, 44.378)], ids=["h200-64", "h100-64", "h200-128"]
)
def test_the_whole_engine_is_what_was_measured(released, slots, gib):
    """benchmarks/results/h200-details.json and h100-engine.json, and 45,443 MiB in benchmarks/LOG.md."""
    assert engine_memory(released, slots).total / GIB == pytest.approx(gib, rel=0.02)


def test_a_gpu_holds_what_its_share_leaves(released):
    found = engine_memory(released, 64)
    assert found.positions_on(int(80 * GIB), 0.85) == 64 * 8192
    few = found.positions_on(24 * GIB, 0.85)
    fixed = found.total - found.kv_cache
    assert 0 <= 24 * GIB * 0.85 - fixed - few * 36864 < PAGE * 36864
    assert found.positions_on(8 * GIB, 0.85) == 0
    shorter = engine_memory(released, 64, max_model_len=1024, kv_positions=2000)
    assert shorter.wanted_positions == 2000
    assert shorter.positions_on(24 * GIB, 0.85) == 2000


def memory(*arguments: object):
    return CliRunner().invoke(main, ["memory", *map(str, arguments)])


def test_the_command_prints_a_line_for_each_number_of_slots(released):
    done = memory("--model", released, "--slots", "32,64", "--gpu", "24,80")
    assert done.exit_code == 0, done.output
    assert "36 KiB of KV cache a position, 8,192 positions in a request of full length" in done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert ["slots", "24", "GiB", "80", "GiB"] in lines
    engines = {row[0]: row[-1] for row in lines if len(row) == 7 and row[0].isdigit()}
    assert engines.keys() == {"32", "64"}
    assert float(engines["64"]) == pytest.approx(26.1, abs=0.2)
    assert [row[2] for row in lines if row[:1] == ["64"] and len(row) == 3] == ["524,288"]
    values = json.loads(memory("--model", released, "--slots", "64", "--gpu", "8,80", "--json").output)
    assert [one["slots"] for one in values] == [64]
    assert values[0]["kv_positions_on_gpu"] == {"8": 0, "80": 524288}
    assert values[0]["total"] == sum(
        values[0][name] for name in ("weights", "adapters", "slot_state", "working", "kv_cache")
    )


def test_adapters_take_memory(released):
    without = engine_memory(released, 64)
    assert without.adapters == 0
    for targets, size in ((("attention", "projections"), 74e6), (("attention", "mlp", "projections"), 211e6)):
        found = engine_memory(released, 64, adapters=AdapterOptions(16, 64, frozenset(targets)))
        assert found.adapters == pytest.approx(16 * size, rel=0.02)
        assert found.total - without.total == found.adapters and found.weights == without.weights
    (value,) = json.loads(memory("--model", released, "--slots", "64", "--max-loras", "16", "--json").output)
    assert value["adapters"] == pytest.approx(16 * 74e6, rel=0.02)


def test_weights_of_8_bits_take_half_the_memory_of_the_language_models(released):
    whole, found = engine_memory(released, 64), engine_memory(released, 64, quantization="fp8")
    assert whole.weights - found.weights == pytest.approx(36 * 2048 * (2 * 2048 + 2 * 256 + 3 * 6144), rel=0.01)
    assert whole.total - found.total == whole.weights - found.weights
    said = memory("--model", released, "--slots", "64", "--quantization", "fp8").output
    assert f"{released}, bfloat16 with weights in fp8: {found.weights / GIB:.2f} GiB of weights" in said


def test_the_command_has_the_defaults_and_limits_of_the_settings():
    options: dict[Any, Any] = {option.name: option for option in main.commands["memory"].params}
    fields = EngineSettings.model_fields
    assert options["max_lora_rank"].default == fields["max_lora_rank"].default
    assert tuple(options["lora_targets"].default.split(",")) == fields["lora_targets"].default
    assert EngineSettings.model_validate({"lora_targets": TARGETS}).lora_targets
    assert options["quantization"].default == fields["quantization"].default
    assert tuple(options["quantization"].type.choices) == get_args(fields["quantization"].annotation)
    for name in ("max_loras", "max_lora_rank"):
        most = options[name].type.max
        assert EngineSettings.model_validate({name: most})
        with pytest.raises(ValidationError):
            EngineSettings.model_validate({name: most + 1})


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--slots", "many"), 2, "'many' is no list of positive numbers such as 32,64"),
        (("--slots", "0"), 2, "'0' is no list of positive numbers"),
        (("--model", "./nowhere"), 1, "there is no directory './nowhere'"),
        (
            ("--lora-targets", "attention,heads"),
            2,
            "'attention,heads' has other kinds than attention, mlp, projections",
        ),
        (("--max-model-len", "99999999"), 1, "max_model_len is 99999999, this model supports 1 to"),
    ],
)
def test_a_mistake_is_named(arguments, code, said):
    done = memory(*arguments)
    assert done.exit_code == code
    assert said in done.output
