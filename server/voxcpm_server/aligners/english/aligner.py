"""Forced alignment of English by pocketsphinx, while the speech is made."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_server.aligners.aligner import Timed
from voxcpm_server.aligners.english.pronunciations import Pronunciations

FRAMES = 100  # frames a second
LAG = 20  # frames after the end of a word from which on it does not move
QUIET_DB = 40.0  # dB below the loudest frame, from where on a frame is silence
SILENCE_DB = -70.0  # dB of full scale, below which a frame is silence at any rate
PAUSE = 6  # frames of silence at the ends of a word that do not belong to it; fewer may be those of a plosive
MAX_ENTRIES = 3000  # entries of the dictionary of a decoder; each takes 5 MB
SPARE = 8  # so many decoders are kept for later speech
NAME = "word"  # the names of words in a decoder begin so


class EnglishAligner:
    """Follows speech with a hidden Markov model of each word of the text, and of the silence between two words.

    A decoder follows one piece of speech at a time. It knows the words that it has met, which loads in a tenth of the
    time of the whole dictionary.
    """

    languages = frozenset({"en"})
    rate = 16000

    def __init__(self) -> None:
        from pocketsphinx import get_model_path

        self._models = Path(get_model_path()) / "en-us"
        entries = (
            line.partition(" ") for line in (self._models / "cmudict-en-us.dict").read_text("utf-8").splitlines()
        )
        dictionary = {word: phones for word, _, phones in entries}
        phones = frozenset(phone for letters in dictionary.values() for phone in letters.split())
        self._pronunciations = Pronunciations(dictionary, phones)
        self._spare: list[_Decoder] = []

    def begin(self, words: Sequence[str], language: str) -> _EnglishAlignment | None:
        pronounced = [(number, self._pronunciations.of(word)) for number, word in enumerate(words)]
        numbers = [number for number, phones in pronounced if phones]
        if not numbers or not (language or self._pronunciations.may_be_english([words[at] for at in numbers])):
            return None
        decoder = self._spare.pop() if self._spare else _Decoder(self._models)
        decoder.begin([phones for _, phones in pronounced if phones])
        return _EnglishAlignment(decoder, numbers, self._release)

    def _release(self, decoder: _Decoder) -> None:
        if len(self._spare) < SPARE and decoder.entries < MAX_ENTRIES:
            self._spare.append(decoder)


class _EnglishAlignment:
    """numbers: those of the words that the decoder follows. release: takes the decoder back"""

    def __init__(self, decoder: _Decoder, numbers: Sequence[int], release: Callable[[_Decoder], None]) -> None:
        self._decoder = decoder
        self._numbers = numbers
        self._release = release
        self._returned = self._end = 0  # words, and the frame after the last one
        self._loudness = _Loudness()
        self._speech: list[np.ndarray] = []

    def push(self, samples: np.ndarray) -> Sequence[Timed]:
        self._speech.append(samples)
        self._loudness.push(samples)
        path = self._decoder.push(samples)
        return self._timed([one for one in path[:-1] if one.end + LAG <= self._decoder.frames])

    def finish(self, *, complete: bool) -> Sequence[Timed]:
        path = self._decoder.path()
        whole = self._decoder.end()
        if complete and len(whole) < len(self._numbers):  # by itself it may have lost the way, which is rare
            whole = self._decoder.again(self._speech)
        if complete and len(whole) == len(self._numbers):
            path = whole
        elif complete:  # the speech is not that of the text, at least towards the end
            path = [one for one in path[:-1] if one.end + LAG <= self._decoder.frames]
        self._release(self._decoder)
        return self._timed(path)

    def _timed(self, path: Sequence[_Frames]) -> Sequence[Timed]:
        """The words of a path that were not returned. Where the path has moved, they begin after those that were."""
        found: list[Timed] = []
        for number, frames in zip(self._numbers[self._returned :], path[self._returned :], strict=False):
            audible = self._loudness.audible(frames)
            begin = max(audible.begin, self._end)
            self._end = max(audible.end, begin)
            found.append(Timed(number, begin / FRAMES, self._end / FRAMES))
        self._returned += len(found)
        return found


@dataclass(frozen=True, slots=True)
class _Frames:
    """The frames of a word, from `begin` up to `end`."""

    begin: int
    end: int


class _Loudness:
    """The loudness of each frame of a speech."""

    def __init__(self) -> None:
        self._levels = np.zeros(0, np.float32)  # dB
        self._rest = np.zeros(0, np.float32)

    def push(self, samples: np.ndarray) -> None:
        """Take more of the speech, float32 [n]."""
        samples = np.concatenate([self._rest, samples])
        size = EnglishAligner.rate // FRAMES
        whole = len(samples) // size
        frames = samples[: whole * size].reshape(whole, size)
        levels = 10 * np.log10(np.mean(np.square(frames), axis=1) + 1e-10)
        self._levels = np.concatenate([self._levels, levels])
        self._rest = samples[whole * size :]

    def audible(self, word: _Frames) -> _Frames:
        """A word without the silence at its ends, which the decoder often adds to it."""
        levels = self._levels[word.begin : word.end]
        (loud,) = np.nonzero(levels > max(SILENCE_DB, self._levels.max(initial=SILENCE_DB) - QUIET_DB))
        if not len(loud):
            return word
        before, after = int(loud[0]), len(levels) - 1 - int(loud[-1])
        return _Frames(word.begin + (before if before >= PAUSE else 0), word.end - (after if after >= PAUSE else 0))


class _Decoder:
    """A decoder of pocketsphinx that follows words."""

    def __init__(self, models: Path) -> None:
        from pocketsphinx import Decoder

        with tempfile.NamedTemporaryFile("w", suffix=".dict") as empty:
            empty.write("a AH\n")
            empty.flush()
            self._decoder: Any = Decoder(hmm=str(models / "en-us"), dict=empty.name, lm=None, loglevel="FATAL")
        self._means = self._decoder.get_cmn()
        self._names: dict[tuple[str, ...], str] = {}
        self._samples = 0

    @property
    def entries(self) -> int:
        """The words that it knows."""
        return len(self._names)

    @property
    def frames(self) -> int:
        """Frames of the speech so far."""
        return self._samples * FRAMES // EnglishAligner.rate

    def begin(self, words: Sequence[tuple[str, ...]]) -> None:
        """Begin to follow words, each with its pronunciations."""
        self._samples = 0
        self._decoder.set_cmn(self._means)  # the means of the speech before are dropped
        self._text = " ".join(map(self._name, words))
        self._decoder.set_align_text(self._text)
        self._decoder.start_utt()

    def push(self, samples: np.ndarray) -> list[_Frames]:
        """Follow float32 samples; returns the words so far, of which the last one goes on."""
        self._samples += len(samples)
        self._decoder.process_raw(_pcm(samples))
        return self.path()

    def path(self) -> list[_Frames]:
        """The most probable words so far."""
        if not self._decoder.hyp():
            return []
        words = (one for one in self._decoder.seg() if one.word.startswith(NAME))
        return [_Frames(one.start_frame, one.end_frame + 1) for one in words]

    def end(self) -> list[_Frames]:
        """End the speech; returns all words, or none if the speech does not end with the last one."""
        self._decoder.end_utt()
        return self.path()

    def again(self, speech: Sequence[np.ndarray]) -> list[_Frames]:
        """The words of the whole speech, once it is there: the decoder then knows how loud it is as a whole."""
        if not speech:
            return []
        self._decoder.set_align_text(self._text)
        self._decoder.start_utt()
        self._decoder.process_raw(_pcm(np.concatenate(speech)), full_utt=True)
        return self.end()

    def _name(self, pronunciations: tuple[str, ...]) -> str:
        """The name of a word in the dictionary of the decoder."""
        if (name := self._names.get(pronunciations)) is None:
            name = self._names[pronunciations] = f"{NAME}{len(self._names)}"
            for number, phones in enumerate(pronunciations, 1):
                self._decoder.add_word(name if number == 1 else f"{name}({number})", phones, update=False)
        return name


def _pcm(samples: np.ndarray) -> bytes:
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
