"""Write the phonemes of lines of text, which the teacher reads, for each line with one voice or with all.

    python -m tools.voice.phonemes TEXT OUT                  with the voices in turn, or all for one or two words
    python -m tools.voice.phonemes TEXT OUT --every-voice    each line with every voice, for evaluation

OUT gets a line of JSON for each utterance, {"voice", "text", "phonemes"}. It needs espeak-ng, which is licensed under
the GPL and is a tool of this step alone: pip install phonemizer-fork espeakng-loader.
"""

import argparse
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.voice.voices import VOICES

# Symbols of espeak that the teacher does not know, and those that it knows instead.
UNKNOWN = {"ʲ": "j", "r": "ɹ", "x": "k", "ɬ": "l"}
FEW = 2  # words
AT_ONCE = 1000  # texts; the time of phonemizer's own loop grows with their square


@dataclass(frozen=True, slots=True)
class Line:
    """A text to speak, with the phonemes in the accent of its voice."""

    voice: str  # name of a Voice
    text: str
    phonemes: str


def translated(espeak: str) -> str:
    """The teacher's phonemes for espeak's."""
    for old, new in UNKNOWN.items():
        espeak = espeak.replace(old, new)
    espeak = re.sub("(?<=[a-zɹː])(?=hˈʌndɹɪd)", " ", espeak)  # espeak joins "five hundred" to one word
    return espeak.strip()


class Phonemizer:
    """espeak-ng in one accent of English."""

    def __init__(self, british: bool) -> None:
        import espeakng_loader  # not part of every installation
        from phonemizer.backend import EspeakBackend
        from phonemizer.backend.espeak.wrapper import EspeakWrapper

        EspeakWrapper.set_library(espeakng_loader.get_library_path())
        EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
        quiet = logging.getLogger("phonemizer")
        quiet.setLevel(logging.ERROR)
        self._espeak: Any = EspeakBackend(
            "en-gb" if british else "en-us", preserve_punctuation=True, with_stress=True, logger=quiet
        )

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """The phonemes of texts."""
        found: list[str] = []
        for start in range(0, len(texts), AT_ONCE):
            found += self._espeak.phonemize(list(texts[start : start + AT_ONCE]))
        return [translated(one) for one in found]


def lines(texts: Sequence[str], every_voice: bool) -> Iterator[Line]:
    """Yield the utterances of texts, in the order of the texts: with the voices in turn, or with every voice.

    Texts of one or two words are spoken by every voice, because users say the same few ones again and again.
    """
    accents = {british: Phonemizer(british)(texts) for british in {voice.british for voice in VOICES}}
    for i, text in enumerate(texts):
        all_voices = every_voice or len(text.split()) <= FEW
        for voice in VOICES if all_voices else (VOICES[i % len(VOICES)],):
            yield Line(voice.name, text, accents[voice.british][i])


def read_texts(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line]


def read(path: Path) -> list[Line]:
    """The lines of a file that this tool wrote."""
    with path.open(encoding="utf-8") as file:
        return [Line(**json.loads(line)) for line in file]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="one sentence per line")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--every-voice", action="store_true", help="each line with every voice")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", encoding="utf-8") as file:
        for line in lines(read_texts(args.text), args.every_voice):
            file.write(json.dumps(asdict(line), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
