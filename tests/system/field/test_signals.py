"""A signal at any moment of a start ends the server, without a traceback, an error or a process that is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.engines.checkpoints import TINY
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

DRAIN = ("--drain-delay-seconds", "0", "--drain-seconds", f"{NEVER_SECONDS:g}")
COMMAND = (sys.executable, "-m", "voxcpm_client", "serve", "--model", str(TINY), *DRAIN)
COUNTING = (  # a server that never knows the number of its GPUs
    *(sys.executable, "-c"),
    "import subprocess, sys, voxcpm_server.main as main; from voxcpm_grpc.settings.sources import load; "
    "wait = [sys.executable, '-c', 'import time; print(\"counting\", flush=True); time.sleep(1000)']; "
    "main.visible_gpus = lambda: subprocess.run(wait).returncode; main.serve(load(sys.argv[1:]))",
)
LISTEN = ("--listen", "127.0.0.1:0", "--http.listen", "127.0.0.1:0", "--metrics.listen", "127.0.0.1:0")
FAULTS = re.compile(r" ERROR |Traceback|Exception ignored|never retrieved|never awaited")


@pytest.mark.parametrize(
    ("moment", "flags", "signals"),
    [
        ("the model is loading", (), [signal.SIGINT]),
        ("the model is loading", ("--devices", "cpu:2"), [signal.SIGTERM, signal.SIGTERM]),
        ("start: the port", ("--fronts", "2"), [signal.SIGINT]),
        ("PyTorch is being imported", (), [signal.SIGTERM]),
        ("PyTorch is being imported", ("--fronts", "2"), [signal.SIGTERM]),
        ("the voices are loading", (), [signal.SIGTERM]),
        ("listening on", (), [signal.SIGTERM, signal.SIGTERM]),
    ],
)
def test_a_signal_at_any_moment_ends_the_server_in_silence(tmp_path, moment, flags, signals):
    log = tmp_path / "log"
    ends_in_silence(log, flags, lambda: moment in log.read_text(), signals)
    assert moment in log.read_text()


@pytest.mark.parametrize("moment", ["start: the port", "the model is loading", "warming up"])
def test_ctrl_c_of_a_terminal_at_any_moment_ends_the_server_in_silence(tmp_path, moment):
    """It reaches all processes of the server, also those that are just starting."""
    log = tmp_path / "log"
    ends_in_silence(log, (), lambda: moment in log.read_text(), [signal.SIGINT], send=os.killpg)
    assert moment in log.read_text()


def test_a_signal_ends_a_start_that_waits_for_a_file(tmp_path):
    lexicon = tmp_path / "lexicon.toml"
    os.mkfifo(lexicon)

    def is_read() -> bool:
        try:
            os.open(lexicon, os.O_WRONLY | os.O_NONBLOCK)  # stays open, and nothing is written
        except OSError:
            return False
        return True

    ends_in_silence(tmp_path / "log", ("--text.lexicon", str(lexicon)), is_read, [signal.SIGTERM])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_that_counts_gpus(tmp_path, number):
    log = tmp_path / "log"
    ends_in_silence(log, (), lambda: "counting" in log.read_text(), [number], (*COUNTING, *COMMAND[4:]))


def ends_in_silence(
    log: Path,
    flags,
    has_come: Callable[[], object],
    signals,
    command=COMMAND,
    send: Callable[[int, int], None] = os.kill,
) -> None:
    """Start a server, send it signals when a moment has come, and check that nothing is left of it."""
    command = [*command, *LISTEN, *flags, "--voices.url", str(log.parent / "voices")]
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_until(lambda: has_come() or server.poll() is not None)
            for number in signals:
                send(server.pid, number)
            assert server.wait(HANG_SECONDS) == 0
            wait_until(lambda: not members(server.pid))
        finally:
            for process in members(server.pid):
                process.kill()
            server.wait()
    assert not FAULTS.search(text := log.read_text()), text


def members(group: int) -> list[psutil.Process]:
    """The processes of a session that have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found
