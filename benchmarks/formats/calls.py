"""Streams of two sentences in one format: spoken as one turn, as two turns, or with an interrupt between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from voxcpm_client import Client
from voxcpm_client.values.results import Chunk
from voxcpm_grpc.audio import AudioFormat

MODES = ("plain", "interrupted", "resumed")
SENTENCES = ("Please close the window before you go to bed.", "He left his keys on the kitchen counter.")
PART = 0.5  # seconds of the first sentence that are received before it is interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The audio of a call.

    total: samples of the stream. delay, padding: samples that a decoder adds before and after them
    second_turn: position of the second turn; None if there is one turn
    cut: position at which the first turn ends; its speech, if it was interrupted, ends there
    first_audio: seconds from the start of the call to the first bytes of audio
    """

    data: bytes
    total: int
    delay: int
    padding: int
    second_turn: int | None
    cut: int
    first_audio: float


def stream(client: Client, format: AudioFormat, mode: str, options: Mapping[str, Any]) -> Stream:
    """Make a call. options: of every call. Raises SpeechError."""
    chunks: list[Chunk] = []
    first_audio = 0.0
    cut = None
    started = perf_counter()
    with client.session(
        format=str(format.encoding), sample_rate=format.sample_rate, continuity="independent", **options
    ) as session:
        session.send_text(SENTENCES[0])
        if mode == "plain":
            session.send_text(f" {SENTENCES[1]}")
            session.finish()
        else:
            session.flush(end_turn=True)
            if mode == "resumed":
                session.send_text(SENTENCES[1])
                session.finish()
        sent, interrupted = 0, mode != "interrupted"
        for chunk in session:
            if chunk.audio and not first_audio:
                first_audio = perf_counter() - started
            chunks.append(chunk)
            sent += chunk.sample_count
            if not interrupted and sent >= PART * format.sample_rate:
                session.interrupt()
                interrupted = True
            if chunk.interrupted:
                cut = chunk.interrupted.sent_samples
                session.send_text(SENTENCES[1])
                session.finish()
            if chunk.flushed and cut is None:
                cut = chunk.flushed.at_samples
        header, summary = session.header, session.summary
    assert header is not None and summary is not None
    begins = [event.at_samples for chunk in chunks for event in chunk.events if event.kind == "started" and event.turn]
    return Stream(
        data=b"".join(chunk.audio for chunk in chunks),
        total=summary.total_samples,
        delay=header.codec_delay_samples,
        padding=summary.codec_padding_samples,
        second_turn=begins[0] if begins else None,
        cut=summary.total_samples if cut is None else cut,
        first_audio=first_audio,
    )
