"""Record sentences that a running server speaks. `record_all` records every held-out sentence in every voice and mode.

A mode is a way to give the speaker: `described` by the voice's description, `reference` by a recording, `prompt` by a
recording that is continued, `hifi` by both. The recording is the teacher's of the next sentence, so that each case has
a recording of its own that does not contain its sentence.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from tools.voice.dataset import RATE, Speech, Utterance
from tools.voice.recordings import Case, SpokenSegment, recordings, store, wav
from tools.voice.voices import VOICES, find
from voxcpm_client import AsyncClient, Prompt
from voxcpm_client.values.options import SpeechOptions
from voxcpm_client.values.results import SegmentEvent, Summary

MODES = ("described", "reference", "prompt", "hifi")
AT_ONCE = 4  # streams at the same time


def cases(texts: Sequence[str], modes: Sequence[str]) -> list[Case]:
    return [Case(mode, voice.name, text) for mode in modes for voice in VOICES for text in texts]


def conditioning(case: Case, given: Utterance) -> SpeechOptions:
    """The options that give the speaker. given: the recording of the mode, in the voice of the case."""
    recording = wav(given.samples)
    prompt = Prompt(audio=recording, transcript=given.text + " ")  # the text follows without a separator
    match case.mode:
        case "described":
            return SpeechOptions(style=find(case.voice).description)
        case "reference":
            return SpeechOptions(reference=recording)
        case "prompt":
            return SpeechOptions(prompt=prompt)
        case "hifi":
            return SpeechOptions(prompt=prompt, reference=recording)
    raise ValueError(f"unknown mode {case.mode!r}; the modes are {', '.join(MODES)}")


async def record_all(
    target: str,
    teacher: Speech,
    modes: Sequence[str],
    folder: Path,
    first_seed: int = 0,
    **options: Unpack[SpeechOptions],
) -> None:
    """Record the cases that `folder` does not hold yet. Raises SpeechError.

    first_seed: of the first sentence; each next one has the next
    options: of every case
    """
    texts = list(dict.fromkeys(entry.text for entry in teacher.entries))
    recorded = {(one.voice, one.text): one for one in teacher}
    following = dict(zip(texts, [*texts[1:], texts[0]], strict=True))

    def of_case(case: Case) -> SpeechOptions:
        seeded: SpeechOptions = {"seed": first_seed + texts.index(case.text)}
        return seeded | conditioning(case, recorded[case.voice, following[case.text]]) | options

    await record_missing(target, cases(texts, modes), folder, of_case)


async def record_missing(
    target: str, wanted: Sequence[Case], folder: Path, options: Callable[[Case], SpeechOptions]
) -> None:
    """Record those of the cases that `folder` does not hold yet, each with its own options. Raises SpeechError."""
    there = {recording.case for recording in recordings(folder)}
    missing = [case for case in wanted if case not in there]
    begun, done, seconds = time.monotonic(), 0, 0.0
    slots = asyncio.Semaphore(AT_ONCE)

    async def record(client: AsyncClient, case: Case) -> None:
        nonlocal done, seconds
        every: SpeechOptions = {"sample_rate": RATE, "format": "pcm_s16le", "trim_leading_silence": 0}
        async with slots, client.speak(case.text, **every | options(case)) as stream:
            chunks = [chunk async for chunk in stream]
        samples = np.concatenate([np.zeros(0, np.int16), *(chunk.samples for chunk in chunks)])
        events = [event for chunk in chunks for event in chunk.events]
        parts = [SpokenSegment(event.text, event.cut_reason) for event in events if event.kind == "started"]
        store(folder, case, samples, _finish_reason(events, stream.summary), parts)
        done, seconds = done + 1, seconds + len(samples) / RATE
        if done % 25 == 0 or done == len(missing):
            spent = time.monotonic() - begun
            print(f"{done}/{len(missing)} recorded, {seconds:.0f} s of speech in {spent:.0f} s", flush=True)

    async with AsyncClient(target) as client, asyncio.TaskGroup() as group:
        for case in missing:
            group.create_task(record(client, case))


def _finish_reason(events: Sequence[SegmentEvent], summary: Summary | None) -> str:
    """The reason of the first segment that did not end by itself, or else of the stream."""
    reasons = [event.finish_reason for event in events if event.kind == "finished"]
    last = summary.finish_reason if summary else "lost"
    return next((reason for reason in reasons if reason != "complete"), last)
