"""The text of a segment as the model gets it: spelled by the lexicons, and normalised if the caller asks for it."""

from __future__ import annotations

from dataclasses import replace

from voxcpm_server.speech.characters import is_speakable, spoken
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
        """The segment with the text to speak; its place in the caller's text stays. Raises Unavailable.

        The text is empty if nothing is left to speak.
        """
        if not segment.text:
            return segment
        text = self._lexicon.apply(segment.text)
        if segment.turn_config.normalize and self._normalizer is not None:
            normalized = spoken(await self._normalizer.normalize(text, self._language))
            text = normalized if is_speakable(normalized) else ""  # such as emoji
        return segment if text == segment.text else replace(segment, text=text)
