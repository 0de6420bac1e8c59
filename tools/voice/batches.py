"""Training batches: utterances laid out as the official inference lays out its sequences, of a few fixed shapes.

A batch is rows of equal width; there are a few widths, and rows times width is always POSITIONS, so that every batch
costs the same and one CUDA graph per width serves. It travels as one int32 array, see `Layout`.
"""

import itertools
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.voice import tokens
from tools.voice.encode import INDEX, Corpus, load
from tools.voice.voices import VOICES

CONTINUE, STOP = 1, 2  # what the stop head shall say; 0 where it is not asked
AUDIO = 4  # flag of an audio position, added to the above
WIDTHS = (96, 128, 160, 192, 256, 384)
CHUNK = 4096  # utterances that are sorted by length together

MODES = {"single": 0.45, "joined": 0.12, "prompt": 0.16, "reference": 0.17, "hifi": 0.10}
TAGGED = {"single": 0.75, "joined": 0.75, "prompt": 0.1, "reference": 0.3, "hifi": 0.1}  # share that names the voice
ABUTTING = 0.3  # share of joined texts without a space after the first one's punctuation
OVERTIME = 0.25  # share of utterances followed by silence where the answer is still to stop


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of a batch, and where its parts lie in the array.

    `ids`: token of each position. `marks`: CONTINUE or STOP, plus AUDIO. `heard`, `heard_at`: patches to encode, and
    the positions that take them. `made`, `made_at`: patches to predict, each perhaps several times. `before`: the patch
    before each of those. Unused entries of `heard` are patch 0 at position `positions`, one past the last.
    """

    positions: int
    heard: int
    made: int

    @property
    def size(self) -> int:
        return 2 * self.positions + 2 * self.heard + 3 * self.made

    def parts(self, array: Any) -> dict[str, Any]:
        """Views of an array or tensor of `size` numbers by name."""
        n, h, m = self.positions, self.heard, self.made
        sizes = {"ids": n, "marks": n, "heard": h, "heard_at": h, "made": m, "made_at": m, "before": m}
        views, start = {}, 0
        for name, size in sizes.items():
            views[name] = array[start : start + size]
            start += size
        return views


@dataclass(frozen=True, slots=True)
class Sequence:
    ids: np.ndarray  # token at each position, 0 at audio
    patch: np.ndarray  # index of the patch at each position, 0 at text
    target: np.ndarray  # whether the patch is to be predicted
    marks: np.ndarray  # CONTINUE, STOP or 0


class Composer:
    """Draws sequences of all modes from a corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        tokenizer = tokens.build()
        (self.space,) = tokenizer.encode("a b", add_special_tokens=False).ids[1:2]
        self.tags = [np.array(tokenizer.encode(voice.tagged(""), add_special_tokens=False).ids) for voice in VOICES]
        self.ends = np.array(tokenizer.encode(".,!?;:", add_special_tokens=False).ids)
        self.by_voice = [np.flatnonzero(corpus.voice == v) for v in range(len(VOICES))]

    def mate(self, i: int, rng: np.random.Generator) -> int:
        """Another utterance of the same speaker."""
        return int(rng.choice(self.by_voice[self.corpus.voice[i]]))

    def joined(self, i: int, j: int, rng: np.random.Generator) -> np.ndarray:
        first, second = self.corpus.text(i), self.corpus.text(j)
        if first[-1] in self.ends and rng.random() < ABUTTING:
            return np.concatenate((first, second))
        return np.concatenate((first, [self.space], second))

    def draw(self, i: int, rng: np.random.Generator) -> Sequence:
        """A sequence whose target, or whose last one, is utterance i."""
        corpus = self.corpus
        mode = str(rng.choice(list(MODES), p=list(MODES.values())))
        pair = mode in ("joined", "prompt", "hifi")
        j = self.mate(i, rng) if pair else i
        text = self.joined(j, i, rng) if pair else corpus.text(i)
        if rng.random() < TAGGED[mode]:
            text = np.concatenate((self.tags[corpus.voice[i]], text))
        reference = heard = said = np.zeros(0, np.int64)
        if mode == "reference" or (mode == "hifi" and rng.random() < 0.3):
            reference = run(corpus.right, corpus.count, self.mate(i, rng))
        elif mode == "hifi":
            reference = run(corpus.right, corpus.count, j)
        if mode in ("prompt", "hifi"):
            heard = run(corpus.left, corpus.count, j)
        elif mode == "joined":
            said = run(corpus.right, corpus.count, j)
        said = np.concatenate((said, run(corpus.right, corpus.count, i)))
        overtime = int(rng.integers(1, 3)) if rng.random() < OVERTIME else 0
        silence = np.full(overtime, corpus.right[i] + corpus.count[i])
        return lay_out(text, reference, heard, said, silence)


def run(first: np.ndarray, count: np.ndarray, i: int) -> np.ndarray:
    return np.arange(first[i], first[i] + count[i])


