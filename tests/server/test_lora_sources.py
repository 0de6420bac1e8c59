"""Adapters come from allowed sources only, whole and once."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from support.hub import Hub, commit
from support.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, StartupError, Unavailable, VoxCPMError
from voxcpm_server.lora_sources import MAX_WEIGHTS_BYTES, LoraSources

CONFIG, WEIGHTS, LEGACY = "lora_config.json", "lora_weights.safetensors", "lora_weights.ckpt"
ADAPTER = {CONFIG: b'{"lora_config": {"r": 8}}', WEIGHTS: b"matrices"}
OTHER = {**ADAPTER, WEIGHTS: b"other matrices"}
SUM = hashlib.sha256(ADAPTER[WEIGHTS]).hexdigest()
LARGE_CONFIG = {**ADAPTER, CONFIG: b" " * (64 << 10) + b"{}"}


class FaultyFiles(MemoryFileSystem):
    """faulty://NAME/...: files in memory whose store fails, by its name."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    reading = threading.Event()  # set when the store `slow` is read
    resumed = threading.Event()
    broken: type[Exception] = OSError

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if "absent" in path:
            raise type(self).broken("secret of the store")
        info = super().info(path, **options)
        return {**info, "size": None if "sizeless" in path else 1} if "lying" in path or "sizeless" in path else info

    def open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        if mode == "rb" and path.endswith(WEIGHTS) and "broken" in path:
            return BreakingFile()
        if mode == "rb" and path.endswith(WEIGHTS) and "slow" in path:
            self.reading.set()
            assert self.resumed.wait(HANG_SECONDS)
        return super().open(path, mode, *args, **options)


