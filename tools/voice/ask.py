"""Have a running server say every held-out sentence in every voice and every mode, and keep what it says.

The speaker is given in one of four ways, a mode: `described` by the voice's description, `reference` by a recording,
`prompt` by a recording that is continued, `hifi` by both. A recording is the teacher's of the sentence after the one
to be said, so that each case has another one.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from tools.voice.dataset import RATE, Speech, Utterance
from tools.voice.recordings import Case, keep, recordings, wav
from tools.voice.voices import VOICES, find
from voxcpm_client import AsyncClient, Prompt
from voxcpm_client.options import SpeechOptions

MODES = ("described", "reference", "prompt", "hifi")
AT_ONCE = 4  # streams


def cases(texts: Sequence[str], modes: Sequence[str]) -> list[Case]:
    return [Case(mode, voice.name, text) for mode in modes for voice in VOICES for text in texts]


def conditioning(case: Case, given: Utterance) -> SpeechOptions:
    """What tells the server who speaks; `given` is the recording of the mode, in the voice of the case."""
    recording = wav(given.samples)
    prompt = Prompt(audio=recording, transcript=given.text + " ")  # the text to say follows without a separator
    match case.mode:
        case "described":
            return SpeechOptions(style=find(case.voice).description)
        case "reference":
            return SpeechOptions(reference=recording)
        case "prompt":
            return SpeechOptions(prompt=prompt)
        case "hifi":
            return SpeechOptions(prompt=prompt, reference=recording)
    raise ValueError(f"there is no mode {case.mode!r}; the modes are {', '.join(MODES)}")


async def ask_all(
    target: str, teacher: Speech, modes: Sequence[str], folder: Path, **options: Unpack[SpeechOptions]
) -> None:
    """Fill `folder` with what is missing there. `options` hold for every case. Raises SpeechError."""
    texts = list(dict.fromkeys(entry.text for entry in teacher.entries))
    spoken = {(one.voice, one.text): one for one in teacher}
    following = dict(zip(texts, [*texts[1:], texts[0]], strict=True))
    there = {recording.case for recording in recordings(folder)}
    missing = [case for case in cases(texts, modes) if case not in there]
    begun, done, seconds = time.monotonic(), 0, 0.0
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(client: AsyncClient, case: Case) -> None:
        nonlocal done, seconds
        given = spoken[case.voice, following[case.text]]
        every: SpeechOptions = {"seed": texts.index(case.text), "sample_rate": RATE, "format": "pcm_s16le"}
        async with places:
            said = await client.say(case.text, **every | conditioning(case, given) | options)
        keep(folder, case, said.samples, said.summary.finish_reason if said.summary else "lost")
        done, seconds = done + 1, seconds + said.seconds
        if done % 25 == 0 or done == len(missing):
            spent = time.monotonic() - begun
            print(f"{done}/{len(missing)} said, {seconds:.0f} s of speech in {spent:.0f} s", flush=True)

    async with AsyncClient(target) as client, asyncio.TaskGroup() as group:
        for case in missing:
            group.create_task(ask(client, case))
