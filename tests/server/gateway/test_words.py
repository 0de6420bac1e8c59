"""The times of words by HTTP and by WebSocket."""

from __future__ import annotations

import base64
import json
from typing import Any

from support.clients.gateway_sockets import answers

TEXT = "Good morning, Anna. How are you?"


def events(body: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n") if line]


async def test_server_sent_events_have_the_words_in_seconds(gateway):
    fields = {"stream_format": "sse", "response_format": "pcm", "sample_rate": 16000, "word_timestamps": True}
    found = events((await gateway.speak(TEXT, **fields)).text)
    done = found[-1]
    words = [word for event in found if event["type"] == "speech.audio.words" for word in event["words"]]
    assert [word["word"] for word in words] == TEXT.split()
    assert [TEXT[word["input_start"] : word["input_end"]] for word in words] == TEXT.split()
    audio = b"".join(base64.b64decode(one["audio"]) for one in found if one["type"] == "speech.audio.delta")
    times = [time for word in words for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert times[0] >= 0 and len(audio) / 2 / 16000 - 0.001 <= times[-1] <= len(audio) / 2 / 16000
    assert all(word["estimated"] for word in words)
    assert done["type"] == "speech.audio.done" and done["words"] == words and done["usage"]


async def test_without_the_field_no_event_has_words(gateway):
    found = events((await gateway.speak(TEXT, stream_format="sse", response_format="pcm")).text)
    assert {event["type"] for event in found} == {"speech.audio.delta", "speech.audio.done"}
    assert "words" not in found[-1]


async def test_a_websocket_has_events_with_words(gateway):
    host, port = gateway.address
    messages = [{"type": "config", "word_timestamps": True}, {"type": "text", "text": TEXT}, {"type": "finish"}]
    found = await answers(f"{host}:{port}", messages)
    words = [word for event in found.of("words") for word in event["words"]]
    assert [word["text"] for word in words] == TEXT.split()
    assert words[-1]["end_samples"] <= len(found.audio) // 2
    assert set(words[0]) == {
        *("text", "start_samples", "end_samples", "input_start", "input_end", "turn", "segment", "estimated"),
    }
    (summary,) = found.of("summary")
    assert summary["words"] == words
    assert [warning["kind"] for warning in found.of("warning")] == ["word_times"]
