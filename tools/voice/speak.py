"""Speak lines of text with the teacher, and write the speech in shards.

    python -m tools.voice.speak TEXT OUT                  each line once, with the voices in turn
    python -m tools.voice.speak TEXT OUT --every-voice    each line with every voice, for evaluation

It uses several processes. A second run continues where the first one stopped. A second of speech takes about 0.015 s of
one core.
"""

import argparse
import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from tools.voice.dataset import RATE, Plan, Utterance, is_complete, write_plan, write_shard
from tools.voice.flite import Flite
from tools.voice.voices import VOICES, Voice, find

SHARD = 250  # utterances
MARGIN = 0.08  # seconds kept before the first and after the last sound
QUIET = 0.01  # least amplitude of sound, over that of the loudest frame
FRAME = 80  # samples, 5 ms
LEVEL = 0.1  # root mean square of an utterance with its margins; full scale is 1
PEAK = 0.95

Job = tuple[str, str]  # name of a voice, text


def trim(samples: np.ndarray) -> np.ndarray:
    """The samples with at most MARGIN seconds of silence at both ends. Raises ValueError if all are silent.

    samples: int16.
    """
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME).astype(np.float32)
    loud = np.sqrt((frames**2).mean(1))
    if not loud.size or not loud.max():
        raise ValueError(f"the {len(samples)} samples are silent")
    sound = np.flatnonzero(loud > QUIET * loud.max())
    margin = round(MARGIN * RATE)
    return samples[max(0, sound[0] * FRAME - margin) : (sound[-1] + 1) * FRAME + margin]


def level(samples: np.ndarray) -> np.ndarray:
    """The samples scaled to LEVEL, or less if a peak would exceed PEAK. samples: int16."""
    x = samples.astype(np.float32)
    gain = min(LEVEL * 32768 / np.sqrt((x**2).mean()), PEAK * 32767 / np.abs(x).max())
    return np.rint(x * gain).astype(np.int16)


def speak(teacher: Flite, voice: Voice, text: str) -> Utterance:
    """A text in a voice, trimmed and scaled."""
    return Utterance(voice.name, text, level(trim(teacher.speak(text, voice.flite))))


def jobs(texts: Sequence[str], every_voice: bool) -> list[Job]:
    """The voice and the text of each utterance, in the order of the texts."""
    if every_voice:
        return [(voice.name, text) for text in texts for voice in VOICES]
    return [(VOICES[i % len(VOICES)].name, text) for i, text in enumerate(texts)]


def read_texts(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line]


_teachers: dict[Path | None, Flite] = {}  # of this worker process


def _speak_shard(folder: Path, shard: int, todo: Sequence[Job], libraries: Path | None) -> float:
    """Write a shard, and return its seconds of speech."""
    if libraries not in _teachers:
        _teachers[libraries] = Flite(libraries)
    utterances = [speak(_teachers[libraries], find(name), text) for name, text in todo]
    write_shard(folder, shard, utterances)
    return sum(len(one.samples) for one in utterances) / RATE


def speak_all(
    texts: Sequence[str], out: Path, *, every_voice: bool = False, processes: int, libraries: Path | None = None
) -> None:
    """Write the shards that `out` does not hold yet. Raises ValueError if it was started with other texts."""
    todo = jobs(texts, every_voice)
    shards = [todo[start : start + SHARD] for start in range(0, len(todo), SHARD)]
    write_plan(out, Plan(len(todo), len(shards), hashlib.sha256(repr(todo).encode()).hexdigest()[:16]))
    missing = [number for number in range(len(shards)) if not is_complete(out, number)]
    begun, seconds = time.monotonic(), 0.0
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(_speak_shard, out, number, shards[number], libraries) for number in missing]
        for done, future in enumerate(as_completed(futures), len(shards) - len(missing) + 1):
            seconds += future.result()
            spent = time.monotonic() - begun
            print(f"{done}/{len(shards)} shards, {seconds / 3600:.2f} h of speech in {spent:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="one sentence per line")
    parser.add_argument("out", type=Path, help="folder for the shards")
    parser.add_argument("--every-voice", action="store_true", help="speak each line with every voice")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes that speak")
    parser.add_argument("--flite", type=Path, help="folder of flite's shared libraries; default: the system's")
    args = parser.parse_args()
    speak_all(
        read_texts(args.text),
        args.out,
        every_voice=args.every_voice,
        processes=args.processes,
        libraries=args.flite and args.flite.resolve(),
    )


if __name__ == "__main__":
    main()
