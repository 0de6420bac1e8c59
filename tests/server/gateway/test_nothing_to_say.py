"""Text of which nothing is spoken, such as a block of code, is no error of the HTTP gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from voxcpm_server.text.normalize import packages

CODE = "```\nmake 1\n```"


class Unused:
    async def normalize(self, text: str, language: str = "") -> str:
        raise AssertionError(text)


@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "wav", "pcm"])
async def test_a_block_of_code_has_no_samples(serve_front: Any, serve_gateway: Any, monkeypatch: Any, format: str):
    monkeypatch.setattr(packages, "_missing", list)
    async with serve_front(normalizer=Unused()) as served, serve_gateway(served.address) as gateway:
        response = await gateway.speak(CODE, normalize=True, response_format=format)
        assert response.status_code == 200
        assert len(response.content) < 100  # a header at most
        spoken = await gateway.speak("...", normalize=True, response_format=format)
        assert spoken.status_code == 400


async def test_the_events_of_a_block_of_code_are_the_last_one_alone(
    serve_front: Any, serve_gateway: Any, monkeypatch: Any
):
    monkeypatch.setattr(packages, "_missing", list)
    async with serve_front(normalizer=Unused()) as served, serve_gateway(served.address) as gateway:
        response = await gateway.speak(CODE, normalize=True, response_format="pcm", stream_format="sse")
        (event,) = response.text.strip().split("\n\n")
        assert json.loads(event.removeprefix("data: ")) == {
            "type": "speech.audio.done",
            "usage": {"input_tokens": len(CODE), "output_tokens": 0, "total_tokens": len(CODE)},
        }