class BreakingFile(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        if not self.tell():
            self.seek(1)
            return b"m"
        raise OSError("the connection of secret was reset")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "adapters"


@pytest.fixture
def allow(cache: Path) -> Callable[..., LoraSources]:
    return lambda *roots: LoraSources([str(root) for root in roots], cache)


@pytest.fixture
def stored() -> Iterator[Callable[[str, Mapping[str, bytes]], None]]:
    """Writes files below a URL of memory."""
    MemoryFileSystem.store.clear()
    FaultyFiles.store.clear()
    FaultyFiles.reading, FaultyFiles.resumed, FaultyFiles.broken = threading.Event(), threading.Event(), OSError
    fsspec.register_implementation("faulty", FaultyFiles, clobber=True)

    def write(url: str, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            with fsspec.open(f"{url}/{name}", "wb") as file:
                file.write(content)

    yield write
    FaultyFiles.resumed.set()
    MemoryFileSystem.store.clear()
    _registry.pop("faulty")


def folder(path: Path, files: Mapping[str, bytes] = ADAPTER) -> Path:
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def left(cache: Path) -> list[str]:
    """The names in the cache."""
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


async def refusal(sources: LoraSources, source: object, sha256: str | None = None) -> VoxCPMError:
    with pytest.raises(VoxCPMError) as raised:
        await sources.fetch(str(source), sha256)
    assert "secret" not in raised.value.message
    return raised.value


# What is allowed


@pytest.mark.parametrize("source", ["/srv/adapters/anna", "hf://org/anna", "s3://bucket/anna", "memory://anna"])
async def test_without_roots_every_source_is_refused_with_the_setting(allow, source):
    error = await refusal(allow(), source)
    assert isinstance(error, FailedPrecondition)
    assert source in error.message and "admin.lora_sources is empty" in error.message
    assert error.field == "source"


@pytest.mark.parametrize(
    ("root", "source"),
    [
        ("s3://bucket/a", "s3://bucket/ab"),
        ("s3://bucket/a", "s3://bucket"),
        ("s3://bucket/a", "s3://bucketb/a"),
        ("s3://bucket/a", "s3://other/a/b"),
        ("s3://bucket/a", "gs://bucket/a/b"),
        ("s3://bucket/a", "S3://bucket/a/b"),
        ("https://host/a", "https://host:8443/a/b"),
        ("https://host/a", "http://host/a/b"),
        ("s3://bucket/a", "memory://a"),
        ("s3://bucket/a", "file:///bucket/a"),
        ("s3://bucket/a", "local:///bucket/a"),
        ("s3://bucket/a", "hf://bucket/a"),
        ("s3://bucket/a", "bucket/a"),
        ("memory://adapters", "memory://adaptersb/anna"),
        ("hf://org/", "hf://organisation/anna"),
        ("hf://org/", "hf://another/org"),
        ("hf://org/anna", "hf://org/annabel"),
        ("hf://org/anna", "hf://org/ann@main"),
        ("hf://org/anna", "/org/anna"),
        ("hf://", "s3://org/anna"),
    ],
)
async def test_a_source_beside_a_root_is_refused_with_all_roots(allow, root, source):
    error = await refusal(allow(root, "hf://friend/"), source)
    assert isinstance(error, FailedPrecondition)
    for part in (source, f"{root}, hf://friend/", "admin.lora_sources"):
        assert part in error.message
    assert error.field == "source"


async def test_a_refusal_lists_ten_roots(allow):
    error = await refusal(allow(*(f"/srv/{number}" for number in range(12))), "hf://org/anna")
    assert "/srv/9 and 2 more" in error.message


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("", "empty"),
        ("memory://adapters/a\nb", "control characters"),
        ("memory://adapters/\0", "control characters"),
        ("memory://adapters/" + "a" * 2048, "has 2,066 characters and at most 2,048"),
        ("simplecache::memory://adapters/anna", "chain"),
        ("memory://adapters/anna::s3://bucket", "chain"),
        ("memory://adapters/../anna", "'..'"),
        ("memory://adapters/%2e%2E/anna", "'%2e%2E'"),
        ("memory://adapters/a%2fb", "'a%2fb'"),
        ("memory://adapters/a\\..\\b", "segment"),
        ("memory://adapters//anna", "''"),
        ("memory:///adapters/anna", "''"),
        ("memory://adapters/./anna", "'.'"),
        ("memory://adapters/anna?versionId=1", "query"),
        ("memory://adapters/anna#1", "fragment"),
        ("https://host/a?token=secret", "query"),
        ("https://user:secret@host/a/b", "user name or a password"),
        ("https://secret@host/a/b", "user name or a password"),
        ("file://adapters", "write file:///PATH"),
        ("hf://anna", "hf://OWNER/NAME"),
        ("hf://org/anna/files", "hf://OWNER/NAME"),
        ("hf://org/anna@", "hf://OWNER/NAME"),
        ("hf://org/anna@a/../../b", "hf://OWNER/NAME"),
        ("hf://org/../anna", "hf://OWNER/NAME"),
        ("hf://org/an--na", "hf://OWNER/NAME"),
    ],
)
async def test_a_malformed_source_is_refused(allow, stored, cache, source, fault):
    stored("memory://anna", ADAPTER)
    stored("memory://adapters/anna", ADAPTER)
    error = await refusal(allow("memory://adapters", "https://host/a", "hf://"), source)
    assert isinstance(error, InvalidRequest)
    assert fault in error.message
    assert error.field == "source"
    assert left(cache) == []


@pytest.mark.parametrize("sha256", ["", SUM[:-1], SUM + "0", "g" * 64, f"{SUM}\n"])
async def test_a_malformed_sum_is_refused(allow, tmp_path, sha256):
    error = await refusal(allow(tmp_path), folder(tmp_path / "anna"), sha256)
    assert isinstance(error, InvalidRequest)
    assert error.field == "sha256"
    assert f"{len(sha256)} characters and must be 64" in error.message


@pytest.mark.parametrize(
    "root",
    [
        "",
        "hf://org",
        "hf://org/anna@main",
        "hf://org/anna/files",
        "hf://../",
        "s3://",
        "s3://bucket/../other",
        "s3://bucket?a=b",
        "simplecache::s3://bucket",
        "unknown-scheme://bucket",
        "https://user:secret@host/a",
        "file://adapters",
    ],
)
def test_a_root_that_is_not_valid_stops_the_start(allow, root):
    with pytest.raises(StartupError, match=r"admin\.lora_sources has") as raised:
        allow("/srv/adapters", root)
    assert "secret" not in str(raised.value)


# Directories


async def test_a_directory_below_a_root_is_used_in_place(allow, tmp_path, cache):
    anna = folder(tmp_path / "roots/ours/anna")
    for root in (tmp_path / "roots", anna, f"{tmp_path}/roots/"):
        assert await allow(root).fetch(str(anna)) == anna
    assert await allow(tmp_path / "roots").fetch(f"{tmp_path}/roots/other/../ours/anna/", SUM.upper()) == anna
    assert left(cache) == []


