"""A signal at any moment of a start ends the server without a traceback, an error or a process that is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.checkpoints import TINY
from support.waiting import HANG_SECONDS, wait_until

COMMAND = (sys.executable, "-m", "voxcpm_client", "serve", "--model", str(TINY), "--drain-delay-seconds", "0")
LISTEN = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--metrics.listen", "127.0.0.1:0")
FAULTS = re.compile(r" ERROR |Traceback|Exception ignored|never retrieved|never awaited")


@pytest.mark.parametrize(
    ("moment", "flags", "signals"),
    [
        ("the model is loading", (), [signal.SIGINT]),
        ("the model is loading", ("--devices", "cpu:2"), [signal.SIGTERM, signal.SIGTERM]),
        ("start: the port", ("--fronts", "2"), [signal.SIGINT]),
        ("PyTorch is being imported", (), [signal.SIGTERM]),
        ("listening on", (), [signal.SIGTERM, signal.SIGTERM]),
    ],
)
def test_a_signal_at_any_moment_ends_the_server_in_silence(tmp_path, moment, flags, signals):
    with (tmp_path / "log").open("w") as log:
        command = [*COMMAND, *LISTEN, *flags, "--voices.url", str(tmp_path / "voices")]
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until(lambda: moment in Path(log.name).read_text() or server.poll() is not None)
            for number in signals:
                server.send_signal(number)
            assert server.wait(HANG_SECONDS) == 0
            wait_until(lambda: not members(server.pid))
        finally:
            server.kill()
            server.wait()
        text = Path(log.name).read_text()
        assert moment in text and not FAULTS.search(text), text


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
