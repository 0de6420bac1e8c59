"""Calls whose words have true times, because Flite speaks them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.word_times.engine import voice_of
from benchmarks.word_times.flite import RATE, say
from voxcpm_client import AsyncClient

SENTENCES = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines()
BESIDE = 10  # calls at a time


@dataclass(frozen=True, slots=True)
class TimedWord:
    """The times of a word as they were sent, and the true ones, in seconds.

    lag: seconds of speech that were sent after its end when it arrived
    """

    text: str
    start: float
    end: float
    true_start: float
    true_end: float
    estimated: bool
    lag: float


@dataclass(frozen=True, slots=True)
class Spoken:
    """A sentence, the length of its audio in seconds, and its words."""

    text: str
    seconds: float
    words: Sequence[TimedWord]


async def measure(target: str, sentences: Sequence[str]) -> list[Spoken]:
    """Speak sentences, some at a time. Raises ValueError if a word is missing."""
    gate = asyncio.Semaphore(BESIDE)
    async with AsyncClient(target) as client:

        async def one(number: int, text: str) -> Spoken:
            async with gate:
                return await speak(client, text, number)

        return await asyncio.gather(*(one(number, text) for number, text in enumerate(sentences)))


async def speak(client: AsyncClient, text: str, seed: int) -> Spoken:
    truth = say(text, voice_of(seed)).words
    found: list[TimedWord] = []
    sent = 0
    async with client.speak(
        text, seed=seed, segmentation="manual", language="en", trim_leading_silence=0.0, word_timestamps=True
    ) as stream:
        async for chunk in stream:
            sent = max(sent, chunk.offset + chunk.sample_count)
            for word in chunk.words:
                begin, end = truth[len(found)]
                found.append(
                    TimedWord(
                        text=word.text,
                        start=word.start_samples / RATE,
                        end=word.end_samples / RATE,
                        true_start=begin,
                        true_end=end,
                        estimated=word.estimated,
                        lag=(sent - word.end_samples) / RATE,
                    )
                )
    if [word.text for word in found] != text.split():
        raise ValueError(f"the words of {text!r} are {[word.text for word in found]}")
    return Spoken(text, sent / RATE, found)


async def first_audio(target: str, streams: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds to the first audio of streams with times, and of as many without them that begin together with them.

    The server measures them, from the first text on. Each stream with times has one of the same text beside it, and
    they begin in turns.
    """
    found: tuple[list[float], list[float]] = [], []
    async with AsyncClient(target) as client:

        async def one(number: int, round: int) -> None:
            timed = (number + round) % 2 == 0
            speech = await client.say(SENTENCES[number // 2 % BESIDE], seed=0, word_timestamps=timed)
            if speech.summary is None or bool(speech.words) != timed:
                raise ValueError("a stream has no summary, or times that nobody has asked for")
            found[not timed].append(speech.summary.text_to_first_audio_seconds)

        for round in range(rounds):
            await asyncio.gather(*(one(number, round) for number in range(2 * streams)))
    return found
