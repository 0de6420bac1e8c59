"""Training batches of a few fixed shapes, with sequences as the official inference lays them out.

A batch is rows of equal width. There are a few widths, and rows times width is always the same number of positions, so
that every batch costs the same and one CUDA graph for each width is enough. A batch is one int32 array, see `Layout`.
"""

import itertools
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np

from tools.voice import tokens
from tools.voice.encode import INDEX, Corpus, load
from tools.voice.voices import VOICES

CONTINUE, STOP = 1, 2  # target of the stop head; 0 at positions without one
AUDIO = 4  # flag of an audio position, added to the above
WIDTHS = (96, 128, 160, 192, 256, 384)
CHUNK = 4096  # utterances that are sorted by length together

MODES = {"single": 0.45, "joined": 0.12, "prompt": 0.16, "reference": 0.17, "hifi": 0.10}
TAGGED = {"single": 0.75, "joined": 0.75, "prompt": 0.1, "reference": 0.3, "hifi": 0.1}  # share with the voice's tag
UNNAMED = ("single", "joined")  # only the first voice has rows of these without its tag, so that it speaks then
ABUTTING = 0.3  # share of joined texts without a space after the first one's punctuation
OVERTIME = 0.25  # share of utterances that silence follows, in which the target is still to stop


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of a batch, and the places of its parts in the array.

    ids: the token of each position. marks: CONTINUE or STOP, plus AUDIO. context, context_at: patches to encode, and
    their positions. target, target_at: patches to predict, some of them several times, and their positions. previous:
    the patch before each target. letter: the position of the token that sounds in the target of each position, 0 for
    none. Unused entries of `context` are patch 0 at position `positions`, after the last one.
    """

    positions: int
    context: int
    target: int

    @property
    def size(self) -> int:
        return 3 * self.positions + 2 * self.context + 3 * self.target

    def parts(self, array: Any) -> dict[str, Any]:
        """Views of the parts of an array or tensor of `size` numbers, by name."""
        n, c, t = self.positions, self.context, self.target
        sizes = {
            "ids": n,
            "marks": n,
            "letter": n,
            "context": c,
            "context_at": c,
            "target": t,
            "target_at": t,
            "previous": t,
        }
        views, start = {}, 0
        for name, size in sizes.items():
            views[name] = array[start : start + size]
            start += size
        return views


@dataclass(frozen=True, slots=True)
class Sequence:
    """One row of a batch, before padding."""

    ids: np.ndarray  # token at each position, 0 at audio
    patch: np.ndarray  # index of the patch at each position, 0 at text
    target: np.ndarray  # True for a patch to predict
    marks: np.ndarray  # CONTINUE, STOP or 0
    letter: np.ndarray  # position of the token that sounds in a patch to predict, 0 for none


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
        """A sequence of a random mode whose last target is utterance i."""
        corpus = self.corpus
        mode = str(rng.choice(list(MODES), p=list(MODES.values())))
        pair = mode in ("joined", "prompt", "hifi")
        j = self.mate(i, rng) if pair else i
        text = self.joined(j, i, rng) if pair else corpus.text(i)
        tag = 0  # tokens before the text
        named = mode in UNNAMED and corpus.voice[i] > 0
        if rng.random() < TAGGED[mode] or named:
            tag = len(self.tags[corpus.voice[i]])
            text = np.concatenate((self.tags[corpus.voice[i]], text))
        reference = prompt = target = np.zeros(0, np.int64)
        if mode == "reference" or (mode == "hifi" and rng.random() < 0.3):
            reference = run(corpus.right, corpus.count, self.mate(i, rng))
        elif mode == "hifi":
            reference = run(corpus.right, corpus.count, j)
        if mode in ("prompt", "hifi"):
            prompt = run(corpus.left, corpus.count, j)
        elif mode == "joined":
            target = run(corpus.right, corpus.count, j)
        last = run(corpus.right, corpus.count, i)
        letter = np.concatenate((self.spoken(target, tag), self.spoken(last, len(text) - int(corpus.length[i]))))
        target = np.concatenate((target, last))
        overtime = int(rng.integers(1, 3)) if rng.random() < OVERTIME else 0
        silence = np.full(overtime, corpus.right[i] + corpus.count[i])
        return lay_out(text, reference, prompt, target, silence, letter)

    def spoken(self, patches: np.ndarray, begin: int) -> np.ndarray:
        """The token that sounds in each of the patches, in a text in which theirs begins at `begin`; -1 for none."""
        letter = self.corpus.letter[patches].astype(np.int64)
        return np.where(letter < 0, -1, begin + letter)


def run(first: np.ndarray, count: np.ndarray, i: int) -> np.ndarray:
    """The indices of the patches of utterance i."""
    return np.arange(first[i], first[i] + count[i])


def lay_out(
    text: np.ndarray, reference: np.ndarray, prompt: np.ndarray, target: np.ndarray, silence: np.ndarray,
    letter: np.ndarray,
) -> Sequence:  # fmt: skip
    """The sequence of a text and of patches, by index: reference, prompt, targets, and silence after them.

    letter: the token of the text that sounds in each target, -1 for none
    """
    before = len(text) + 1 + (len(reference) + 2 if len(reference) else 0)
    size = before + len(prompt) + len(target) + len(silence)
    ids, patch, marks = np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    is_target, letter_at = np.zeros(size, bool), np.zeros(size, np.int32)
    if len(reference):
        ids[0], ids[len(reference) + 1] = tokens.REFERENCE_START, tokens.REFERENCE_END
        patch[1 : len(reference) + 1] = reference
    ids[before - 1 - len(text) : before - 1] = text
    ids[before - 1] = tokens.AUDIO_START
    patch[before:] = np.concatenate((prompt, target, silence))
    first = before + len(prompt)
    end = first + len(target)
    is_target[first:end] = True
    letter_at[first:end] = np.where(letter < 0, 0, before - 1 - len(text) + letter)
    marks[first : end - 1] = CONTINUE
    marks[end - 1 :] = STOP
    return Sequence(ids, patch, is_target, marks, letter_at)


def assemble(rows: list[Sequence], width: int, layout: Layout, rng: np.random.Generator) -> np.ndarray:
    """One batch. Rows whose patches do not fit stay empty."""
    count = layout.positions // width
    ids, patch, marks, letter = (np.zeros((count, width), np.int32) for _ in range(4))
    target = np.zeros((count, width), bool)
    room = layout.context
    for i, row in enumerate(rows):
        room -= np.count_nonzero(row.patch)
        if room < 0:
            break
        size = len(row.ids)
        ids[i, :size], patch[i, :size] = row.ids, row.patch
        marks[i, :size], target[i, :size] = row.marks, row.target
        letter[i, :size] = np.where(row.letter > 0, i * width + row.letter, 0)
    flat = patch.reshape(-1)
    marks += AUDIO * (patch > 0)
    array = np.zeros(layout.size, np.int32)
    parts = layout.parts(array)
    parts["ids"][:], parts["marks"][:], parts["letter"][:] = ids.reshape(-1), marks.reshape(-1), letter.reshape(-1)
    (audio,) = flat.nonzero()
    parts["context_at"][:] = layout.positions
    parts["context"][: len(audio)], parts["context_at"][: len(audio)] = flat[audio], audio
    at = np.resize(rng.permutation(np.flatnonzero(target)), layout.target)
    parts["target_at"][:], parts["target"][:], parts["previous"][:] = at, flat[at], flat[at - 1]
    return array


@dataclass(frozen=True, slots=True)
class Batch:
    """The array of a batch, and the width of its rows."""

    width: int
    array: np.ndarray

    @classmethod
    def blank(cls, width: int, layout: Layout) -> "Batch":
        """A batch of this shape whose target is patch 0, after a text of token 0."""
        array = np.zeros(layout.size, np.int32)
        parts = layout.parts(array)
        parts["marks"][:], parts["context_at"][:], parts["target_at"][:] = CONTINUE, layout.positions, 1
        return cls(width, array)


def chunk(composer: Composer, layout: Layout, members: np.ndarray, seed: tuple[int, int]) -> list[Batch]:
    """Batches of all training `members` of one part of an epoch, in random order."""
    rng = np.random.default_rng(seed)
    per_epoch = max(1, len(members) // CHUNK)
    epoch, part = divmod(seed[1], per_epoch)
    order = np.random.default_rng((seed[0], 7919, epoch)).permutation(members)
    rows = [composer.draw(int(i), rng) for i in np.array_split(order, per_epoch)[part]]
    return batched(rows, layout, rng)


def batched(rows: list[Sequence], layout: Layout, rng: np.random.Generator) -> list[Batch]:
    """Batches of rows with similar lengths. The last batch of a width is filled with rows of the other ones."""
    batches: list[Batch] = []
    rows = sorted((row for row in rows if len(row.ids) <= WIDTHS[-1]), key=lambda row: len(row.ids))
    for width in WIDTHS:
        count = layout.positions // width
        here = [row for row in rows if len(row.ids) <= width]
        rows = rows[len(here) :]
        if len(here) < count // 2 and width != WIDTHS[-1]:
            rows = here + rows  # too few: they go into a wider batch
            continue
        order = rng.permutation(len(here))
        for begin in range(0, len(here), count):
            picked = np.resize(order[begin:], count) if begin + count > len(here) else order[begin : begin + count]
            batches.append(Batch(width, assemble([here[i] for i in picked], width, layout, rng)))
    return [batches[i] for i in rng.permutation(len(batches))]


def held_out(size: int, share: int = 200, most: int = 96) -> np.ndarray:
    """The indices of the utterances for validation: the last ones."""
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
    """Endless batches from other processes. The processes start at once and wait until there are latents.

    processes: 0 for a thread of this process instead
    """

    def __init__(self, folder: Path, layout: Layout, *, seed: int, processes: int) -> None:
        self.seed, self.processes = seed, processes
        work: tuple[Any, ...] = (_begin, (folder, layout))
        self.pool = multiprocessing.get_context("spawn").Pool(processes, *work) if processes else ThreadPool(1, *work)

    def batches(self, first: int) -> Iterator[tuple[int, Batch]]:
        """Yield batches with the number of their chunk, from chunk `first` on."""
        ahead = [self._submit(number) for number in range(first, first + self.processes + 1)]
        for number in itertools.count(first):
            for batch in ahead.pop(0).get():
                yield number, batch
            ahead.append(self._submit(number + self.processes + 1))

    def _submit(self, number: int) -> Any:
        return self.pool.apply_async(_work, ((self.seed, number),))

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()
