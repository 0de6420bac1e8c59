"""What a server said, kept as files that anybody can listen to, so that it can be judged again without the server.

A folder holds WAV files (16-bit mono at 16 kHz) and `index.jsonl`, one line for each, which is written after its file.
"""

import io
import json
import wave
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tools.voice.dataset import RATE


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to say."""

    mode: str  # how the speaker is given: see `ask`; or how the text is cut: see `clauses`
    voice: str  # name of a Voice
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """A segment of the text, and why the server cut it off there, in its word."""

    text: str
    cut_reason: str


@dataclass(frozen=True, slots=True)
class Recording:
    case: Case
    file: Path
    finish_reason: str  # why it ended, in the server's word: `complete`, or `max_steps` at the length cap
    parts: tuple[Part, ...] = ()  # none if the server did not say, or nobody kept it

    def samples(self) -> np.ndarray:
        """int16 at RATE. Raises ValueError for a file of another kind."""
        with wave.open(str(self.file)) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                raise ValueError(f"{self.file} is no 16-bit mono recording at {RATE} Hz")
            return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def wav(samples: np.ndarray) -> bytes:
    """A WAV file of int16 samples at RATE."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()


def keep(folder: Path, case: Case, samples: np.ndarray, finish_reason: str, parts: Sequence[Part] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.jsonl"
    number = sum(1 for _ in recordings(folder))
    name = f"{case.mode}-{case.voice}-{number:04d}.wav"
    (folder / name).write_bytes(wav(samples))
    with index.open("a", encoding="utf-8") as lines:
        said = [asdict(part) for part in parts]
        entry = {**asdict(case), "file": name, "finish_reason": finish_reason, "parts": said}
        lines.write(json.dumps(entry) + "\n")


def recordings(folder: Path) -> Iterator[Recording]:
    """All that is there, in the order in which it was said."""
    index = folder / "index.jsonl"
    if index.exists():
        with index.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                case = Case(line["mode"], line["voice"], line["text"])
                parts = tuple(Part(**part) for part in line.get("parts", ()))
                yield Recording(case, folder / line["file"], line["finish_reason"], parts)
