"""A forked child gets a client that works, or at once an error that names the remedy. The parent goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.servers.waiting import HANG_SECONDS

PROGRAM = Path(__file__).parents[2] / "support/clients/forking.py"
AFTER_CLOSE = PROGRAM.with_name("forks_after_close.py")
DURING_SHUTDOWN = PROGRAM.with_name("forks_during_shutdown.py")
REFUSED = "child: UnusableClient: gRPC does not work in this process, because it was forked"
REMEDY = "close the clients before the fork, make the first call after it, or start processes with spawn"


def fork(target: str, *words: str, program: Path = PROGRAM) -> list[str]:
    """The lines of the program."""
    done = subprocess.run(
        [sys.executable, program, target, *words],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("after", "way"), [("new", "fork"), ("inherited", "fork"), ("inherited", "unseen")])
def test_a_child_of_a_process_that_uses_a_client_is_told_so(server, after, way):
    told, status, parent = fork(server.target, "used", after, way)
    assert told.startswith(REFUSED) and told.endswith(REMEDY)
    assert (status, parent) == ("status: 0", "parent: True")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nothing", "new"),
        ("made", "inherited"),
        ("closed", "new"),
        ("stream closed", "new async"),
        ("closed after errors", "new"),
    ],
)
def test_a_child_works_if_no_client_is_open_at_the_fork(server, before, after):
    told, status, *_ = fork(server.target, before, after, "fork")
    assert (told, status) == ("child: True", "status: 0")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process by name")
def test_no_thread_of_grpc_holds_a_lock_when_a_process_forks_after_close(server):
    assert fork(server.target, program=AFTER_CLOSE) == ["threads:"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process by name")
def test_a_thread_that_starts_while_the_threads_are_read_is_waited_for(server):
    assert fork(server.target, program=DURING_SHUTDOWN) == ["threads:"]


def test_a_child_may_close_the_client_of_its_parent(server):
    assert fork(server.target, "used", "close", "fork") == ["child: None", "status: 0", "parent: True"]
