"""The comparison of texts with the languages that a model claims to speak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from voxcpm_server.text.normalize.scripts import LATIN, SCRIPTS, script
from voxcpm_server.values.languages import primary
from voxcpm_server.values.outputs import RequestWarning, WarningKind

NAMES = {"CJK": "Chinese"}  # warnings give a script this name, if its word is not one
MAX_LISTED = 8
SAMPLE_CHARS = 12
PUNCTUATION = ".,;:!?。、，！？…"


class LanguageClaim:
    """Finds what a model does not claim to speak, in the texts of one stream.

    languages: the claim, BCP 47 tags; without any, nothing is found
    """

    def __init__(self, languages: Sequence[str]) -> None:
        self._languages = languages
        self._claimed = {primary(tag) for tag in languages}
        self._scripts = {script for tag in self._claimed for script in SCRIPTS.get(tag, (LATIN,))}

    def of_language(self, language: str) -> Iterator[RequestWarning]:
        """A warning if the language of the text, a primary subtag, is set and not claimed."""
        if self._claimed and language and language not in self._claimed:
            yield self._warning(f"the language of the text is {language}")

    def of_text(self, text: str) -> Iterator[RequestWarning]:
        """A warning for each script that is not claimed, at its first text."""
        if not self._claimed or (text.isascii() and LATIN in self._scripts):
            return
        for index, char in enumerate(text):
            found = script(char)
            if found and found not in self._scripts:
                self._scripts.add(found)  # it is known from now on
                sample = text[index : index + SAMPLE_CHARS].split()[0].rstrip(PUNCTUATION)
                yield self._warning(f"the text has {NAMES.get(found, found.title())} letters, such as {sample!r}")

    def _warning(self, cause: str) -> RequestWarning:
        more = len(self._languages) - MAX_LISTED
        listed = ", ".join(self._languages[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
        message = f"{cause}, and the model claims to speak {listed} only; parts may be left out or misread"
        return RequestWarning(WarningKind.LANGUAGE, message)
