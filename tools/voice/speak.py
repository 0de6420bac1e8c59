"""Speak lines with the teacher, and write the speech in shards.

    python -m tools.voice.speak LINES OUT --styles kokoro-js/voices

LINES is a file of tools.voice.phonemes, the styles are files of the npm package kokoro-js. A second run continues where
the first one stopped. The noise of a shard depends on --seed and the number of the shard alone. With several GPUs, run
one process for each, with --share 1/2 and --share 2/2 and CUDA_VISIBLE_DEVICES. With --until the lines that remain at
that time are left out, except for the first shard of each process, and the folder is then complete.
"""

import argparse
import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from tools.voice.alignment import letters
from tools.voice.dataset import RATE, Plan, Utterance, end, has_ended, is_complete, write_plan, write_shard
from tools.voice.kokoro import Sentence, Spoken, Teacher
from tools.voice.phonemes import Line, read
from tools.voice.shares import share
from tools.voice.trimming import PEAK, level, sounding
from tools.voice.voices import VOICES, find

SHARD = 250  # utterances
AHEAD = 4  # shards that wait to be written


def sentence(line: Line) -> Sentence:
    """A line as the teacher's input."""
    voice = find(line.voice)
    return Sentence(voice.kokoro, line.phonemes, voice.speed)


def finished(line: Line, spoken: Spoken) -> Utterance:
    """The utterance of a line: the samples of the teacher as int16, trimmed and scaled."""
    sound = spoken.samples
    loud = np.rint(PEAK * 32767 / max(1e-9, float(sound.abs().max())) * sound.numpy()).astype(np.int16)
    part = sounding(loud, RATE)
    samples = level(loud[part])
    spelled = letters(line.text, line.phonemes, spoken.ends, part.start, len(samples))
    return Utterance(line.voice, line.text, samples, spelled.tolist())


def write(folder: Path, shard: int, lines: Sequence[Line], spoken: Sequence[Spoken]) -> float:
    """Write a shard, and return its seconds of speech."""
    made = [finished(line, one) for line, one in zip(lines, spoken, strict=True)]
    write_shard(folder, shard, made)
    return sum(len(one.samples) for one in made) / RATE


def speak_all(
    teacher: Teacher, lines: Sequence[Line], out: Path, *, seed: int, share: tuple[int, int] = (1, 1),
    until: float | None = None,
) -> None:  # fmt: skip
    """Write the shards that `out` does not hold yet. Raises ValueError if it was started with other lines.

    share: part k of n of the shards, counted from 1
    until: Unix time after which no shard but the first is begun. A folder that ended so stays as it is.
    """
    shards = [lines[start : start + SHARD] for start in range(0, len(lines), SHARD)]
    digest = hashlib.sha256(repr((seed, lines)).encode()).hexdigest()[:16]
    write_plan(out, Plan(len(lines), len(shards), digest))
    if has_ended(out):
        return
    missing = [number for number in range(share[0] - 1, len(shards), share[1]) if not is_complete(out, number)]
    begun, written, seconds = time.monotonic(), list[Future[float]](), 0.0
    with ThreadPoolExecutor(AHEAD) as writers:
        for done, number in enumerate(missing, 1):
            if until is not None and done > 1 and time.time() > until:
                break
            torch.manual_seed(seed * 1_000_003 + number)
            chosen = shards[number]
            spoken = teacher.speak([sentence(line) for line in chosen])
            written.append(writers.submit(write, out, number, chosen, spoken))
            if len(written) > AHEAD:
                seconds += written.pop(0).result()
            if done % 10 == 0 or done == len(missing):
                spent = time.monotonic() - begun
                print(f"{done}/{len(missing)} shards, {seconds / 3600:.2f} h written in {spent:.0f} s", flush=True)
        seconds += sum(one.result() for one in written)
    if until is not None:
        end(out, share)
    print(f"{seconds / 3600:.2f} h of speech in {time.monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, help="file written by tools.voice.phonemes")
    parser.add_argument("out", type=Path, help="folder for the shards")
    parser.add_argument("--styles", type=Path, help="folder of the teacher's voices")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=share, default=(1, 1), help="part of the shards, as 1/2")
    parser.add_argument("--until", type=float, help="Unix time after which the lines that remain are left out")
    parser.add_argument("--toy", action="store_true", help="a small teacher with random weights, for tests")
    args = parser.parse_args()
    if not (args.styles or args.toy):
        parser.error("--styles is missing: the folder voices of the npm package kokoro-js")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    names = [voice.kokoro for voice in VOICES]
    teacher = Teacher.toy(names, device) if args.toy else Teacher.released(args.styles, names, device)
    speak_all(teacher, read(args.lines), args.out, seed=args.seed, share=args.share, until=args.until)


if __name__ == "__main__":
    main()
