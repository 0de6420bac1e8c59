"""The WebSocket of the gateway, through a real server: its messages, its order, its limits and its end."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.servers.running import Server, serving
from support.servers.threaded_gateways import gateway
from support.servers.waiting import HANG_SECONDS, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from voxcpm_client import Client
from voxcpm_server.auth.keys import create

ROUNDING = 8  # of 32768
SHORT = {"seed": 7, "timesteps": 4, "max_steps": 4}


class Socket:
    """A socket of the gateway, and all that it has received."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any] | bytes] = []

    @property
    def audio(self) -> bytes:
        return b"".join(one for one in self.frames if isinstance(one, bytes))

    @property
    def samples(self) -> np.ndarray:
        return np.frombuffer(self.audio, "<i2")

    async def send(self, type: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": type, **fields}))

    async def receive(self) -> dict[str, Any] | bytes:
        frame = await asyncio.wait_for(self.connection.recv(), HANG_SECONDS)
        found: dict[str, Any] | bytes = frame if isinstance(frame, bytes) else json.loads(frame)
        self.frames.append(found)
        if isinstance(found, dict):
            self.events.append(found)
        return found

    async def until(self, type: str) -> dict[str, Any]:
        """The next event of a type."""
        while True:
            found = await self.receive()
            if isinstance(found, dict) and found["type"] == type:
                return found

    async def end(self) -> tuple[int, str]:
        """Receive to the end. Returns the code and the reason of the close."""
        try:
            while True:
                await self.receive()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code, closed.rcvd.reason


@asynccontextmanager
async def open_socket(address: str, config: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Socket]:
    async with connect(f"ws://{address}/v1/audio/stream", max_size=None, **options) as connection:
        one = Socket(connection)
        if config is not None:
            await one.send("config", **config)
        yield one


def said(server: Server, text: str, **options: Any) -> np.ndarray:
    with Client(server.address) as client:
        return client.say(text, **SHORT, **options).samples


def agree(one: np.ndarray, other: np.ndarray) -> bool:
    """True for equal samples, up to the rounding of a batch."""
    return len(one) == len(other) > 0 and bool(np.abs(one.astype(int) - other).max() <= ROUNDING)


async def test_a_stream_gives_the_audio_of_the_python_client_between_its_events(tiny: Server, address: str):
    async with open_socket(address, SHORT) as one:
        await one.send("text", text="One two three. ")
        await one.send("text", text="Four five.")
        await one.send("finish")
        assert await one.end() == (1000, "")
    assert agree(one.samples, said(tiny, "One two three. Four five."))
    types = [event["type"] for event in one.events]
    assert (types[0], types[-1]) == ("header", "summary")
    header, summary = one.events[0], one.events[-1]
    assert (header["encoding"], header["seed"]) == ("pcm_s16le", 7)
    assert summary["total_samples"] == len(one.samples)
    started = [event for event in one.events if event.get("event") == "started"]
    assert [event["text"] for event in started] == ["One two three.", "Four five."]
    for event in started:  # its audio follows it
        before = one.frames[: one.frames.index(event)]
        assert event["at_samples"] == sum(len(one) for one in before if isinstance(one, bytes)) // 2


async def test_a_pause_is_silence_between_two_texts(address: str):
    async with open_socket(address, SHORT) as one:
        await one.send("text", text="One two.")
        await one.send("pause", milliseconds=250)
        await one.send("text", text="Three.")
        await one.send("finish")
        assert await one.end() == (1000, "")
    ends = [event["at_samples"] for event in one.events if event["type"] == "segment"]
    assert ends[2] - ends[1] == one.events[0]["sample_rate"] // 4
    assert (one.samples[ends[1] : ends[2]] == 0).all()


async def test_a_flush_is_answered_after_its_audio(address: str):
    async with open_socket(address, SHORT) as one:
        await one.send("text", text="without an end")
        await one.send("flush", end_turn=True, tag="mine")
        done = await one.until("flush_done")
        assert done == {"type": "flush_done", "tag": "mine", "at_samples": len(one.samples)}
        await one.send("text", text="Another turn.")
        await one.send("finish")
        await one.end()
    assert [event["turn"] for event in one.events if event.get("event") == "started"] == [0, 1]


async def test_an_interrupt_overtakes_text_that_waits_and_says_what_was_heard(address: str):
    async with open_socket(address, {**SHORT, "max_lead": 0.5}) as one:
        for number in range(400):
            await one.send("text", text=f"This is sentence number {number}, which nobody will hear to its end. ")
        await one.send("flush", tag="dropped")
        while not one.audio:
            await one.receive()
        await one.send("interrupt", tag="stop", played_samples=0)
        answer = await one.until("interrupted")
        assert (answer["tag"], answer["dropped_flushes"]) == ("stop", ["dropped"])
        assert (answer["heard_turn"], answer["heard_input_end"], answer["sent_samples"]) == (
            *(0, 0),
            len(one.samples),
        )
        await one.send("text", text="Next.")
        await one.send("finish")
        assert (await one.end())[0] == 1000
    assert one.events[-2]["text"] == "Next."


async def test_settings_of_later_turns_can_change(tiny: Server, address: str):
    async with open_socket(address, {**SHORT, "max_steps": 2, "continuity": "independent"}) as one:
        await one.send("text", text="One two.")
        await one.send("flush", end_turn=True)
        await one.send("turn", timesteps=4, max_steps=4)
        await one.send("text", text="One two.")
        await one.send("finish")
        await one.end()
    finished = [event["at_samples"] for event in one.events if event.get("event") == "finished"]
    assert finished[1] - finished[0] == 2 * finished[0]


async def test_recordings_can_be_sent_with_the_config(tiny: Server, address: str, recording: bytes):
    audio = base64.b64encode(recording).decode()
    config = {**SHORT, "reference": {"audio": audio}}
    async with open_socket(address, config) as one:
        await one.send("text", text="One two.")
        await one.send("finish")
        assert (await one.end())[0] == 1000
    assert agree(one.samples, said(tiny, "One two.", reference=recording))
    assert not agree(one.samples, said(tiny, "One two."))
    both = {**config, "prompt": {"audio": audio, "transcript": "Some words. "}}
    async with open_socket(address, both) as one:
        await one.send("text", text="One two.")
        await one.send("finish")
        assert (await one.end())[0] == 1000
    assert one.events[0]["voice"] == "inline"


async def test_a_socket_that_closes_cancels_its_stream(tiny: Server, address: str):
    async with open_socket(address, {"max_lead": 0.2, "request_id": "closed-early"}) as one:
        await one.send("text", text="Speech that nobody will hear to its end. " * 400)
        while not one.audio:
            await one.receive()
    await until(lambda: "rpc id=closed-early" in tiny.log)
    assert "rpc id=closed-early method=Generate code=CANCELLED" in tiny.log


async def test_a_reader_that_stops_costs_its_stream(tiny: Server):
    with gateway(tiny.address, write_seconds=1.0) as address:
        host, _, port = address.rpartition(":")
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        async with connect(f"ws://{address}/v1/audio/stream", sock=slow, max_queue=1) as connection:
            config = {"type": "config", "max_lead": 0.5, "request_id": "unread", "format": "pcm_f32le"}
            await connection.send(json.dumps(config))
            await connection.send(json.dumps({"type": "text", "text": "Speech that nobody reads to its end. " * 500}))
            await until(lambda: "rpc id=unread" in tiny.log)
            connection.transport.abort()
    assert "rpc id=unread method=Generate code=CANCELLED" in tiny.log


async def test_keys_come_with_the_header_or_the_config(tmp_path: Path):
    key = create("page", tmp_path / "keys.toml")
    with (
        serving(tmp_path / "voices", "--auth.keys", str(tmp_path / "keys.toml")) as server,
        gateway(server.address) as address,
    ):
        for config, headers, code in (
            ({}, {}, 4401),
            ({"key": "wrong"}, {}, 4401),
            ({"key": key}, {}, 1000),
            ({}, {"Authorization": f"Bearer {key}"}, 1000),
        ):
            async with open_socket(address, {**SHORT, **config}, additional_headers=headers) as one:
                await one.send("text", text="Hello there.")
                await one.send("finish")
                assert (await one.end())[0] == code
            assert bool(one.audio) == (code == 1000)
            assert "wrong" not in json.dumps(one.events)


async def test_pages_of_other_origins_are_refused(tiny: Server, address: str):
    with pytest.raises(InvalidStatus) as refused:
        async with open_socket(address, SHORT, origin="https://elsewhere.example"):
            pass
    assert refused.value.response.status_code == 403
    async with open_socket(address, SHORT, origin=f"http://{address}") as one:
        await one.send("finish")
        assert (await one.end())[0] == 1000
    with gateway(tiny.address, allowed_origins=("https://elsewhere.example",)) as open_address:
        async with open_socket(open_address, SHORT, origin="https://elsewhere.example") as one:
            await one.send("finish")
            assert (await one.end())[0] == 1000


async def test_a_socket_without_a_config_ends(tiny: Server):
    with gateway(tiny.address, read_seconds=0.1) as address:
        async with open_socket(address) as one:
            code, reason = await one.end()
    assert (code, reason) == (4408, "no config arrived within 0.1 s; send it as the first message")


@pytest.mark.parametrize(
    ("sent", "words", "status"),
    [
        ([{"type": "text", "text": "Hi."}], "the first message is a text; it must be a config", 400),
        ([{"type": "config", "vioce": "a"}], "the field 'vioce' is unknown; did you mean voice?", 400),
        ([{"type": "config", "seed": "7"}], "seed is '7'; it must be a whole number", 400),
        (
            [{"type": "config", "segmentation": "x"}],
            "segmentation is 'x'; it must be one of sentence, manual, tokens",
            400,
        ),
        ([{"type": "config", "voice": "nobody"}, {"type": "text", "text": "Hi."}], "nobody", 404),
        ([{"type": "config", "reference": {"audio": "?"}}], "reference.audio is not base64", 400),
        ([{"type": "config", "prompt": {"audio": ""}}], "prompt.transcript is missing", 400),
        ([{"type": "config", "key": "\n"}], "key must be of printable ASCII characters", 401),
        ([{"type": "config"}, {"type": "config"}], "a config was sent already", 400),
        ([{"type": "config"}, {"type": "finish"}, {"type": "flush"}], "a flush follows finish", 400),
        ([{"type": "config"}, {"type": "flush", "tag": "\ud800"}], "tag has half of a surrogate pair", 400),
        ([{"type": "config"}, {"type": "text"}], "text is missing; it is required", 400),
        ([{"type": "config"}, {"type": "interrupt", "played_samples": 10**9}], "played_samples", 400),
        ([{"type": "config"}, {"type": "stop"}], "type is 'stop'; it must be one of config, text, turn", 400),
        ([{"type": "config"}, {"type": "text", "text": "x" * 1_100_000}], "the limit is 1048576", 413),
        ([{"type": "config"}, *[{"type": "text", "text": "y" * 900_000}] * 2], "1800000 characters in", 413),
        (["{"], "the message is not JSON", 400),
        (["[" * 100_000], "the message is not JSON", 400),
        (["[]"], "the message must be an object of JSON", 400),
        ([b"\0"], "the message is binary", 400),
    ],
)
async def test_a_wrong_message_ends_the_socket_with_an_error(address: str, sent: list[Any], words: str, status: int):
    async with open_socket(address) as one:
        for message in sent:
            await one.connection.send(json.dumps(message) if isinstance(message, dict) else message)
        code, reason = await one.end()
    found = one.events[-1]
    assert found["type"] == "error"
    assert words in found["error"]["message"]
    assert found["error"].keys() >= {"message", "type", "param", "code", "request_id", "retry_after"}
    assert code == 4000 + status
    assert found["error"]["message"].startswith(reason.rstrip("\ufffd"))
