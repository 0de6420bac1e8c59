"""Checkpoints from the package, from directories, and from a small hub in this process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.doubles.hub import CHECKPOINT, Hub, commit

from voxcpm_grpc import checkpoint
from voxcpm_grpc.checkpoint import languages, resolve
from voxcpm_grpc.errors import StartupError

FETCHED = sorted(name for name in CHECKPOINT if not name.endswith((".py", ".md")))


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path):
    """Runs `resolve` in a process of its own that uses this hub only; it prints the path or the error."""
    script = """
import json, os, sys
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.progress import reported_to
from voxcpm_grpc.errors import StartupError
model, revision, cache, progress, limit = json.loads(sys.argv[1])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
steps = []
try:
    with reported_to(lambda step: steps.append(str(step))):
        print(resolve(model, revision, cache, progress))
    if "SHOW_STEPS" in os.environ:
        print(*steps, sep="\\n")
except StartupError as error:
    print("StartupError:", error)
"""
    keep = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "PROXY" not in name.upper()
    }

    def fetch(model: str, revision=None, cache=tmp_path / "cache", progress=False, limit=0, **env: str):
        env = {
            **keep,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            **env,
        }
        wanted = json.dumps([model, revision, cache and str(cache), progress, limit])
        return subprocess.run(
            [sys.executable, "-c", script, wanted], env=env, capture_output=True, text=True, timeout=300, check=True
        )

    return fetch


def found(run: subprocess.CompletedProcess[str]) -> Path:
    assert not run.stdout.startswith("StartupError"), run.stdout
    return Path(run.stdout.strip())


def refusal(run: subprocess.CompletedProcess[str]) -> str:
    kind, _, message = run.stdout.strip().partition(": ")
    assert kind == "StartupError"
    assert "\n" not in message
    return message


def test_demo_is_in_the_package():
    path = resolve("demo")
    assert path.is_dir()
    assert json.loads((path / "config.json").read_text())["architecture"] == "voxcpm2"


def test_a_directory_is_used_as_it_is(tmp_path, monkeypatch):
    for name in FETCHED:
        (tmp_path / name).write_bytes(CHECKPOINT[name])
    assert resolve(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert resolve(f"~/{tmp_path.name}") == tmp_path


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("./nowhere", ["'./nowhere'", "demo, a directory, or a Hugging Face repository"]),
        ("/nowhere/at/all", ["'/nowhere/at/all'", "demo, a directory"]),
        ("nowhere", ["'nowhere'", "demo, a directory"]),
        ("", ["''", "demo, a directory"]),
        ("../org/model", ["demo, a directory"]),
        ("a" * 5000, ["cannot be read"]),
        (__file__, ["is a file; use the directory"]),
    ],
)
def test_an_unknown_model_is_refused_with_the_three_forms(model, parts):
    with pytest.raises(StartupError) as error:
        resolve(model)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors", "audiovae.pth"])
def test_the_error_of_an_incomplete_directory_names_the_missing_file(tmp_path, missing):
    for name in set(FETCHED) - {missing}:
        (tmp_path / name).write_bytes(CHECKPOINT[name])
    with pytest.raises(StartupError, match=f"has no .*{missing}") as error:
        resolve(str(tmp_path))
    assert str(tmp_path) in str(error.value)


def test_a_revision_needs_a_repository():
    with pytest.raises(StartupError, match="belongs to a repository"):
        resolve("demo", revision="v2")


def test_a_repository_is_fetched_without_its_code_and_served_offline_afterwards(hub, fetch, tmp_path):
    presets = {"presets/presets.json": b"[]", "presets/anna.flac": b"a recording"}
    hub.repositories["org/model"] = {"main": CHECKPOINT | presets | {"presets/code.py": b"raise SystemExit"}}
    path = found(fetch("org/model"))
    assert path.is_relative_to(tmp_path / "cache")
    there = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert there == {name: CHECKPOINT[name] for name in FETCHED} | presets
    assert not [request for request in hub.requests if request[1].endswith((".py", ".md"))]

    again = len(hub.requests)
    assert found(fetch("org/model")) == path
    assert not [request for request in hub.requests[again:] if request[0] == "GET" and "/resolve/" in request[1]]
    hub.close()
    assert found(fetch("org/model")) == path
    assert found(fetch("org/model", HF_HUB_OFFLINE="1")) == path
    assert "not in the download cache" in refusal(fetch("org/other"))


def test_a_repository_with_pickles_is_a_checkpoint(hub, fetch):
    files = {name: content for name, content in CHECKPOINT.items() if name != "model.safetensors"}
    hub.repositories["org/model"] = {"main": files | {"pytorch_model.pth": b"weights", "added_tokens.json": b"{}"}}
    path = found(fetch("org/model"))
    assert {"pytorch_model.pth", "added_tokens.json"} <= {file.name for file in path.iterdir()}


def test_progress_is_printed_to_stderr_or_not_at_all(hub, fetch):
    hub.repositories["org/model"] = {"main": CHECKPOINT}
    assert fetch("org/model").stderr == ""
    shown = fetch("org/model", cache=None, progress=True)
    assert "Fetching" in shown.stderr
    assert shown.stdout.count("\n") == 1


def test_a_revision_is_fetched_and_a_missing_one_is_named(hub, fetch):
    older = {**CHECKPOINT, "config.json": b'{"architecture": "voxcpm", "older": true}'}
    hub.repositories["org/model"] = {"main": CHECKPOINT, "v1": older}
    assert (found(fetch("org/model", "v1")) / "config.json").read_bytes() == older["config.json"]
    assert (found(fetch("org/model", commit(CHECKPOINT))) / "config.json").read_bytes() == b"{}"
    assert "org/model has no revision v9" in refusal(fetch("org/model", "v9"))


def test_a_broken_transfer_resumes_where_it_broke(hub, fetch):
    weights = os.urandom(1 << 20) * 12  # huggingface_hub stores partial files in parts of 10 MiB
    hub.repositories["org/model"] = {"main": {**CHECKPOINT, "model.safetensors": weights}}
    hub.cut["model.safetensors"] = 11 << 20
    path = found(fetch("org/model"))
    assert (path / "model.safetensors").read_bytes() == weights
    ranges = [int(request[2].removeprefix("bytes=").rstrip("-")) for request in hub.requests if request[2]]
    assert len(ranges) == 1
    assert 0 < ranges[0] <= 11 << 20


def test_a_transfer_that_fails_repeatedly_ends_with_one_line(hub, fetch):
    hub.repositories["org/model"] = {"main": CHECKPOINT}
    hub.truncated.add("model.safetensors")
    assert "downloading org/model was broken off" in refusal(fetch("org/model"))


def test_a_second_download_keeps_complete_files(hub, fetch):
    hub.repositories["org/model"] = {"main": CHECKPOINT}
    hub.missing.add("tokenizer.json")
    assert "a file that org/model lists cannot be fetched" in refusal(fetch("org/model"))
    hub.missing.clear()
    fetched = {request[1] for request in hub.requests if request[0] == "GET" and "/resolve/" in request[1]}
    before = len(hub.requests)
    path = found(fetch("org/model"))
    again = {request[1] for request in hub.requests[before:] if request[0] == "GET" and "/resolve/" in request[1]}
    assert (path / "tokenizer.json").read_bytes() == b"{}"
    assert not {name for name in fetched & again if not name.endswith("/tokenizer.json")}


def test_an_incomplete_download_is_not_used_offline(hub, fetch):
    hub.repositories["org/model"] = {"main": CHECKPOINT}
    hub.missing.add("audiovae.pth")
    refusal(fetch("org/model"))
    hub.close()
    message = refusal(fetch("org/model"))
    assert "not all of it" in message or "no audiovae.safetensors or audiovae.pth" in message


def test_a_repository_without_a_needed_file_is_not_a_checkpoint(hub, fetch):
    hub.repositories["org/model"] = {"main": {k: v for k, v in CHECKPOINT.items() if k != "audiovae.pth"}}
    message = refusal(fetch("org/model"))
    assert "the repository org/model is not a complete VoxCPM checkpoint" in message
    assert "no audiovae.safetensors or audiovae.pth" in message


def test_errors_of_a_missing_and_a_gated_repository_have_a_remedy(hub, fetch):
    assert "no repository org/nothing; check the spelling" in refusal(fetch("org/nothing"))
    hub.repositories["org/model"] = {"main": CHECKPOINT}
    hub.gated.add("org/model")
    assert "org/model is gated: accept its terms" in refusal(fetch("org/model"))


def test_a_file_name_that_leaves_the_snapshot_is_refused(hub, fetch, tmp_path):
    hub.repositories["org/model"] = {"main": {**CHECKPOINT, "../../../../escaped.safetensors": b"evil"}}
    refusal(fetch("org/model"))
    assert not list(tmp_path.rglob("*escaped*"))
    assert not list(tmp_path.parent.glob("*escaped*"))


def test_the_error_of_a_full_disk_has_a_remedy(hub, fetch):
    pytest.importorskip("resource", reason="file size limits stand for a full disk, and this system has none")
    hub.repositories["org/model"] = {"main": {**CHECKPOINT, "model.safetensors": bytes(1 << 20)}}
    assert "free some space, or choose another directory with --cache-dir" in refusal(fetch("org/model", limit=1 << 16))


def test_a_model_names_the_languages_that_it_claims(tmp_path):
    assert languages(resolve("demo")) == ("en",)
    assert languages(tmp_path) == ()
    assert len(languages(tmp_path, "openbmb/VoxCPM2")) == 30
    (tmp_path / "languages.json").write_text('["en", "pt-BR"]')
    assert languages(tmp_path, "openbmb/VoxCPM2") == ("en", "pt-BR")
    for wrong in ('"en"', '["english!"]', "[1]", "nonsense"):
        (tmp_path / "languages.json").write_text(wrong)
        with pytest.raises(StartupError, match=r"^languages.json of the model "):
            languages(tmp_path)


def test_a_download_reports_its_bytes(hub, fetch):
    weights = bytes(range(256)) * 8192
    hub.repositories["org/large"] = {"main": CHECKPOINT | {"model.safetensors": weights}}
    run = fetch("org/large", SHOW_STEPS="1")
    path, *steps = run.stdout.splitlines()
    assert Path(path, "model.safetensors").read_bytes() == weights
    assert all(step.startswith("the model is being downloaded, ") for step in steps)
    assert re.fullmatch(r"the model is being downloaded, 2\.1 of 2\.\d MB", steps[-1]), steps


def test_a_fingerprint_is_computed_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    for name in ("config.json", "tokenizer.json", "model.safetensors", "audiovae.safetensors"):
        (tmp_path / name).write_bytes(name.encode())
    read: list[str] = []
    digest = checkpoint.digest_file
    monkeypatch.setattr(checkpoint, "digest_file", lambda path: read.append(path.name) or digest(path))
    first = checkpoint.fingerprint(tmp_path)
    assert checkpoint.fingerprint(tmp_path) == first
    assert len(read) == len(set(read)) == 4
    (tmp_path / "config.json").write_bytes(b"config.JSON")
    os.utime(tmp_path / "config.json", ns=(1, 1))  # the clock of a file system may not have moved since
    assert checkpoint.fingerprint(tmp_path) != first
    assert read[4:] == ["config.json"]
