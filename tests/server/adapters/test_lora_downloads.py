"""Downloads of adapters are whole and stored once, whatever breaks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest
from fsspec.registry import _registry
from support.engines.lora_adapters import (
    ADAPTER,
    LARGE_CONFIG,
    LEGACY,
    OTHER,
    SUM,
    WEIGHTS,
    FaultyFiles,
    content,
    left,
    refusal,
)
from support.servers.waiting import until

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Unavailable


async def test_only_the_two_files_of_a_url_are_downloaded(allow, stored, cache):
    stored("memory://ours/anna", {**ADAPTER, LEGACY: b"pickle", "optimizer.pt": b"x", "sub/lora_config.json": b"x"})
    found = await allow("memory://ours").fetch("memory://ours/anna/", SUM)
    assert content(found) == ADAPTER
    assert left(cache) == [found.name]
    for root in ("memory://", "memory://ours/", "memory://ours/anna"):
        assert await allow(root).fetch("memory://ours/anna") == found
    stored("memory:/", OTHER)
    assert content(await allow("memory://").fetch("memory://")) == OTHER


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
    found = await call
    assert content(found) == ADAPTER
    assert left(cache) == [found.name]


KILLED = """
import asyncio, sys, threading
from pathlib import Path
import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from voxcpm_server.adapters.sources import LoraSources

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
