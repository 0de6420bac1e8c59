"""Spoken sentences on disk, in shards that can be read while later shards are still written.

A folder holds `speech.json`, the plan of the folder, and two files for each shard NNNN: `speech-NNNN.npy`, the int16
mono samples of its utterances one after another, and `speech-NNNN.jsonl` with a line for each utterance, {"voice",
"text", "start", "samples", "letters"}. The .jsonl file is written last, so a shard that has one is complete. If the
time for the speech was limited, each of N processes leaves a file `ended-K-of-N`, and shards of the plan may be
missing.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

RATE = 24_000  # samples per second, of the teacher and of the voice
STEP = 960  # samples between two of the letters of an utterance: 40 ms


@dataclass(frozen=True, slots=True)
class Utterance:
    """A spoken sentence."""

    voice: str  # name of a Voice
    text: str
    samples: np.ndarray  # int16, mono, at RATE
    letters: Sequence[int] = ()  # the letter of the text that sounds in each STEP, if it is known


@dataclass(frozen=True, slots=True)
class Entry:
    """The line of an utterance in a shard's index."""

    voice: str
    text: str
    start: int  # first sample in the shard's array
    samples: int
    letters: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The content of a complete folder. A run with the same plan in the same folder continues an interrupted one."""

    sentences: int
    shards: int
    digest: str  # of the texts and their voices


def write_plan(folder: Path, plan: Plan) -> None:
    """Start or continue a folder. Raises ValueError if it was started with another plan."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "speech.json"
    if path.exists() and (there := read_plan(folder)) != plan:
        raise ValueError(f"{folder} was started with {there}, not with {plan}; give another folder or remove this one")
    _write(path, (json.dumps(asdict(plan)) + "\n").encode())


def read_plan(folder: Path) -> Plan:
    return Plan(**json.loads((folder / "speech.json").read_text()))


def is_complete(folder: Path, shard: int) -> bool:
    return _index(folder, shard).exists()


def end(folder: Path, share: tuple[int, int]) -> None:
    """Note that a process writes no more shards. share: its part k of n of the shards."""
    _write(folder / f"ended-{share[0]}-of-{share[1]}", b"")


def has_ended(folder: Path) -> bool:
    """True if no process writes shards any more, although some of the plan may be missing."""
    there = list(folder.glob("ended-*-of-*[0-9]"))
    return bool(there) and len(there) == int(there[0].name.rpartition("-")[2])


def write_shard(folder: Path, shard: int, utterances: Sequence[Utterance]) -> None:
    """Write a shard, completely or not at all."""
    entries, start = [], 0
    for utterance in utterances:
        entries.append(Entry(utterance.voice, utterance.text, start, len(utterance.samples), utterance.letters))
        start += len(utterance.samples)
    temporary = folder / f"speech-{shard:04d}.tmp.npy"
    np.save(temporary, np.concatenate([utterance.samples for utterance in utterances]).astype(np.int16))
    temporary.replace(_audio(folder, shard))
    _write(_index(folder, shard), "".join(json.dumps(asdict(entry)) + "\n" for entry in entries).encode())


class Speech:
    """The complete shards of a folder as one sequence of `Utterance`, in the order of the shards.

    complete: no more shards will come.

    `refresh` adds shards that were completed since. An utterance may change its index until all shards are complete.
    Samples are memory-mapped; `entries` reads the indexes only.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.plan = read_plan(self.folder)
        self._shards: list[int] = []
        self._audio: list[np.ndarray] = []
        self._ends: list[int] = []  # index one past the last utterance of each shard
        self.entries: list[Entry] = []
        self.complete = False
        self.refresh()

    @property
    def shards(self) -> tuple[int, ...]:
        """Numbers of the complete shards."""
        return tuple(self._shards)

    @property
    def seconds(self) -> float:
        return sum(entry.samples for entry in self.entries) / RATE

    def refresh(self) -> bool:
        """Look for new shards. Returns True if no more will come."""
        ended = has_ended(self.folder)  # before the shards, because one may be written between the two
        there = [shard for shard in range(self.plan.shards) if is_complete(self.folder, shard)]
        if there != self._shards:
            self._shards, self._audio, self._ends, self.entries = there, [], [], []
            for shard in there:
                self._audio.append(np.load(_audio(self.folder, shard), mmap_mode="r"))
                with _index(self.folder, shard).open(encoding="utf-8") as lines:
                    self.entries.extend(Entry(**json.loads(line)) for line in lines)
                self._ends.append(len(self.entries))
        self.complete = ended or len(there) == self.plan.shards
        return self.complete

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Utterance:
        if not 0 <= index < len(self.entries):
            raise IndexError(f"utterance {index} of {len(self.entries)}")
        entry = self.entries[index]
        audio = self._audio[bisect_right(self._ends, index)]
        return Utterance(entry.voice, entry.text, audio[entry.start : entry.start + entry.samples], entry.letters)

    def __iter__(self) -> Iterator[Utterance]:
        return (self[index] for index in range(len(self)))


def _audio(folder: Path, shard: int) -> Path:
    return folder / f"speech-{shard:04d}.npy"


def _index(folder: Path, shard: int) -> Path:
    return folder / f"speech-{shard:04d}.jsonl"


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
