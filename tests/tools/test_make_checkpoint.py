import json
import math
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.engines.checkpoints import OLDER, TINY
from tokenizers import Tokenizer
from torch.nn.functional import linear, silu

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "make_checkpoint.py"))


@pytest.mark.parametrize(
    ("model", "committed"), [("VoxCPM2", TINY), ("VoxCPM-0.5B", OLDER[0]), ("VoxCPM1.5", OLDER[1])]
)
def test_the_tool_writes_the_tiny_checkpoints(tool, tmp_path, model, committed):
    tool["write_checkpoint"](tmp_path, model=model)
    for name in ("model.safetensors", "audiovae.safetensors"):
        made, kept = load_file(tmp_path / name), load_file(committed / name)
        assert made.keys() == kept.keys()
        for key, tensor in made.items():
            torch.testing.assert_close(tensor, kept[key])
    assert (tmp_path / "config.json").read_text() == (committed / "config.json").read_text()
    made, kept = (Tokenizer.from_file(str(path / "tokenizer.json")) for path in (tmp_path, committed))
    assert made.get_vocab() == kept.get_vocab()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 750_000


def test_full_size_has_the_tensors_of_the_released_model(tool):
    config = tool["config"](True, "bfloat16")
    model = dict(tool["model_shapes"](config))
    vae = dict(tool["vae_shapes"](config["audio_vae_config"]))
    assert len(model) == 577 and sum(map(math.prod, model.values())) == 2_290_004_544
    assert len(vae) == 311  # and the integer sample-rate boundaries


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_never_stop_wins_for_any_hidden_state(tool, tmp_path, dtype):
    tool["write_checkpoint"](tmp_path, dtype, never_stop=True)
    weights = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {getattr(torch, dtype)}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype
    proj, bias, head = (weights[f"stop_{key}"] for key in ("proj.weight", "proj.bias", "head.weight"))
    hidden = 100 * torch.randn(64, proj.shape[1], generator=torch.Generator().manual_seed(0)).to(proj.dtype)
    logits = linear(silu(linear(hidden, proj, bias)), head)
    assert (logits.argmax(-1) == 0).all() and (logits[:, 0] - logits[:, 1] > 5).all()
