"""Weights rounded to 8-bit floats stay near the old ones, and all others stay as they are."""

import sys

import pytest
import torch
from safetensors.torch import load_file
from support.engines.checkpoints import TINY

from tools.voice import round_weights


@pytest.mark.parametrize(("part", "prefixes"), [("lm", ("base_lm.", "residual_lm.")), ("flow", ("feat_",))])
def test_the_weights_of_a_part(tmp_path, monkeypatch, part, prefixes):
    monkeypatch.setattr(sys, "argv", ["round_weights", str(TINY), str(tmp_path / "out"), "--parts", part])
    round_weights.main()
    before, after = load_file(TINY / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith(prefixes) and ".layers." in name and "_proj." in name}
    for name in changed:
        error = (before[name] - after[name]).float().norm() / before[name].float().norm()
        assert 0.01 < error < 0.04, name  # a mantissa of three bits
    assert (tmp_path / "out" / "config.json").read_bytes() == (TINY / "config.json").read_bytes()


def test_a_row_keeps_its_largest_value():
    weight = torch.randn(5, 64) * torch.tensor([[1e-6], [1e-2], [1.0], [100.0], [0.0]])
    made = round_weights.rounded(weight)
    torch.testing.assert_close(made.abs().amax(1), weight.abs().amax(1))
    assert torch.equal(made[4], weight[4])


def test_a_checkpoint_without_such_weights_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(round_weights, "PARTS", {"all": round_weights.re.compile("none")})
    monkeypatch.setattr(sys, "argv", ["round_weights", str(TINY), str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="no weights of the part all"):
        round_weights.main()
