"""Subtitles from the times of words: WebVTT and SRT."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.values.results import WordTime

SUFFIXES = (".vtt", ".srt")
LINE = 42  # columns of a line, of which a wide character takes two
LINES = 2
LONGEST_SECONDS = 7.0  # seconds of a subtitle, at most
SHORTEST_SECONDS = 1.0  # seconds that a subtitle is shown, if the next one does not begin earlier
PAUSE_SECONDS = 1.0  # seconds between two words, which end a subtitle
SENTENCE_ENDS = ".!?…。！？"
CLOSING = "\"'”’»)]」』）"


@dataclass(frozen=True, slots=True)
class Subtitle:
    """A text with the time at which it is shown, in seconds."""

    begin: float
    end: float
    lines: tuple[str, ...]


def subtitles(words: Iterable[WordTime], sample_rate: int, *, delay_samples: int = 0) -> list[Subtitle]:
    """The words in subtitles of at most two lines and seven seconds; sentences and pauses end them.

    Args:
        words: The words of a call, in order.
        sample_rate: Sample rate of the audio in Hz.
        delay_samples: Samples that a decoder of the audio makes before the first one, `Header.codec_delay_samples`.
    """
    groups = list(_groups(words, sample_rate))
    begins = [(group[0].start_samples + delay_samples) / sample_rate for group in groups]
    found: list[Subtitle] = []
    for number, group in enumerate(groups):
        end = (group[-1].end_samples + delay_samples) / sample_rate
        longer = max(end, begins[number] + SHORTEST_SECONDS)
        following = begins[number + 1] if number + 1 < len(groups) else longer
        found.append(Subtitle(begins[number], max(end, min(longer, following)), tuple(_lines(group))))
    return found


def check_suffix(path: Path) -> None:
    """Raise InvalidArgument unless the name of a file ends as one of subtitles."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidArgument(f"{path} must end in {' or '.join(SUFFIXES)}", field="subtitles")


def rendered(found: Sequence[Subtitle], suffix: str) -> str:
    """The content of a file with this suffix: `.vtt` for WebVTT, `.srt` for SRT."""
    if suffix.lower() == ".vtt":
        cues = (f"{_time(one.begin, '.')} --> {_time(one.end, '.')}\n{_escaped(one.lines)}\n" for one in found)
        return "\n".join(["WEBVTT\n", *cues])
    numbered = enumerate(found, 1)
    return "\n".join(
        f"{number}\n{_time(one.begin, ',')} --> {_time(one.end, ',')}\n" + "".join(f"{line}\n" for line in one.lines)
        for number, one in numbered
    )


def _groups(words: Iterable[WordTime], rate: int) -> Iterator[list[WordTime]]:
    group: list[WordTime] = []
    for word in words:
        if group and _ends_before(group, word, rate):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _ends_before(group: Sequence[WordTime], word: WordTime, rate: int) -> bool:
    last = group[-1]
    return (
        word.turn != last.turn
        or last.text.rstrip(CLOSING)[-1:] in tuple(SENTENCE_ENDS)
        or word.start_samples - last.end_samples >= PAUSE_SECONDS * rate
        or word.end_samples - group[0].start_samples > LONGEST_SECONDS * rate
        or len(list(_lines([*group, word]))) > LINES
    )


def _lines(words: Sequence[WordTime]) -> Iterator[str]:
    line, before = "", None
    for word in words:
        spaced = before is not None and word.input_start > before.input_end
        joined = f"{line}{' ' if spaced and line else ''}{word.text}"
        if line and _columns(joined) > LINE:
            yield line
            joined = word.text
        line, before = joined, word
    yield line


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _time(seconds: float, mark: str) -> str:
    milliseconds = round(1000 * seconds)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{mark}{rest % 1000:03}"


def _escaped(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
