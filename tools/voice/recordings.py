"""Recordings of a server's speech as files, so that they can be evaluated again without the server.

A folder holds WAV files (16-bit mono at 24 kHz) and `index.jsonl` with one line for each, which is written after its
file.
"""

import io
import json
import wave
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tools.voice.dataset import RATE

CODEC = "codec"  # the mode of the teacher's recordings after the codec, which no server makes


@dataclass(frozen=True, slots=True)
class Case:
    """A text to speak in a voice and a mode."""

    mode: str  # a way to give the speaker (see `record`), or to cut the text (see `clauses`)
    voice: str  # name of a Voice
    text: str


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A segment of the text, and the server's reason for the cut at its end."""

    text: str
    cut_reason: str


@dataclass(frozen=True, slots=True)
class Recording:
    """The recording of a case."""

    case: Case
    file: Path
    finish_reason: str  # as the server sends it: `complete`, or `max_steps` at the length limit
    parts: tuple[SpokenSegment, ...] = ()  # empty if they were not recorded

    def samples(self) -> np.ndarray:
        """The samples: int16 at RATE. Raises ValueError for a file of another format."""
        with wave.open(str(self.file)) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                raise ValueError(f"{self.file} is not a 16-bit mono recording at {RATE} Hz")
            return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def wav(samples: np.ndarray) -> bytes:
    """The content of a WAV file. samples: int16 at RATE."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()


def store(
    folder: Path, case: Case, samples: np.ndarray, finish_reason: str, parts: Sequence[SpokenSegment] = ()
) -> None:
    """Write a recording. samples: int16 at RATE."""
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.jsonl"
    number = sum(1 for _ in recordings(folder))
    name = f"{case.mode}-{case.voice}-{number:04d}.wav"
    (folder / name).write_bytes(wav(samples))
    with index.open("a", encoding="utf-8") as lines:
        segments = [asdict(part) for part in parts]
        entry = {**asdict(case), "file": name, "finish_reason": finish_reason, "parts": segments}
        lines.write(json.dumps(entry) + "\n")


def recordings(folder: Path) -> Iterator[Recording]:
    """Yield the recordings of a folder, in the order in which they were made."""
    index = folder / "index.jsonl"
    if index.exists():
        with index.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                case = Case(line["mode"], line["voice"], line["text"])
                parts = tuple(SpokenSegment(**part) for part in line.get("parts", ()))
                yield Recording(case, folder / line["file"], line["finish_reason"], parts)
