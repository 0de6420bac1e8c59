"""Speak sentences with the teacher: text lines in, shards of speech out.

    python -m tools.voice.speak TEXT OUT                  each line once, the voices taking turns
    python -m tools.voice.speak TEXT OUT --every-voice    each line by every voice, for evaluation

Several processes; running it again continues where it was stopped. About 0.015 s of one core per second of speech.
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
QUIET = 0.01  # of the loudest frame's amplitude: what counts as sound
FRAME = 80  # samples, 5 ms
LEVEL = 0.1  # root mean square of an utterance from margin to margin, full scale being 1
PEAK = 0.95

Job = tuple[str, str]  # name of a voice, text


def trim(samples: np.ndarray) -> np.ndarray:
    """int16 samples without the silence at both ends, but for MARGIN seconds of it."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME).astype(np.float32)
    loud = np.sqrt((frames**2).mean(1))
    if not loud.size or not loud.max():
        raise ValueError(f"the {len(samples)} samples are silent")
    sound = np.flatnonzero(loud > QUIET * loud.max())
    margin = round(MARGIN * RATE)
    return samples[max(0, sound[0] * FRAME - margin) : (sound[-1] + 1) * FRAME + margin]


def level(samples: np.ndarray) -> np.ndarray:
    """int16 samples at LEVEL, or quieter where a peak would pass PEAK."""
    x = samples.astype(np.float32)
    gain = min(LEVEL * 32768 / np.sqrt((x**2).mean()), PEAK * 32767 / np.abs(x).max())
    return np.rint(x * gain).astype(np.int16)


def speak(teacher: Flite, voice: Voice, text: str) -> Utterance:
    return Utterance(voice.name, text, level(trim(teacher.speak(text, voice.flite))))


def jobs(texts: Sequence[str], every_voice: bool) -> list[Job]:
    """Who speaks what, in the order of the texts."""
    if every_voice:
        return [(voice.name, text) for text in texts for voice in VOICES]
    return [(VOICES[i % len(VOICES)].name, text) for i, text in enumerate(texts)]


def read_texts(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line]


_teachers: dict[Path | None, Flite] = {}  # of this worker process


def _speak_shard(folder: Path, shard: int, todo: Sequence[Job], libraries: Path | None) -> float:
    """Seconds of speech written."""
    if libraries not in _teachers:
        _teachers[libraries] = Flite(libraries)
    spoken = [speak(_teachers[libraries], find(name), text) for name, text in todo]
    write_shard(folder, shard, spoken)
    return sum(len(one.samples) for one in spoken) / RATE


def speak_all(
    texts: Sequence[str], out: Path, *, every_voice: bool = False, processes: int, libraries: Path | None = None
) -> None:
    """Write what is missing in `out`. Raises ValueError if that folder was begun with other texts."""
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
    parser.add_argument("--every-voice", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
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