def lay_out(
    text: np.ndarray, reference: np.ndarray, heard: np.ndarray, said: np.ndarray, silence: np.ndarray
) -> Sequence:
    """Patches by index: of the reference, of the prompt, to be predicted, and after the end."""
    before = len(text) + 1 + (len(reference) + 2 if len(reference) else 0)
    size = before + len(heard) + len(said) + len(silence)
    ids, patch, marks = np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    target = np.zeros(size, bool)
    if len(reference):
        ids[0], ids[len(reference) + 1] = tokens.REFERENCE_START, tokens.REFERENCE_END
        patch[1 : len(reference) + 1] = reference
    ids[before - 1 - len(text) : before - 1] = text
    ids[before - 1] = tokens.AUDIO_START
    patch[before:] = np.concatenate((heard, said, silence))
    first = before + len(heard)
    end = first + len(said)
    target[first:end] = True
    marks[first : end - 1] = CONTINUE
    marks[end - 1 :] = STOP
    return Sequence(ids, patch, target, marks)


def assemble(rows: list[Sequence], width: int, layout: Layout, rng: np.random.Generator) -> np.ndarray:
    """One batch. Rows whose patches pass the capacity stay empty."""
    count = layout.positions // width
    ids, patch, marks = (np.zeros((count, width), np.int32) for _ in range(3))
    target = np.zeros((count, width), bool)
    room = layout.heard
    for i, row in enumerate(rows):
        room -= np.count_nonzero(row.patch)
        if room < 0:
            break
        size = len(row.ids)
        ids[i, :size], patch[i, :size] = row.ids, row.patch
        marks[i, :size], target[i, :size] = row.marks, row.target
    flat = patch.reshape(-1)
    marks += AUDIO * (patch > 0)
    array = np.zeros(layout.size, np.int32)
    parts = layout.parts(array)
    parts["ids"][:], parts["marks"][:] = ids.reshape(-1), marks.reshape(-1)
    (audio,) = flat.nonzero()
    parts["heard_at"][:] = layout.positions
    parts["heard"][: len(audio)], parts["heard_at"][: len(audio)] = flat[audio], audio
    at = np.resize(rng.permutation(np.flatnonzero(target)), layout.made)
    parts["made_at"][:], parts["made"][:], parts["before"][:] = at, flat[at], flat[at - 1]
    return array


@dataclass(frozen=True, slots=True)
class Batch:
    width: int
    array: np.ndarray

    @classmethod
    def blank(cls, width: int, layout: Layout) -> "Batch":
        """One of this shape that asks for patch 0 after a text of token 0."""
        array = np.zeros(layout.size, np.int32)
        parts = layout.parts(array)
        parts["marks"][:], parts["heard_at"][:], parts["made_at"][:] = CONTINUE, layout.positions, 1
        return cls(width, array)


def chunk(composer: Composer, layout: Layout, members: np.ndarray, seed: tuple[int, int]) -> list[Batch]:
    """Batches over all training `members` of one stretch of an epoch, in random order."""
    rng = np.random.default_rng(seed)
    per_epoch = max(1, len(members) // CHUNK)
    epoch, stretch = divmod(seed[1], per_epoch)
    order = np.random.default_rng((seed[0], 7919, epoch)).permutation(members)
    rows = [composer.draw(int(i), rng) for i in np.array_split(order, per_epoch)[stretch]]
    return batched(rows, layout, rng)


def batched(rows: list[Sequence], layout: Layout, rng: np.random.Generator) -> list[Batch]:
    """Rows of similar lengths together. The last batch of a width is filled up with rows that it has already seen."""
    batches: list[Batch] = []
    rows = sorted((row for row in rows if len(row.ids) <= WIDTHS[-1]), key=lambda row: len(row.ids))
    for width in WIDTHS:
        count = layout.positions // width
        here = [row for row in rows if len(row.ids) <= width]
        rows = rows[len(here) :]
        if len(here) < count // 2 and width != WIDTHS[-1]:
            rows = here + rows  # too few: let them pad a wider batch
            continue
        order = rng.permutation(len(here))
        for begin in range(0, len(here), count):
            picked = np.resize(order[begin:], count) if begin + count > len(here) else order[begin : begin + count]
            batches.append(Batch(width, assemble([here[i] for i in picked], width, layout, rng)))
    return [batches[i] for i in rng.permutation(len(batches))]


def held_out(size: int, share: int = 200, most: int = 96) -> np.ndarray:
    """Which utterances are kept for validation: the last ones."""
    return np.arange(size - min(most, max(1, size // share)), size)


_worker: tuple[Composer, Layout, np.ndarray] | None = None


def _begin(folder: Path, layout: Layout) -> None:
    global _worker
    while not (folder / INDEX).exists():
        time.sleep(0.1)
    corpus = load(folder)
    _worker = (Composer(corpus), layout, np.arange(held_out(len(corpus))[0]))


def _work(seed: tuple[int, int]) -> list[Batch]:
    assert _worker is not None
    return chunk(*_worker, seed)


class Stream:
    """Batches without end, made by other processes. They start at once and wait for the latents if need be."""

    def __init__(self, folder: Path, layout: Layout, *, seed: int, processes: int) -> None:
        self.seed, self.processes = seed, processes
        self.pool = multiprocessing.get_context("spawn").Pool(processes, _begin, (folder, layout))

    def batches(self, first: int) -> Iterator[tuple[int, Batch]]:
        """Each with the number of its chunk, from chunk `first` on."""
        ahead = [self._ask(number) for number in range(first, first + self.processes + 1)]
        for number in itertools.count(first):
            for batch in ahead.pop(0).get():
                yield number, batch
            ahead.append(self._ask(number + self.processes + 1))

    def _ask(self, number: int) -> Any:
        return self.pool.apply_async(_work, ((self.seed, number),))

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()