async def test_a_root_may_be_a_link(allow, tmp_path):
    anna = folder(tmp_path / "disk/anna")
    (tmp_path / "adapters").symlink_to(tmp_path / "disk")
    assert await allow(tmp_path / "adapters").fetch(f"{tmp_path}/adapters/anna") == anna


@pytest.mark.parametrize("name", ["rootsb/anna", "roots/../private/anna", "roots/link", "roots/link/anna", "nowhere"])
async def test_a_directory_outside_is_refused_if_it_exists_or_not(allow, tmp_path, name):
    folder(tmp_path / "roots/anna")
    folder(tmp_path / "rootsb/anna")
    folder(tmp_path / "private/anna")
    (tmp_path / "roots/link").symlink_to(tmp_path / "private")
    error = await refusal(allow(tmp_path / "roots"), f"{tmp_path}/{name}")
    assert isinstance(error, FailedPrecondition)
    assert f"{tmp_path}/{name} is not allowed" in error.message
    assert "private" not in error.message or "private" in name  # the target of a link


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
async def test_a_file_that_links_outside_is_refused(allow, tmp_path, name):
    anna, secret = folder(tmp_path / "roots/anna"), tmp_path / "elsewhere"
    (anna / name).rename(secret)
    (anna / name).symlink_to(secret)
    error = await refusal(allow(tmp_path / "roots"), anna)
    assert isinstance(error, FailedPrecondition)
    assert f"{name} of {anna} is a link" in error.message
    assert str(secret) not in error.message
    secret.rename(tmp_path / "roots/blob")
    (anna / name).unlink()
    (anna / name).symlink_to("../blob")
    assert await allow(tmp_path / "roots").fetch(str(anna), SUM) == anna


async def test_links_in_a_circle_are_refused(allow, tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert isinstance(await refusal(allow(tmp_path), tmp_path / "one"), InvalidRequest)


async def test_a_url_of_a_directory_needs_a_root_of_its_scheme(allow, tmp_path):
    anna = folder(tmp_path / "roots/anna")
    (tmp_path / "roots/link").symlink_to(tmp_path)
    for scheme in ("file", "local"):
        sources = allow(f"{scheme}://{tmp_path}/roots")
        assert await sources.fetch(f"{scheme}://{anna}") == anna
        assert isinstance(await refusal(sources, anna), FailedPrecondition)
        assert isinstance(await refusal(sources, f"{scheme}://{tmp_path}/roots/link"), FailedPrecondition)
        assert isinstance(await refusal(allow(tmp_path), f"{scheme}://{anna}"), FailedPrecondition)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_directory_without_permission_is_refused(allow, tmp_path):
    anna = folder(tmp_path / "closed/anna")
    anna.parent.chmod(0)
    try:
        error = await refusal(allow(tmp_path), anna)
    finally:
        anna.parent.chmod(0o700)
    assert isinstance(error, FailedPrecondition)
    assert "permission" in error.message


# The files of every kind of source


@pytest.fixture(params=["directory", "memory"])
def place(request, allow, stored, tmp_path):
    """Stores an adapter in a source of each kind; returns its sources and its name."""

    def put(files: Mapping[str, bytes]) -> tuple[LoraSources, str]:
        if request.param == "directory":
            return allow(tmp_path / "ours"), str(folder(tmp_path / "ours/anna", files))
        stored("memory://ours/anna", {"notes.txt": b"mine", **files})
        return allow("memory://ours"), "memory://ours/anna"

    return put


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        ({WEIGHTS: b"x"}, ["has no lora_config.json; "]),
        ({CONFIG: b"{}"}, ["has no lora_weights.safetensors; "]),
        ({"notes.txt": b"x"}, ["no lora_config.json and no lora_weights.safetensors", "that the training wrote"]),
        ({CONFIG: b"{}", LEGACY: b"x"}, ["only lora_weights.ckpt", "pickle", "with safetensors"]),
        (LARGE_CONFIG, ["lora_config.json", "65,538 bytes and at most 65,536"]),
    ],
)
async def test_files_that_are_no_adapter_are_refused(place, cache, files, faults):
    sources, source = place(files)
    error = await refusal(sources, source)
    assert isinstance(error, InvalidRequest)
    for fault in [source, *faults]:
        assert fault in error.message
    assert left(cache) == []


