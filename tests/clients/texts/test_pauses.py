"""Pauses of the client: calls of a session, pieces of a text, and an option of the program."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from support.clients.commands import cli_runner
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Client, InvalidArgument, Pause
from voxcpm_client.cli import main
from voxcpm_client.transport.text_window import TextWindow
from voxcpm_grpc.v1 import tts_pb2 as pb


def sent(server: Any) -> list[str | int]:
    """The texts and the pauses in milliseconds of the newest stream."""
    messages = server.streams[-1].received[1:]
    return [m.text if m.HasField("text") else m.pause.milliseconds for m in messages if not m.HasField("flush")]


async def test_a_session_pauses_between_its_texts(server):
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client, client.session() as session:
        await session.pause(1)
        await session.send_text("One.")
        await session.pause(0.3)
        await session.send_text("Two.")
        await session.finish()
        assert [chunk.samples.size async for chunk in session]
    assert sent(server) == [1000, "One.", 300, "Two."]


def test_a_blocking_session_pauses_too(server):
    with Client(server.target, timeout=HANG_SECONDS) as client, client.session() as session:
        session.send_text("One.")
        session.pause(0.0015)
        session.finish()
        list(session)
    assert sent(server) == ["One.", 2]


@pytest.mark.parametrize("kind", [list, iter])
def test_a_pause_is_a_piece_of_a_text(server, kind):
    with Client(server.target, timeout=HANG_SECONDS) as client:
        client.say(kind(["One.", Pause(0.25), "Two."]))
    assert sent(server) == ["One.", 250, "Two."]


@pytest.mark.parametrize("seconds", [0, -1, 0.0004, 60.001, math.nan, math.inf, "1", None])
def test_a_pause_out_of_range_is_refused_before_anything_is_sent(seconds):
    with pytest.raises(InvalidArgument, match=r"0\.001 to 60") as caught:
        Pause(seconds)
    assert caught.value.field == "seconds"


async def test_a_pause_opens_a_turn_for_the_flow_control_of_text():
    async def limit() -> int:
        return 1000

    async def put(text: str) -> None:
        pass

    window = TextWindow()
    window.open_turn()
    window.end_turn()
    await window.send("x" * 300, put, limit)
    window.handle([pb.SegmentEvent(kind=pb.SEGMENT_EVENT_KIND_STARTED, turn_index=1, input_end=200)])
    assert window.waiting == 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\nOne.\nTwo.\n \nThree.\n\n\n", ["One.\nTwo.", 500, "Three."]),
        ("One. Two.", ["One. Two."]),
        ("One.\r\n\r\nTwo.", ["One.", 500, "Two."]),
    ],
)
def test_the_program_pauses_between_paragraphs(server, tmp_path, monkeypatch, text, expected):
    monkeypatch.setenv("VOXCPM_CLIENT_TARGET", server.target)
    monkeypatch.chdir(tmp_path)
    options = ("--paragraph-pause", "0.5", "--out", "a.wav")
    result = cli_runner().invoke(main, ["say", text, *options])
    assert result.exit_code == 0, result.output
    assert sent(server) == expected
    monkeypatch.setattr(sys.modules["voxcpm_client.cli.speak.say"], "READ_BYTES", 3)
    (tmp_path / "text.txt").write_bytes(text.encode())
    result = cli_runner().invoke(main, ["say", "--file", "text.txt", *options])
    assert result.exit_code == 0, result.output
    pieces: list[str | int] = []
    for piece in sent(server):
        if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    assert pieces == expected
