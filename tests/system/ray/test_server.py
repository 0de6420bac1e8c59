"""A server whose engines are actors of a Ray cluster: one server to its callers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.clients.short_speech import SHORT
from support.servers.running import Server, serving
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_client import Client, SpeechError

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """With two engines on a cluster of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)  # else Ray leaves one in the home directory
        folder = tmp_path_factory.mktemp("voices")
        with serving(folder, "--pool", "ray", "--ray.min-engines", "2") as server:
            yield server
            started = psutil.Process(server.process.pid).children(recursive=True)
        assert len(started) > 3
        wait_until(lambda: all(map(is_over, started)))  # nothing of Ray is left behind


def is_over(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def engines(server: Server) -> set[int]:
    """The processes that are engines."""
    found = set()
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name().startswith("ray::VoxCPMEngi"):  # Linux cuts names
                found.add(child.pid)
    return found


def test_the_end_to_end_tests_pass(server):
    command = [sys.executable, "-m", "pytest", "tests/e2e/test_speech.py", "--target", server.address]
    done = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout


def test_an_engine_that_dies_under_load_costs_its_own_streams_only(server):
    assert len(engines(server)) == 2
    ends: list[str] = []
    over = threading.Event()

    def call() -> None:
        with Client(server.address, timeout=HANG_SECONDS, retries=0) as client:
            while not over.is_set():
                try:
                    summary = client.say("Hello.", **SHORT).summary
                    ends.append("whole" if summary is not None and summary.total_samples else "empty")
                except SpeechError as error:
                    ends.append(error.code)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        wait_until(lambda: ends.count("whole") > 4)
        lost = min(engines(server))
        os.kill(lost, signal.SIGKILL)
        wait_until(lambda: len(engines(server) - {lost}) == 2 and ends.count("whole") > 10, 2 * HANG_SECONDS)
    finally:
        over.set()
        for caller in callers:
            caller.join(HANG_SECONDS)
    assert set(ends) <= {"whole", "ABORTED"}
    assert ends.count("ABORTED") <= 4
