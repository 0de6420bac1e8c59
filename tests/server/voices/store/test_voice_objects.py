"""Folders, memory and S3 behave alike as stores, and an unusable URL is an error at the start."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.registry import _registry
from support.servers.waiting import NEVER_SECONDS, wait_until

from voxcpm_grpc.errors import StartupError, Unavailable
from voxcpm_server.voices.store.objects import Objects


def test_an_object_is_listed_and_read_until_it_is_removed(store_url):
    one, two = Objects(store_url), Objects(store_url)
    assert one.names() == one.names("a") == []
    one.write("a/1.x", b"first")
    one.write("a/2.y", b"second")
    one.write("b/1.x", b"third")
    assert sorted(two.names()) == ["a/1.x", "a/2.y", "b/1.x"]
    assert sorted(two.names("a")) == ["a/1.x", "a/2.y"]
    assert two.names("c") == []
    assert two.read("a/1.x", "b/1.x", "c/1.x") == {"a/1.x": b"first", "b/1.x": b"third"}
    assert two.read("c/1.x") == two.read() == {}
    two.remove("a/1.x", "c/1.x")
    two.remove("a/1.x")
    two.remove()
    assert sorted(one.names()) == ["a/2.y", "b/1.x"]
    assert one.read("a/1.x") == {}
    two.remove("b/1.x")
    assert one.names("b") == []
    two.write("b/1.x", b"again")
    assert one.read("b/1.x") == {"b/1.x": b"again"}


def test_an_empty_folder_may_be_removed_during_another_write_into_it(store_url):
    def work(worker: int) -> None:
        objects = Objects(store_url)
        for turn in range(20):
            objects.write(f"a/{worker}-{turn}", b"x")
            assert objects.read(f"a/{worker}-{turn}")
            objects.remove(f"a/{worker}-{turn}")

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(work, range(4)))
    assert Objects(store_url).names() == []


def test_an_empty_folder_may_be_removed_between_check_and_use(tmp_path, monkeypatch):
    objects, folder, mkdir = Objects(str(tmp_path)), tmp_path / "a", os.mkdir

    def with_a_concurrent_removal(path: str | Path, mode: int = 0o777) -> None:
        try:
            mkdir(path, mode)
        except FileExistsError:
            Path(path).rmdir()
            raise

    folder.mkdir()
    monkeypatch.setattr(os, "mkdir", with_a_concurrent_removal)
    objects.write("a/1", b"x")
    assert objects.read("a/1") == {"a/1": b"x"}


def test_a_folder_with_special_characters_and_other_files(tmp_path):
    folder = tmp_path / "a [b] *"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    objects = Objects(str(folder))
    objects.write("x/1", b"data")
    assert objects.names() == ["x/1"]
    assert objects.read("x/1", "x/2") == {"x/1": b"data"}
    objects.remove("x/1")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_new_folder_is_accessible_only_to_its_owner(tmp_path):
    objects = Objects(f"file://{tmp_path}/deep/voices")
    objects.write("x/1", b"data")
    assert (tmp_path / "deep/voices").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep/voices/x").stat().st_mode & 0o777 == 0o700


CRASH = """
import os, sys
from voxcpm_server.voices.store.objects import Objects
objects = Objects(sys.argv[1])
os.fsync = lambda handle: os._exit(9)
objects.write("a/1", b"data")
"""


def test_a_crash_while_writing_leaves_nothing_under_the_name(tmp_path):
    assert subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], timeout=300).returncode == 9
    (name,) = Objects(str(tmp_path)).names()
    assert name.startswith("a/1.part")


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("nosuch://bucket/voices", "nosuch"),
        ("memory:///", "name a folder in it, such as memory:///"),
        ("simplecache::memory://voices", "chain"),
    ],
)
def test_an_unusable_url_is_an_error_at_the_start(url, error):
    with pytest.raises(StartupError, match=error):
        Objects(url)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)  # the imports that fsspec has cached
    with pytest.raises(StartupError, match="s3fs"):
        Objects("s3://bucket/voices")


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "voices").write_text("a file")
    with pytest.raises(StartupError, match=r"voice store .*voices cannot be used"):
        Objects(str(tmp_path / "voices"))


class Hanging(AsyncFileSystem):
    """A remote filesystem that never answers."""

    protocol = "hanging"
    cancelled = 0

    async def _find(self, path, maxdepth=None, withdirs=False, **kwargs):
        try:
            await asyncio.sleep(NEVER_SECONDS)
        finally:
            Hanging.cancelled += 1
        return []


def test_a_call_to_a_remote_store_that_hangs_is_cancelled():
    fsspec.register_implementation("hanging", Hanging, clobber=True)
    objects = Objects("hanging://host/voices", 0.1)
    with pytest.raises(Unavailable):
        objects.names()
    wait_until(lambda: Hanging.cancelled == 1)  # a thread that waits would block the end of the process


def test_a_store_that_is_lost_later_is_unavailable(tmp_path, caplog):
    objects = Objects(str(tmp_path / "voices"))
    (tmp_path / "voices").rmdir()
    for call in (objects.names, lambda: objects.names("a"), lambda: objects.write("a/1", b"x")):
        with pytest.raises(Unavailable, match="retry") as caught:
            call()
        assert caught.value.retry_after
        assert str(tmp_path) not in caught.value.message
    assert "No such file" in caplog.text
