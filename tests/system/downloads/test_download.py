"""`voxcpm-grpc download` from a small hub: sizes, progress, resume, checks, private repositories and full disks."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.doubles.hub import CHECKPOINT, TOKEN, Hub, commit
from support.engines.checkpoints import TINY
from support.servers.waiting import HANG_SECONDS, wait_until

WEIGHTS = bytes(range(256)) * (12 << 12)  # 12 MiB; huggingface_hub writes parts of 10
PART = 10 << 20
FILES = CHECKPOINT | {"model.safetensors": WEIGHTS}
TRY_AGAIN = 75


@dataclass(frozen=True)
class Download:
    """The command, with a hub and a home of its own."""

    url: str
    home: Path

    def start(self, *arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        env |= {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
        }
        command = (sys.executable, "-m", "voxcpm_client", "download", *map(str, arguments))
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env | variables, stdout=pipe, stderr=pipe, text=True)

    def __call__(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **variables) as process:
            out, errors = process.communicate(timeout=HANG_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    hub.repositories["org/model"] = {"main": FILES}
    yield hub
    hub.close()


@pytest.fixture
def download(hub: Hub, tmp_path: Path) -> Download:
    return Download(hub.url, tmp_path / "home")


def fetched(hub: Hub, since: int = 0) -> list[str]:
    """The names of the files that were asked for."""
    paths = [request[1] for request in hub.requests[since:] if request[0] == "GET" and "/resolve/" in request[1]]
    return sorted(path.partition("/resolve/")[2].partition("/")[2] for path in paths)


def test_a_download_says_its_size_first_and_prints_its_directory_last(hub, download, tmp_path):
    done = download("org/model", "--cache-dir", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stderr.splitlines()
    assert first.startswith(
        f"org/model at {commit(FILES)[:12]}: 6 files, 12.6 MB, of which 12.6 MB are to be downloaded"
    )
    assert str(tmp_path / "cache") in first
    assert "the model is being downloaded, 12.6 of 12.6 MB" in done.stderr
    assert last == "6 files have the sizes and sums that the repository lists"
    [directory] = done.stdout.splitlines()
    assert (Path(directory) / "model.safetensors").read_bytes() == WEIGHTS
    before = len(hub.requests)
    again = download("org/model", "--cache-dir", tmp_path / "cache")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert "of which 0.0 MB are to be downloaded" in again.stderr
    assert fetched(hub, before) == []


def test_a_dry_run_lists_files_and_downloads_nothing(hub, download):
    done = download("org/model", "--dry-run")
    assert done.returncode == 0, done.stderr
    sizes = {line.split()[1]: int(line.split()[0].replace(",", "")) for line in done.stdout.splitlines()}
    assert sizes == {name: len(body) for name, body in FILES.items() if not name.endswith((".py", ".md"))}
    assert fetched(hub) == []


@pytest.mark.parametrize("place", ["--cache-dir", "--to"])
def test_a_download_goes_on_where_it_was_broken_off(hub, download, tmp_path, place):
    """huggingface_hub tries a transfer again by itself, and keeps nothing of it in the end."""
    hub.stops["model.safetensors"] = 11 << 20
    broken = download("org/model", place, tmp_path / "place")
    assert broken.returncode == TRY_AGAIN
    assert "what has arrived is kept" in broken.stderr.splitlines()[-1]
    [part] = (tmp_path / "place").rglob("*.part")
    arrived = part.stat().st_size
    assert arrived == PART
    hub.stops.clear()
    before = len(hub.requests)
    done = download("org/model", place, tmp_path / "place")
    assert done.returncode == 0, done.stderr
    assert "of which 2.1 MB are to be downloaded" in done.stderr.splitlines()[0]
    ranges = [
        request[2] for request in hub.requests[before:] if request[1].endswith("model.safetensors") and request[2]
    ]
    assert ranges == [f"bytes={arrived}-"]
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == WEIGHTS
    assert not list((tmp_path / "place").rglob("*.part"))


def test_a_download_goes_on_after_ctrl_c(hub, download, tmp_path):
    hub.stops["model.safetensors"], hub.holds = 11 << 20, True
    process = download.start("org/model", "--to", tmp_path / "copy")
    part = tmp_path / "copy/model.safetensors.part"
    wait_until(lambda: (part.exists() and part.stat().st_size == PART) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert part.stat().st_size == PART
    hub.stops.clear()
    done = download("org/model", "--to", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert "of which 2.1 MB are to be downloaded" in done.stderr.splitlines()[0]


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(hub, download, tmp_path):
    hub.claimed["model.safetensors"] = 10**18
    done = download("org/model", "--cache-dir", tmp_path / "cache")
    assert done.returncode == 1
    assert "org/model needs 1,000,000,000.0 GB more in" in done.stderr
    assert "are free there; free some space, or choose another directory with --cache-dir" in done.stderr
    assert fetched(hub) == []


@pytest.mark.parametrize("place", ["--cache-dir", "--to"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_found_removed_and_downloaded_again(hub, download, tmp_path, place, name):
    directory = Path(download("org/model", place, tmp_path / "place").stdout.strip())
    (directory / name).write_bytes(FILES[name][:-1] + b"!")
    found = download("org/model", place, tmp_path / "place")
    assert found.returncode == TRY_AGAIN
    assert f"{name} is damaged: it has the " in found.stderr
    assert "it was removed, download again" in found.stderr
    repaired = download("org/model", place, tmp_path / "place")
    assert repaired.returncode == 0, repaired.stderr
    assert (directory / name).read_bytes() == FILES[name]


def test_a_copy_has_plain_files_and_their_sums(download, tmp_path):
    done = download("org/model", "--to", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "copy")
    lines = [line.partition("  ") for line in (tmp_path / "copy/SHA256SUMS").read_text().splitlines()]
    sums = {name: value for value, _, name in lines}
    wanted = {name: body for name, body in FILES.items() if not name.endswith((".py", ".md"))}
    assert sums == {name: hashlib.sha256(body).hexdigest() for name, body in wanted.items()}
    there = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert {path.name for path in there} == {*wanted, "SHA256SUMS"}
    assert not any(path.is_symlink() for path in there)
    checked = subprocess.run(("sha256sum", "--check", "--quiet", "SHA256SUMS"), cwd=tmp_path / "copy")
    assert checked.returncode == 0
    again = download(tmp_path / "copy", HF_HUB_OFFLINE="1")  # the directory is a model, without a network
    assert again.stdout.strip() == str(tmp_path / "copy")


def test_a_private_repository_needs_a_token(hub, download, tmp_path):
    hub.private.add("org/model")
    refused = download("org/model")
    assert refused.returncode == 1
    assert "access to org/model was refused (401): log in with `hf auth login`, or set HF_TOKEN" in refused.stderr
    assert download("org/model", HF_TOKEN="hf_of_nobody").returncode == 1
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert download("org/model", "--token-file", tmp_path / "token").returncode == 0
    assert download("org/model", "--to", tmp_path / "copy", HF_TOKEN=TOKEN).returncode == 0


def test_files_that_are_refused_have_a_remedy(hub, download):
    hub.forbidden.add("org/model")
    done = download("org/model")
    assert done.returncode == 1
    assert "access to org/model was refused (403): log in with `hf auth login`, or set HF_TOKEN" in done.stderr


def test_what_is_not_there_is_named(hub, download):
    for arguments, said in (
        (("org/nothing",), "there is no directory and no repository org/nothing; check the spelling"),
        (("org/model", "--revision", "v9"), "the repository org/model has no revision v9"),
        (("./nowhere",), "there is no directory './nowhere'"),
    ):
        done = download(*arguments)
        assert done.returncode == 1
        assert said in done.stderr.splitlines()[-1]


def test_a_revision_is_downloaded(hub, download):
    older = b'{"architecture": "voxcpm2", "older": true}'
    hub.repositories["org/model"]["v1"] = FILES | {"config.json": older}
    done = download("org/model", "--revision", "v1")
    assert (Path(done.stdout.strip()) / "config.json").read_bytes() == older


def test_without_a_network_the_cache_is_used_and_a_copy_is_to_be_tried_again(hub, download, tmp_path):
    directory = download("org/model").stdout
    hub.close()
    done = download("org/model")
    assert (done.returncode, done.stdout) == (0, directory)
    assert "its files were not checked" in done.stderr
    failed = download("org/model", "--to", tmp_path / "copy")
    assert failed.returncode == TRY_AGAIN
    assert "org/model cannot be reached" in failed.stderr
    unknown = download("org/other")
    assert unknown.returncode == TRY_AGAIN
    assert "org/other is not in the download cache, or not all of it" in unknown.stderr


def test_the_memory_of_a_repository_needs_its_configuration_alone(hub, tmp_path):
    hub.repositories["org/model"]["main"] = FILES | {"config.json": (TINY / "config.json").read_bytes()}
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = (sys.executable, "-m", "voxcpm_client", "memory", "--model", "org/model", "--slots", "8")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "org/model, bfloat16: " in done.stdout
    assert fetched(hub) == ["config.json"]


def test_a_copy_and_a_cache_exclude_each_other(download, tmp_path):
    done = download("org/model", "--to", tmp_path / "copy", "--cache-dir", tmp_path / "cache")
    assert done.returncode == 2
