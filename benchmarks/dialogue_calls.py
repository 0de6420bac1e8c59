"""One dialogue through the Python client: text goes out by its script, and what comes back is recorded.

All times are those of the host's monotonic clock, in seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.dialogue_scripts import Script
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_client.results import Chunk, Summary
from voxcpm_client.stream import AsyncSession

LEAD = 0.2  # seconds from opening the stream to the first word: an agent opens it before its model writes
INCOMPLETE = "INCOMPLETE"  # the code of a call that ended well and did not speak all text


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaking:
    """The same for all dialogues of a load: the options of a call, the seconds that it may take, and those after which
    a line begins no other dialogue."""

    options: Mapping[str, Any]
    patience: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """A script, and the seconds to wait before it begins."""

    script: Script
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message: when it was due, when `send_text` was called, and how many characters were sent with it and before."""

    due: float
    time: float
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A chunk with audio: when it arrived, what it holds, and of which segment."""

    time: float
    seconds: float
    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment that started: its range of the text, and why the server cut it off there; empty if it does not tell."""

    index: int
    start: int
    end: int
    cut_reason: str


@dataclass(slots=True, kw_only=True)
class Dialogue:
    """A script that was performed. `engine_seconds` is the server's time from the first segment's acceptance to
    its first audio, `server_seconds` its time from the text to it; `finished` is when `finish` was called."""

    script: Script
    sent: list[Sent] = field(default_factory=list)
    finished: float = 0.0
    pieces: list[Piece] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    engine_seconds: float = 0.0
    server_seconds: float | None = None
    code: str = "OK"


async def perform(client: AsyncClient, line: Sequence[Task], speaking: Speaking, start: float) -> list[Dialogue]:
    """Dialogues one after the other, from `start` on; the first of them in any case."""
    dialogues: list[Dialogue] = []
    at = start
    for task in line:
        if dialogues and perf_counter() > start + speaking.seconds:
            break
        await asyncio.sleep(at + task.wait - perf_counter())
        dialogues.append(await _call(client, task.script, speaking))
        at = perf_counter()
    return dialogues


async def _call(client: AsyncClient, script: Script, speaking: Speaking) -> Dialogue:
    dialogue = Dialogue(script=script)
    summary, samples = None, 0
    try:
        async with client.session(**speaking.options, timeout=speaking.patience) as session:
            writer = asyncio.create_task(_write(session, dialogue))
            try:
                async for chunk in session:
                    samples += chunk.sample_count
                    _hear(chunk, dialogue)
                await writer
            finally:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
        summary = session.summary
    except SpeechError as error:
        dialogue.code = error.code
        return dialogue
    if summary is None or not _is_complete(dialogue, summary, samples):
        dialogue.code = INCOMPLETE
    else:
        dialogue.engine_seconds = summary.time_to_first_audio_seconds
        dialogue.server_seconds = summary.text_to_first_audio_seconds
    return dialogue


async def _write(session: AsyncSession, dialogue: Dialogue) -> None:
    begin, end = perf_counter() + LEAD, 0
    for message in dialogue.script.messages:
        due = begin + message.at
        await asyncio.sleep(due - perf_counter())
        end += len(message.text)
        dialogue.sent.append(Sent(due=due, time=perf_counter(), end=end))
        await session.send_text(message.text)
    dialogue.finished = perf_counter()
    await session.finish()


def _hear(chunk: Chunk, dialogue: Dialogue) -> None:
    if chunk.sample_count:
        dialogue.pieces.append(Piece(time=perf_counter(), seconds=chunk.seconds, segment=chunk.segment))
    for event in chunk.events:
        if event.kind == "started":
            dialogue.segments.append(
                Segment(
                    index=event.segment,
                    start=event.input_start,
                    end=event.input_end,
                    cut_reason=event.cut_reason,
                )
            )


def _is_complete(dialogue: Dialogue, summary: Summary, samples: int) -> bool:
    """True if all text was spoken, and all of it heard here."""
    segments = dialogue.segments
    return (
        len(segments) == summary.segments > 0
        and segments[-1].end == len(dialogue.script.text)
        and {piece.segment for piece in dialogue.pieces} == {segment.index for segment in segments}
        and samples == summary.total_samples
    )
