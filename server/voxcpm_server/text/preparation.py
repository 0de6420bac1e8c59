"""The text of a segment as the model gets it: spelled by the lexicons, and normalised if the caller asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from voxcpm_server.text.description import without_parentheses
from voxcpm_server.text.lexicon import Lexicon, Replacement, respelled
from voxcpm_server.text.normalize.normalizer import TextNormalizer
from voxcpm_server.text.normalize.phonemes import around_phonemes
from voxcpm_server.text.words.alignment import aligned
from voxcpm_server.text.words.characters import is_speakable, spoken
from voxcpm_server.text.words.spoken_words import word_ends
from voxcpm_server.values.outputs import Segment


class TextPreparation:
    """Prepares the segments of a stream.

    lexicon: the words of the stream and of the server
    normalizer: None for streams that cannot ask for normalised text
    language: primary subtag of the text's language; empty takes that of the script
    """

    def __init__(
        self, lexicon: Lexicon | None = None, normalizer: TextNormalizer | None = None, language: str = ""
    ) -> None:
        self.lexicon = lexicon or Lexicon()
        self._normalizer = normalizer
        self._language = language

    async def prepare(self, segment: Segment) -> Segment:
        """The segment with the text to speak; its place in the caller's text stays. Raises Unavailable.

        The text is empty if nothing is left to speak.
        """
        if not segment.text:
            return segment
        words = list(replacements(segment.text, self.lexicon))
        text = respelled(segment.text, words)
        if segment.turn_config.normalize and self._normalizer is not None:
            normalized = spoken(await self._normalizer.normalize(text, self._language))
            text = normalized if is_speakable(normalized) else ""  # an emoji may leave nothing to speak
        if not segment.turn_config.style_in_text:
            text = without_parentheses(text)
        if text == segment.text and not words:
            return segment
        return replace(segment, text=text, undivided=_in_source(segment, words))


def replacements(text: str, lexicon: Lexicon, start: int = 0) -> Iterator[Replacement]:
    """The words of a text from a place on that a lexicon replaces, and phonemes, which stay as they are, in order."""
    at = 0
    for part, is_phonemes in around_phonemes(text):
        found = [Replacement(0, len(part), part)] if is_phonemes else lexicon.find(part, start - at)
        for word in found:
            yield Replacement(at + word.start, at + word.end, word.spelling)
        at += len(part)


def _in_source(segment: Segment, words: Sequence[Replacement]) -> tuple[tuple[int, int], ...]:
    """The ranges of the caller's text that hold words of `segment.text`, from the start to the end of words there."""
    if not words:
        return ()
    ends = [0, *word_ends(segment.text)]
    written = [0, *word_ends(segment.source)]
    pairs = list(aligned(segment.source, segment.text))
    ranges: list[tuple[int, int]] = []
    for word in words:
        held = [ours for ours, theirs in pairs if ends[theirs.start] < word.end and word.start < ends[theirs.stop]]
        if held:
            ranges.append((written[held[0].start], written[held[-1].stop]))
    return tuple(ranges)
