"""Socket folders, also those whose owners were killed."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from voxcpm_grpc.ipc.socket_folder import SocketFolder

OWNER = """
import socket, time
from voxcpm_grpc.ipc.socket_folder import SocketFolder
folder = SocketFolder()
socket.socket(socket.AF_UNIX).bind(str(folder.path / "messages"))
print(folder.path, flush=True)
time.sleep(60)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short path, because the addresses of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="t-") as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", path)
        patch.setattr(tempfile, "tempdir", path)
        yield Path(path)


@pytest.fixture
def owner(temporary) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns a folder with a socket in it."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline().startswith(str(temporary))
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_new_folder_removes_one_whose_owner_was_killed(temporary, owner):
    [theirs] = temporary.iterdir()
    ours = SocketFolder()
    assert {*temporary.iterdir()} == {theirs, ours.path}, "its owner still runs"
    assert (theirs / "messages").exists()
    owner.kill()
    owner.wait()
    another = SocketFolder()
    assert {*temporary.iterdir()} == {ours.path, another.path}
    ours.close()
    another.close()
    assert not list(temporary.iterdir())


def test_only_sockets_are_removed(temporary, owner):
    [theirs] = temporary.iterdir()
    (theirs / "notes").touch()
    (temporary / "voxcpm-sockets-file").touch()
    (temporary / "voxcpm-sockets-link").symlink_to(theirs)
    owner.kill()
    owner.wait()
    SocketFolder().close()
    assert [path.name for path in theirs.iterdir()] == ["notes"]
    assert len(list(temporary.iterdir())) == 3


def test_close_removes_a_folder_and_its_sockets(temporary):
    folder = SocketFolder()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder.path / "messages"))
        folder.close()
    assert not list(temporary.iterdir())
    folder.close()  # a second time
