"""A model of another system is refused with what it is: by `serve`, by `download`, and by `memory`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.doubles.hub import CHECKPOINT, Hub, commit

from voxcpm_client.cli import main
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.errors import StartupError

SERVED = (
    "this server serves VoxCPM2, VoxCPM1.5, VoxCPM-0.5B and Qwen3-TTS (12 Hz): name one of them, "
    "such as openbmb/VoxCPM2"
)
OMNI = {"model_type": "qwen3_omni_moe", "architectures": ["Qwen3OmniMoeForConditionalGeneration"]}
CONFIGS: list[tuple[dict[str, Any], str]] = [
    (OMNI, "is a Qwen3-Omni model (model_type qwen3_omni_moe)"),
    ({"model_type": "bark"}, "is a Bark model (model_type bark)"),
    (
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        "is a model of another system, LlamaForCausalLM, (model_type llama)",
    ),
    ({"architectures": ["FooForTTS"]}, "is a model of another system (architectures FooForTTS)"),
    ({"_class_name": "AudioLDM2Model", "_diffusers_version": "0.20"}, "is a part of a Diffusers pipeline"),
    ({"model": "xtts", "audio": {}}, "is a Coqui TTS model (model xtts)"),
    ({"architecture": "moshi"}, "names the architecture 'moshi'"),
]
FOLDERS = [
    ("voxcpm2-Q8_0.gguf", "is a model in GGUF format, for llama.cpp"),
    ("model_index.json", "is a pipeline of Diffusers"),
    ("cosyvoice2.yaml", "is a CosyVoice model"),
    ("adapter_config.json", "is a LoRA adapter in the format of PEFT"),
    ("lora_config.json", "is a LoRA adapter of VoxCPM, which --lora NAME=DIRECTORY adds to its model"),
    ("config.yaml", "is a model of another system, with a config in YAML"),
]


def folder_of(path: Path, config: object | None, *others: str) -> Path:
    """A checkpoint of ours with another config.json, or without one and its tokenizer."""
    for name, content in CHECKPOINT.items():
        if config is not None and "/" not in name:
            (path / name).write_bytes(content)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    for name in others:
        (path / name).write_bytes(b"content")
    return path


@pytest.mark.parametrize(("config", "said"), CONFIGS)
def test_a_config_of_another_system_is_refused_with_its_name(tmp_path, config, said):
    for folder in (folder_of(tmp_path, config), folder_of(tmp_path, config, "model.gguf")):
        with pytest.raises(StartupError) as error:
            resolve(str(folder))
        assert said in str(error.value) and SERVED in str(error.value)


@pytest.mark.parametrize(("name", "said"), FOLDERS)
def test_a_folder_of_another_system_is_refused_with_its_name(tmp_path, name, said):
    with pytest.raises(StartupError) as error:
        resolve(str(folder_of(tmp_path, None, name)))
    assert str(error.value) == f"the directory {tmp_path} {said}; {SERVED}"


@pytest.mark.parametrize(
    "config",
    [
        {"architecture": "voxcpm2", "model_type": "voxcpm2"},
        {"architecture": "VoxCPM"},
        {"lm_config": {}, "model_type": "minicpm", "architectures": ["VoxCPM"]},
        {},
    ],
)
def test_a_config_of_ours_is_not_taken_for_another(tmp_path, config):
    others = ("voxcpm2.gguf", "lora_config.json") if config else ()
    assert resolve(str(folder_of(tmp_path, config, *others))) == tmp_path


def check_line(errors: str) -> None:
    line = errors.splitlines()[-1]
    assert line.startswith("Error: ") and "(model_type " in line and SERVED in line and len(line) < 500
    assert line.isprintable() and "Traceback" not in errors


@pytest.mark.parametrize("config", [OMNI, {"model_type": "a\x1b[31m\n" + "b" * 5000}])
def test_memory_says_it_on_one_line(tmp_path, config):
    told = CliRunner().invoke(main, ["memory", "--model", str(folder_of(tmp_path, config))])
    assert told.exit_code == 1
    check_line(told.stderr)


def test_serve_says_it_on_one_line(tmp_path):
    served = subprocess.run(
        [
            sys.executable,
            "-m",
            "voxcpm_client",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--model",
            folder_of(tmp_path, OMNI),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "VOXCPM_VOICES__URL": str(tmp_path / "voices")},
    )
    assert served.returncode == 1
    check_line(served.stderr)


# ---- repositories


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def download(hub: Hub, tmp_path: Path):
    """Runs `voxcpm-grpc download` with this hub only."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "PROXY" not in name.upper()
    }
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "voxcpm_client", "download", *arguments]
        return subprocess.run(command, env=kept | own, capture_output=True, text=True, timeout=120)

    return run


def weights_asked(hub: Hub) -> list[str]:
    return [path for method, path, _ in hub.requests if method == "GET" and path.endswith(".safetensors")]


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_repository_of_another_system_is_refused_before_its_weights_are_fetched(hub, download, options):
    files = CHECKPOINT | {"config.json": json.dumps(OMNI).encode()}
    hub.repositories["Qwen/Qwen3-Omni"] = {"main": files, commit(files): files}
    hub.tells_configs = True
    done = download("Qwen/Qwen3-Omni", *options)
    assert done.returncode == 1
    assert "the repository Qwen/Qwen3-Omni is a Qwen3-Omni model (model_type qwen3_omni_moe)" in done.stderr
    assert weights_asked(hub) == []


@pytest.mark.parametrize("options", [(), ("--to", "copy")])
def test_a_mirror_that_tells_no_config_is_asked_for_it(hub, download, tmp_path, options):
    files = CHECKPOINT | {"config.json": json.dumps(OMNI).encode()}
    hub.repositories["Qwen/Qwen3-Omni"] = {"main": files, commit(files): files}
    options = [str(tmp_path / word) if word == "copy" else word for word in options]
    done = download("Qwen/Qwen3-Omni", *options)
    assert done.returncode == 1 and "is a Qwen3-Omni model (model_type qwen3_omni_moe)" in done.stderr
    assert weights_asked(hub) == []


def test_a_repository_without_a_config_is_known_by_its_files(hub, download):
    files = {"README.md": b"#", "voxcpm2-Q8_0.gguf": b"weights"}
    hub.repositories["someone/VoxCPM2-GGUF"] = {"main": files, commit(files): files}
    done = download("someone/VoxCPM2-GGUF")
    assert done.returncode == 1
    assert "the repository someone/VoxCPM2-GGUF is a model in GGUF format, for llama.cpp" in done.stderr