async def test_a_legacy_file_beside_the_weights_is_ignored(place):
    sources, source = place({**ADAPTER, LEGACY: b"pickle"})
    found = await sources.fetch(source)
    assert content(found).items() >= ADAPTER.items()


async def test_a_wrong_sum_is_refused_with_both_and_nothing_is_kept(place, cache):
    sources, source = place(OTHER)
    error = await refusal(sources, source, SUM)
    assert isinstance(error, InvalidRequest)
    assert error.field == "sha256"
    assert hashlib.sha256(OTHER[WEIGHTS]).hexdigest() in error.message and SUM in error.message
    assert left(cache) == []


async def test_weights_over_four_gibibytes_are_refused(allow, tmp_path):
    anna = folder(tmp_path / "anna")
    os.truncate(anna / WEIGHTS, MAX_WEIGHTS_BYTES + 1)  # a sparse file
    error = await refusal(allow(tmp_path), anna)
    assert isinstance(error, InvalidRequest)
    assert "4,294,967,297 bytes and at most 4,294,967,296" in error.message


async def test_names_of_other_things_are_refused(allow, tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for name in ("file", "nowhere"):
        error = await refusal(allow(tmp_path), tmp_path / name)
        assert isinstance(error, InvalidRequest)
        assert "is not a directory" in error.message
    (folder(tmp_path / "anna", {CONFIG: b"{}"}) / WEIGHTS).mkdir()
    assert "has no lora_weights.safetensors" in (await refusal(allow(tmp_path), tmp_path / "anna")).message


# Downloads


async def test_only_the_two_files_of_a_url_are_downloaded(allow, stored, cache):
    stored("memory://ours/anna", {**ADAPTER, LEGACY: b"pickle", "optimizer.pt": b"x", "sub/lora_config.json": b"x"})
    found = await allow("memory://ours").fetch("memory://ours/anna/", SUM)
    assert content(found) == ADAPTER
    assert left(cache) == [found.name]
    for root in ("memory://", "memory://ours/", "memory://ours/anna"):
        assert await allow(root).fetch("memory://ours/anna") == found


async def test_equal_content_is_stored_once(allow, stored, cache):
    stored("memory://ours/anna", ADAPTER)
    stored("memory://ours/copy", ADAPTER)
    stored("memory://ours/other", OTHER)
    sources = allow("memory://ours")
    anna, copy, other = [await sources.fetch(f"memory://ours/{name}") for name in ("anna", "copy", "other")]
    assert anna == copy != other
    assert len(anna.name) == 64
    assert content(other) == OTHER
    stored("memory://ours/anna", OTHER)
    assert await sources.fetch("memory://ours/anna") == other
    assert left(cache) == sorted([anna.name, other.name])


async def test_concurrent_downloads_of_one_adapter_end_in_one_directory(allow, stored, cache):
    stored("memory://ours/anna", ADAPTER)
    one, two = allow("memory://ours"), allow("memory://ours")
    found = await asyncio.gather(*(sources.fetch("memory://ours/anna", SUM) for sources in (one, two) * 4))
    assert len(set(found)) == 1
    assert content(found[0]) == ADAPTER
    assert left(cache) == [found[0].name]


@pytest.mark.parametrize("damage", ["change", "remove", "empty"])
async def test_a_damaged_download_is_replaced_by_the_next_one(allow, stored, cache, damage):
    stored("memory://ours/anna", ADAPTER)
    sources = allow("memory://ours")
    found = await sources.fetch("memory://ours/anna")
    for path in [*found.iterdir()] if damage == "empty" else [found / WEIGHTS]:
        path.write_bytes(b"no matrices") if damage == "change" else path.unlink()
    assert await sources.fetch("memory://ours/anna") == found
    assert content(found) == ADAPTER
    assert left(cache) == [found.name]


async def test_a_broken_download_leaves_nothing_and_may_be_retried(allow, stored, cache, caplog):
    stored("faulty://broken", ADAPTER)
    error = await refusal(allow("faulty://broken"), "faulty://broken")
    assert isinstance(error, Unavailable)
    assert error.retry_after
    assert "faulty://broken cannot be fetched" in error.message
    assert "OSError: the connection of secret was reset" in caplog.text
    assert left(cache) == []


@pytest.mark.parametrize(
    ("raised", "kind", "part"),
    [
        (PermissionError, FailedPrecondition, "credentials that may read it"),
        (ImportError, FailedPrecondition, "needs a package"),
        (RuntimeError, Unavailable, "retry"),
        (FileNotFoundError, InvalidRequest, "has no lora_config.json"),
    ],
)
async def test_faults_of_a_store_are_told_apart(allow, stored, cache, raised, kind, part):
    FaultyFiles.broken = raised
    error = await refusal(allow("faulty://absent"), "faulty://absent/anna")
    assert isinstance(error, kind)
    assert part in error.message
    assert left(cache) == []


async def test_a_filesystem_that_is_not_installed_is_named(allow, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    error = await refusal(allow("s3://bucket"), "s3://bucket/anna")
    assert isinstance(error, FailedPrecondition)
    assert "Install s3fs" in error.message


@pytest.mark.parametrize("name", ["lying", "sizeless"])
async def test_sizes_are_limited_while_a_file_is_read(allow, stored, cache, name):
    stored(f"faulty://{name}/large", LARGE_CONFIG)
    stored(f"faulty://{name}/small", ADAPTER)
    sources = allow(f"faulty://{name}")
    error = await refusal(sources, f"faulty://{name}/large")
    assert isinstance(error, InvalidRequest)
    assert "more than 65,536 bytes" in error.message
    assert left(cache) == []
    assert content(await sources.fetch(f"faulty://{name}/small")) == ADAPTER


async def test_a_cancelled_call_ends_its_download_and_leaves_nothing(allow, stored, cache):
    stored("faulty://slow", ADAPTER)
    call = asyncio.create_task(allow("faulty://slow").fetch("faulty://slow"))
    await until(FaultyFiles.reading.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    FaultyFiles.resumed.set()
    await until(lambda: left(cache) == [])


async def test_another_server_leaves_the_download_of_a_running_one(allow, stored, cache):
    stored("faulty://slow", ADAPTER)
    call = asyncio.create_task(allow("faulty://slow").fetch("faulty://slow"))
    await until(FaultyFiles.reading.is_set)
    during = left(cache)
    allow("faulty://slow")
    assert left(cache) == during != []
    FaultyFiles.resumed.set()
    assert left(cache) == [(await call).name]


KILLED = """
import asyncio, sys, threading
from pathlib import Path
import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from voxcpm_server.lora_sources import LoraSources

class Slow(MemoryFileSystem):
    protocol, store, pseudo_dirs = "slow", {}, [""]

    def info(self, path, **options):
        return {"name": path, "type": "file", "size": 1}

    def open(self, path, *args, **options):
        print("reading", flush=True)
        threading.Event().wait()

fsspec.register_implementation("slow", Slow)
asyncio.run(LoraSources(["slow://a"], Path(sys.argv[1])).fetch("slow://a"))
"""


def test_what_a_killed_process_left_is_removed_at_the_next_start(allow, stored, cache):
    stored("memory://ours/anna", ADAPTER)
    kept = asyncio.run(allow("memory://ours").fetch("memory://ours/anna"))
    with subprocess.Popen([sys.executable, "-c", KILLED, str(cache)], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGKILL)
    assert len(left(cache)) == 2
    allow("memory://ours")
    assert left(cache) == [kept.name]


async def test_a_cache_that_cannot_be_written_is_a_fault_of_the_server(allow, stored, cache, caplog):
    stored("memory://ours/anna", ADAPTER)
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_bytes(b"a file")
    error = await refusal(allow("memory://ours"), "memory://ours/anna")
    assert isinstance(error, FailedPrecondition)
    assert "cannot be stored" in error.message
    assert str(cache.parent) not in error.message
    assert str(cache.parent) in caplog.text


def test_nothing_is_created_before_the_first_download(allow, cache):
    allow("hf://")
    assert not cache.parent.exists()


# The Hugging Face Hub

HUB_SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from voxcpm_grpc.errors import VoxCPMError
from voxcpm_server.lora_sources import LoraSources
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
