"""Adapters of the Hugging Face Hub, from a small hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.doubles.hub import Hub, commit
from support.engines.lora_adapters import ADAPTER, CONFIG, LARGE_CONFIG, LEGACY, OTHER, SUM, WEIGHTS, content, left
from support.servers.waiting import HANG_SECONDS

from voxcpm_server.adapters.sources import MAX_WEIGHTS_BYTES

HUB_SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from voxcpm_grpc.errors import VoxCPMError
from voxcpm_server.adapters.sources import LoraSources
roots, cache, wanted = json.loads(sys.argv[1])
for source, sha256 in wanted:
    try:
        path = asyncio.run(LoraSources(roots, Path(cache)).fetch(source, sha256))
        print(json.dumps(["", str(path)]))
    except VoxCPMError as error:
        print(json.dumps([type(error).__name__, error.message]))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    hub.repositories["org/anna"] = {"main": {**ADAPTER, LEGACY: b"pickle", "README.md": b"#"}, "v2": OTHER}
    yield hub
    hub.close()


@pytest.fixture
def from_hub(hub: Hub, cache: Path, tmp_path: Path):
    """Fetches sources one after another in a process that uses this hub only. Returns kinds of errors and results."""
    keep = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "PROXY" not in name.upper()
    }

    def fetch(*sources: str | tuple[str, str], roots=("hf://",)) -> list[tuple[str, str]]:
        env = {
            **keep,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
        }
        wanted = [(source, None) if isinstance(source, str) else source for source in sources]
        command = [sys.executable, "-c", HUB_SCRIPT, json.dumps([roots, str(cache), wanted])]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
        return [tuple(json.loads(line)) for line in run.stdout.splitlines()]

    return fetch


def test_only_the_two_files_of_a_repository_are_downloaded(hub, from_hub, cache):
    other = hashlib.sha256(OTHER[WEIGHTS]).hexdigest()
    exact = f"hf://org/anna@{commit(OTHER)}"
    found = from_hub(("hf://org/anna", SUM), ("hf://org/anna@v2", other), exact)
    assert [kind for kind, _ in found] == ["", "", ""]
    main, second, third = [Path(path) for _, path in found]
    assert content(main) == ADAPTER
    assert content(second) == OTHER
    assert third == second
    assert left(cache) == sorted([main.name, second.name])
    fetched = {path.rpartition("/")[2] for _, path, _ in hub.requests if "/resolve/" in path}
    assert fetched == {CONFIG, WEIGHTS}


def test_the_roots_of_the_hub_allow_all_an_owner_or_one_repository(hub, from_hub):
    for roots in (["hf://org/"], ["hf://org/anna"], ["hf://another/", "hf://org/anna"]):
        assert from_hub("hf://org/anna", "hf://org/anna@v2", roots=roots) == from_hub(
            "hf://org/anna", "hf://org/anna@v2"
        )
    asked = len(hub.requests)
    refused = from_hub("hf://org/annabel", "hf://organisation/anna", "hf://or/anna", roots=["hf://org/anna"])
    assert [kind for kind, _ in refused] == ["FailedPrecondition"] * 3
    assert len(hub.requests) == asked


def test_what_a_repository_lacks_is_named(hub, from_hub, cache):
    hub.repositories["org/legacy"] = {"main": {CONFIG: b"{}", LEGACY: b"pickle"}}
    hub.repositories["org/model"] = {"main": {"config.json": b"{}"}}
    hub.repositories["org/large"] = {"main": LARGE_CONFIG}
    hub.repositories["org/gated"] = {"main": ADAPTER}
    hub.repositories["org/private"] = {"main": ADAPTER}
    hub.gated.add("org/gated")
    hub.private.add("org/private")
    names = ("legacy", "model", "large", "gated", "private", "absent", "anna@v9")
    legacy, model, large, gated, private, absent, revision = from_hub(
        *(f"hf://org/{name}" for name in names), ("hf://org/anna", "0" * 64)
    )[:-1]
    assert legacy[0] == model[0] == large[0] == "InvalidRequest"
    assert "with safetensors" in legacy[1]
    assert "hf://org/model has no lora_config.json and no lora_weights.safetensors" in model[1]
    assert "65,538 bytes and at most 65,536" in large[1]
    assert {gated[0], private[0], absent[0], revision[0]} == {"FailedPrecondition"}
    assert "gated" in gated[1] and "HF_TOKEN" in gated[1]
    assert "refused (401)" in private[1] and "HF_TOKEN" in private[1]
    assert "check the spelling" in absent[1]
    assert "has no revision v9" in revision[1]
    assert left(cache) == []


def test_broken_transfers_of_the_hub_leave_nothing(hub, from_hub, cache):
    hub.repositories["org/damaged"] = {"main": ADAPTER}
    hub.truncated.add(WEIGHTS)
    wrong, damaged = from_hub(("hf://org/anna@v2", SUM), "hf://org/damaged")
    assert damaged[0] == wrong[0] == "Unavailable"
    hub.truncated.clear()
    kind, message = from_hub(("hf://org/anna@v2", SUM))[0]
    assert kind == "InvalidRequest"
    assert SUM in message and hashlib.sha256(OTHER[WEIGHTS]).hexdigest() in message
    hub.claimed[WEIGHTS] = MAX_WEIGHTS_BYTES + 1
    kind, message = from_hub("hf://org/anna")[0]
    assert kind == "InvalidRequest"
    assert "4,294,967,297 bytes" in message
    hub.close()
    kind, message = from_hub("hf://org/anna")[0]
    assert kind == "Unavailable"
    assert "cannot be reached" in message
    assert left(cache) == []
