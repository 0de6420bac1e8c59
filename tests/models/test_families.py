import json
from dataclasses import replace

import pytest
import torch

from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models import families
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.voxcpm.family import VOXCPM
from voxcpm_grpc.settings.engine import OF_FAMILIES, EngineSettings

CPU = torch.device("cpu")
OPTIONS = LoadOptions(device=CPU, dtype=torch.float32, attention="reference")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            json.dumps({"architecture": "Qwen3"}),
            "architecture 'qwen3'; this server supports qwen3_tts, voxcpm, voxcpm2$",
        ),
        (json.dumps({"architecture": ["voxcpm2"]}), "this server supports qwen3_tts, voxcpm, voxcpm2$"),
        ("{", "not valid JSON"),
        ("\ufffe", "not valid JSON"),
        ("[]", "no JSON object"),
    ],
)
def test_a_config_with_an_unknown_family_is_refused(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(StartupError, match=message):
        load_model(tmp_path, OPTIONS)


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(StartupError, match="name a directory that holds a checkpoint"):
        load_model(tmp_path / "nowhere", OPTIONS)


@pytest.mark.parametrize("content", [{"architecture": "VoxCPM2"}, {"architecture": "VOXCPM"}], ids=str)
def test_the_architecture_is_read_in_any_case(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(StartupError, match="lm_config is missing"):
        load_model(tmp_path, OPTIONS)


def test_a_config_without_an_architecture_is_that_of_the_oldest_checkpoints_if_it_looks_like_one(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"lm_config": {}}))
    with pytest.raises(StartupError, match=r"lm_config.* missing"):
        load_model(tmp_path, OPTIONS)


@pytest.mark.parametrize(
    ("content", "found"), [({}, "of which it has none"), ({"talker": {}, "heads\n": 2}, r"heads\\n, talker")], ids=str
)
def test_a_config_that_no_family_recognises_is_refused_with_what_it_has(tmp_path, content, found):
    (tmp_path / "config.json").write_text(json.dumps(content))
    said = rf"names no architecture, .* keys, {found}; this server supports qwen3_tts, voxcpm, voxcpm2$"
    with pytest.raises(StartupError, match=said):
        load_model(tmp_path, OPTIONS)


def test_a_config_that_two_families_recognise_is_refused_with_both(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"lm_config": {}}))
    twin = replace(VOXCPM, name="Twin", kinds=("twin",))
    monkeypatch.setattr(families, "FAMILIES", (VOXCPM, twin))
    for use in (lambda: load_model(tmp_path, OPTIONS), lambda: resolve(str(tmp_path))):
        with pytest.raises(StartupError, match="fits 2 model families, VoxCPM and Twin; let it name the architecture"):
            use()


def test_a_setting_of_another_family_is_refused_by_name(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"lm_config": {}}))
    monkeypatch.setattr(families, "FAMILIES", (replace(VOXCPM, settings=VOXCPM.settings - {"timesteps"}),))
    with pytest.raises(StartupError, match=r"engine\.timesteps is set, and models of VoxCPM do not have it; leave it"):
        load_engine(tmp_path, "a", EngineSettings(device="cpu", timesteps=(4,)))


def test_every_setting_that_a_family_reads_is_one_of_families():
    assert all(family.settings <= OF_FAMILIES <= EngineSettings.model_fields.keys() for family in families.FAMILIES)
