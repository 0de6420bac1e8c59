"""The text of a segment as the model gets it: spelled by the lexicons, and normalised if the caller asks for it."""

from __future__ import annotations

from dataclasses import replace

from voxcpm_server.speech.characters import is_speakable, spoken
from voxcpm_server.speech.description import without_parentheses
from voxcpm_server.speech.phonemes import around_phonemes
from voxcpm_server.speech.spelling import Lexicon
from voxcpm_server.text.normalizer import TextNormalizer
from voxcpm_server.wire.outputs import Segment


class TextPreparation:
    """Prepares the segments of a stream.

    lexicon: the words of the stream and of the server
    normalizer: None for streams that cannot ask for normalised text
    language: primary subtag of the text's language; empty takes that of the script
    """

    def __init__(
        self, lexicon: Lexicon | None = None, normalizer: TextNormalizer | None = None, language: str = ""
    ) -> None:
        self._lexicon = lexicon or Lexicon()
        self._normalizer = normalizer
        self._language = language

    async def prepare(self, segment: Segment) -> Segment:
        """The segment with the text to speak; its place in the caller's text stays. Raises Unavailable."""
        parts = around_phonemes(segment.text)
        text = "".join(part if is_phonemes else self._lexicon.apply(part) for part, is_phonemes in parts)
        if segment.turn_config.normalize and self._normalizer is not None:
            normalized = spoken(await self._normalize(text, self._normalizer))
            text = normalized if is_speakable(normalized) else text  # such as code, of which nothing is left
        if not segment.turn_config.style_in_text:
            text = without_parentheses(text)
        return segment if text == segment.text else replace(segment, text=text)

    async def _normalize(self, text: str, normalizer: TextNormalizer) -> str:
        """The text in words, with its phonemes as they are."""
        parts: list[str] = []
        for part, is_phonemes in around_phonemes(text):
            if not is_phonemes and is_speakable(part):
                words = (await normalizer.normalize(part, self._language)).strip()
                part = f"{_space(part[0])}{words}{_space(part[-1])}"
            parts.append(part)
        return "".join(parts)


def _space(char: str) -> str:
    return " " if char.isspace() else ""
