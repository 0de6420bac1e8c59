"""`voxcpm-grpc demo` starts a server, speaks one sentence and leaves no server running."""

import json
import subprocess
import sys
import wave

import pytest

from voxcpm_client import Client, Unavailable


def test_demo_speaks_and_leaves_no_server(tmp_path):
    command = [sys.executable, "-m", "voxcpm_client", "demo", "--out", "demo.wav", "--text", "Hi."]
    command += ["--voice", "george", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    with wave.open(str(tmp_path / "demo.wav")) as file:
        assert file.getframerate() == report["header"]["sample_rate"]
        assert file.getnframes() == report["summary"]["total_samples"]
    assert "spoken by george; try --voice hazel or --voice miles" in done.stderr
    target = done.stderr.split("listening on ")[1].split()[0]
    with Client(target, retries=0) as client, pytest.raises(Unavailable):
        client.health()
