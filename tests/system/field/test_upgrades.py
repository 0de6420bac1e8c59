"""Clients that offer HTTP/2 with each request: Java's HttpClient as it is by default, and curl with `--http2`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from support.servers.waiting import HANG_SECONDS

PROGRAM = Path(__file__).parent / "Upgrades.java"
SPEECH = {"input": "The train arrived ten minutes late.", "voice": "miles", "seed": 7, "response_format": "pcm"}


@pytest.fixture(scope="module")
def expected(site) -> str:
    """The SHA-256 of the speech, from a client that offers nothing."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{site.url}/v1/audio/speech", json.dumps(SPEECH).encode(), headers)
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as response:
        return hashlib.sha256(response.read()).hexdigest()


def java() -> str:
    """The program java: this host's, or the one of the suite, which Debian's packages leave out of the PATH."""
    unpacked = Path(os.environ["SYSTEM_TEST_DEBIAN"], "usr/lib/jvm").glob("java-*-openjdk-*/bin/java")
    return shutil.which("java") or str(next(unpacked))


def test_java_gets_the_same_speech_whatever_it_offers(site, expected):
    done = subprocess.run([java(), PROGRAM, site.host], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    calls = {name: (int(status), digest) for name, status, digest in map(str.split, done.stdout.splitlines())}
    for name in ("string", "again", "chunked", "expect", "old"):
        assert calls[name] == (200, expected), name
    assert calls["models"][0] == 200
    assert calls["socket"] == (1000, expected)


@pytest.mark.parametrize(
    "options", [("--http2",), ("--http1.1",), ("--http1.0",), ("--http2", "-H", "Expect: 100-continue")]
)
def test_curl_gets_the_same_speech_whatever_it_offers(site, expected, options):
    body = ("-H", "content-type: application/json", "--data", json.dumps(SPEECH))
    command = [
        "curl",
        "-sS",
        "--noproxy",
        "*",
        *options,
        *body,
        f"{site.url}/v1/audio/speech",
        "-w",
        "%{stderr}%{json}",
    ]
    done = subprocess.run(command, capture_output=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert hashlib.sha256(done.stdout).hexdigest() == expected
    assert json.loads(done.stderr)["http_code"] == 200
    assert json.loads(done.stderr)["http_version"] == "1.1"
