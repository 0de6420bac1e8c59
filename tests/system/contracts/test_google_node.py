"""The published client of Google for Node, unchanged, before a server with the bundled voice."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

from support.clients.ears import RATE, SENTENCE, resampled, samples

PROGRAM = Path(__file__).parent / "google.js"
INVALID_ARGUMENT = 3


def test_it_speaks_streams_lists_and_fails_as_before_google(server, understood):
    node = shutil.which("node")
    assert node is not None, "node is not installed"
    command = [node, str(PROGRAM), server.address, SENTENCE, "miles"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    understood(samples(base64.b64decode(found["whole"])))
    understood(resampled(base64.b64decode(found["streamed"]), RATE))
    assert {"hazel", "miles", "george"} <= set(found["voices"])
    assert found["error"] == {"code": INVALID_ARGUMENT, "fields": ["audio_config.pitch"]}
