"""Dialogues through the Python client: text is sent by a script, and everything that arrives is recorded.

Times are in seconds on the host's monotonic clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.dialogue.scripts import Script
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_client.stream import AsyncSession
from voxcpm_client.values.results import Chunk, Summary

LEAD = 0.2  # seconds from opening the stream to the first word; an agent opens it before its model writes
INCOMPLETE = "INCOMPLETE"  # the code of a call that ended with OK before all text was audio


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParameters:
    """The same for all dialogues of a load.

    options: of every call. timeout: of a call, in seconds. seconds: after so many, a stream starts no further dialogue.
    """

    options: Mapping[str, Any]
    timeout: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PlannedDialogue:
    """A script, and the seconds to wait before it starts."""

    script: Script
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message: when it was due, when `send_text` was called, and the offset in the text after it."""

    due: float
    time: float
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedChunk:
    """A chunk with audio: when it arrived, the seconds of its audio, and the index of its segment."""

    time: float
    seconds: float
    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A started segment: its range of the text, and the reason of the cut at its end, if the server sent one."""

    index: int
    start: int
    end: int
    cut_reason: str


@dataclass(slots=True, kw_only=True)
class Dialogue:
    """The record of a dialogue.

    finished: when `finish` was called. engine_seconds: the server's time from accepting the first segment to its first
    audio. server_seconds: the server's time from the text to the first audio, None if it did not send it.
    """

    script: Script
    sent: list[SentMessage] = field(default_factory=list)
    finished: float = 0.0
    chunks: list[ReceivedChunk] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    engine_seconds: float = 0.0
    server_seconds: float | None = None
    code: str = "OK"


async def run_stream(
    client: AsyncClient, planned: Sequence[PlannedDialogue], parameters: CallParameters, start: float
) -> list[Dialogue]:
    """Run dialogues one after the other from `start` on; at least the first one."""
    dialogues: list[Dialogue] = []
    at = start
    for one in planned:
        if dialogues and perf_counter() > start + parameters.seconds:
            break
        await asyncio.sleep(at + one.wait - perf_counter())
        dialogues.append(await _call(client, one.script, parameters))
        at = perf_counter()
    return dialogues


async def _call(client: AsyncClient, script: Script, parameters: CallParameters) -> Dialogue:
    dialogue = Dialogue(script=script)
    summary, samples = None, 0
    try:
        async with client.session(**parameters.options, timeout=parameters.timeout) as session:
            writer = asyncio.create_task(_write(session, dialogue))
            try:
                async for chunk in session:
                    samples += chunk.sample_count
                    _record(chunk, dialogue)
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
        dialogue.sent.append(SentMessage(due=due, time=perf_counter(), end=end))
        await session.send_text(message.text)
    dialogue.finished = perf_counter()
    await session.finish()


def _record(chunk: Chunk, dialogue: Dialogue) -> None:
    if chunk.sample_count:
        dialogue.chunks.append(ReceivedChunk(time=perf_counter(), seconds=chunk.seconds, segment=chunk.segment))
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
    """True if the audio of all text has arrived."""
    segments = dialogue.segments
    return (
        len(segments) == summary.segments > 0
        and segments[-1].end == len(dialogue.script.text)
        and {chunk.segment for chunk in dialogue.chunks} == {segment.index for segment in segments}
        and samples == summary.total_samples
    )
