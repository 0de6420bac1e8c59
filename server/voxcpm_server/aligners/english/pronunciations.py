"""The pronunciations of English words as people write them: with marks, digits, symbols and letters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

from voxcpm_server.aligners.english.letters import VOWELS, sounds
from voxcpm_server.aligners.english.numbers import LONGEST, cardinal, ordinal, readings

SHORT = 5  # words of a text that need not have a frequent one
MOST = 6  # a word has so many pronunciations at most
INITIALISM = 5  # letters of an unknown word in capitals that is spelled out, at most
ABBREVIATIONS = {
    "mr.": "mister",
    "mrs.": "missus",
    "ms.": "miz",
    "dr.": "doctor",
    "st.": "saint",
    "vs.": "versus",
    "etc.": "et cetera",
    "no.": "number",
    "prof.": "professor",
    "jr.": "junior",
}
SYMBOLS = {
    "&": "and",
    "%": "percent",
    "@": "at",
    "#": "number",
    "+": "plus",
    "=": "equals",
    "§": "section",
    "$": "dollars",
    "€": "euros",
    "£": "pounds",
    "¥": "yen",
    "°": "degrees",
}
CURRENCIES = "$€£¥"  # these signs stand before the number, and are read after it
ORDINAL_ENDINGS = ("st", "nd", "rd", "th")
FREQUENT = (
    "about after and are at because been before but by could did does each for from had have his how if into "
    "its just many most much my not now off only or other our out she should some than that the their them "
    "then there these they this those to too up us very were what when where which who why will with would "
    "yes you your"
)
"""Words that most English texts have, and texts in other languages with Latin letters have not."""
ENDINGS = {"ing": "IH NG", "ed": "D", "ly": "L IY", "es": "IH Z", "er": "ER", "s": "Z", "ness": "N AH S"}
_PART = re.compile(r"[$€£¥]?\d+(?:,\d{3})+(?!\d)|[$€£¥]?\d+|[A-Za-z]+(?:'[A-Za-z]+)*|[&%@#+=$€£¥°§]|\.(?=\d)", re.ASCII)
# A word that is written in phonemes consists of these.
_PHONEME = re.compile(r"\{[A-Z]{1,2}[012]?\}?|[A-Z]{1,2}(?:[012]\}?|\})")
_APOSTROPHES = str.maketrans("‘’`", "'''")


class Pronunciations:
    """Finds the phones of written words.

    dictionary: the phones of words in lower case, with spaces; a word with several has `word(2)` and so on, and the
        name of a letter is `letter.`
    phones: all phones
    """

    def __init__(self, dictionary: Mapping[str, str], phones: frozenset[str]) -> None:
        self._dictionary = dictionary
        self._phones = phones
        self._frequent = frozenset(FREQUENT.split())

    def may_be_english(self, words: Sequence[str]) -> bool:
        """True for a text whose words are mostly in the dictionary, which has names of all languages.

        One of the frequent words must be among them, unless the text is short and nearly all are known.
        """
        bare = [_bare(word) for word in words]
        known = sum(word in self._dictionary or word.strip(",.").isdecimal() for word in bare)
        if len(bare) <= SHORT and self._frequent.isdisjoint(bare):
            return 4 * known >= 3 * len(bare)
        return 2 * known >= len(bare) and not self._frequent.isdisjoint(bare)

    def of(self, word: str) -> tuple[str, ...]:
        """The pronunciations of a written word, each as its phones with spaces; none if nothing of it is pronounced."""
        plain = _plain(word)
        if _PHONEME.fullmatch(plain) and (phoneme := plain.strip("{}").rstrip("012")) in self._phones:
            return (phoneme,)
        if (short := plain.lower().strip("([\"'")) in ABBREVIATIONS:
            return tuple(self._spoken(ABBREVIATIONS[short].split()))
        parts = [one[0] for one in _PART.finditer(plain)]
        around = zip(["", *parts], parts, [*parts[1:], ""], strict=False)
        choices = [list(self._part(part, before, after)) for before, part, after in around]
        joined = islice(product(*(one for one in choices if one)), MOST)
        return tuple(dict.fromkeys(" ".join(one) for one in joined if one))

    def _part(self, part: str, before: str, after: str) -> Iterator[str]:
        """The pronunciations of a part of a word, letters, digits or a symbol, between two others."""
        digits = _digits(part)
        if digits and after.lower() in ORDINAL_ENDINGS and len(digits) <= LONGEST:
            yield from self._spoken(ordinal(cardinal(int(digits))))
        elif digits:
            unit = [SYMBOLS[part[0]]] if part[0] in CURRENCIES else []
            for words in readings(digits):
                yield from self._spoken([*words, *unit])
        elif part == ".":
            yield from self._spoken(["point"])
        elif part in SYMBOLS:
            yield from self._spoken([SYMBOLS[part]])
        elif not (part.lower() in ORDINAL_ENDINGS and _digits(before)):  # an ending of the number is read with it
            yield from self._word(part)

    def _spoken(self, words: list[str]) -> Iterator[str]:
        yield " ".join(next(self._word(word)) for word in words)

    def _word(self, word: str) -> Iterator[str]:
        """The pronunciations of a word of letters."""
        lower = word.lower()
        if found := list(self._entries(lower)):
            yield from found
            if word.isupper() and 1 < len(word) <= INITIALISM:
                yield self._spelled(lower)
            return
        if (word.isupper() and len(word) <= INITIALISM) or not any(one in VOWELS for one in lower):
            yield self._spelled(lower)
        if composed := self._composed(lower):
            yield composed
        else:
            yield " ".join(sounds(lower.replace("'", "")))

    def _entries(self, word: str) -> Iterator[str]:
        number = 1
        name = word
        while name in self._dictionary:
            yield self._dictionary[name]
            number += 1
            name = f"{word}({number})"

    def _spelled(self, word: str) -> str:
        return " ".join(self._dictionary[f"{letter}."] for letter in word if letter.isalpha())

    def _composed(self, word: str) -> str:
        """The phones of a word that is made of known ones; empty if it is not."""
        stem, _, ending = word.rpartition("'")
        if stem and ending == "s":
            return f"{next(self._word(stem))} {ENDINGS['s']}"
        for at in sorted(range(3, len(word) - 2), key=lambda at: abs(2 * at - len(word))):
            if word[:at] in self._dictionary and word[at:] in self._dictionary:
                return f"{self._dictionary[word[:at]]} {self._dictionary[word[at:]]}"
        for ending, phones in ENDINGS.items():
            for stem in (word.removesuffix(ending), f"{word.removesuffix(ending)}e"):
                if word.endswith(ending) and stem in self._dictionary:
                    return f"{self._dictionary[stem]} {phones}"
        return ""


def _digits(part: str) -> str:
    """The digits of a number; empty for another part of a word."""
    digits = part.strip(CURRENCIES).replace(",", "")
    return digits if digits.isdecimal() else ""


def _bare(word: str) -> str:
    """The word in lower case without the marks around it."""
    return word.translate(_APOSTROPHES).strip("\"'()[]{}.,;:!?…“”„«»-–—").lower()


def _plain(word: str) -> str:
    """The word without accents, and with plain apostrophes."""
    bare = unicodedata.normalize("NFKD", word.translate(_APOSTROPHES))
    return "".join(char for char in bare if not unicodedata.combining(char))
