import json

import pytest
import torch

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.families import load_model

CPU = torch.device("cpu")
OPTIONS = LoadOptions(device=CPU, dtype=torch.float32, attention="reference")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps({"architecture": "Qwen3"}), "architecture 'qwen3'; this server supports voxcpm, voxcpm2$"),
        (json.dumps({"architecture": ["voxcpm2"]}), "this server supports voxcpm, voxcpm2$"),
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


@pytest.mark.parametrize("content", [{"architecture": "VoxCPM2"}, {"architecture": "VOXCPM"}, {}], ids=str)
def test_the_architecture_is_read_in_any_case_and_absent_in_the_oldest_checkpoints(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(StartupError, match="lm_config is missing"):
        load_model(tmp_path, OPTIONS)
