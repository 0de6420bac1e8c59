"""The `openai` packages of JavaScript and Python before the gateway, in a program and in a page of another origin."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from support.engines.checkpoints import VOICE
from support.servers.threaded_gateways import gateway
from support.servers.waiting import HANG_SECONDS

PROGRAM = Path(__file__).parent / "openai_sdk.js"
PAGE = "https://app.example"


def run(url: str, origin: str) -> dict[str, Any]:
    """What the package got, from a program, or from a page with this origin."""
    command = ["node", PROGRAM, url, origin, VOICE / "presets/miles.flac"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: dict[str, Any]) -> None:
    assert "tts-1" in found["models"]
    assert found["bytes"] == found["streamed"] > 20000
    assert found["voice"]["object"] == "audio.voice"
    assert found["deleted"]["deleted"]
    assert (found["wrong"]["kind"], found["wrong"]["status"]) == ("NotFoundError", 404)
    assert (found["empty"]["kind"], found["empty"]["param"]) == ("BadRequestError", "input")
    assert found["wrong"]["requestID"]


def test_a_program_of_node_speaks_stores_voices_and_gets_errors(site):
    check(run(site.url, ""))


@pytest.mark.parametrize("allowed", [PAGE, "*"])
def test_a_page_that_is_allowed_does_the_same(site, allowed):
    with gateway(site.server.address, allowed_origins=(allowed,)) as address:
        found = run(f"http://{address}", PAGE)
    check(found)
    assert sum(name.startswith("x-stainless-") for name in found["sent"]) >= 6


def test_a_page_that_is_not_allowed_gets_nothing(site):
    with pytest.raises(AssertionError, match="Connection error"):
        run(site.url, PAGE)


def test_the_package_of_python_speaks_to_an_address_with_a_slash_at_its_end(site):
    with OpenAI(base_url=f"{site.url}/v1/", api_key="none", max_retries=0) as client:
        audio = client.audio.speech.create(
            model="tts-1", voice="alloy", input="Good morning.", response_format="pcm"
        ).read()
    assert len(audio) > 20000
