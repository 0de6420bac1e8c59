"""Chinese text for a reader: every number, unit and sign in words, and a pause for brackets and dashes."""

from __future__ import annotations

import re

from voxcpm_server.text.chinese.amounts import marks_in_words, ordinals_and_powers_in_words, symbols_in_words
from voxcpm_server.text.chinese.codes import addresses_in_words, codes_in_words
from voxcpm_server.text.chinese.dates import dates_in_words
from voxcpm_server.text.chinese.marks import with_pauses, with_plain_characters, without_loose_spaces
from voxcpm_server.text.chinese.measures import numbers_in_words
from voxcpm_server.text.chinese.script import in_traditional_script, is_traditional
from voxcpm_server.text.chinese.units import with_names_of_units

_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_NUMERAL_BEHIND = re.compile(r"(?<=\d)(?=[一二三四五六七八九]|[两兩][个個位])")


def read(text: str) -> str:
    """The text in words. The steps go from what has one reading to single numbers; what a step reads has no digits."""
    traditional = is_traditional(text)
    text = without_loose_spaces(with_plain_characters(text))
    text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    text = _NUMERAL_BEHIND.sub(" ", text)  # C3三个 has two numbers
    text = dates_in_words(addresses_in_words(text))
    text = with_names_of_units(text)
    text = codes_in_words(ordinals_and_powers_in_words(text))
    text = with_pauses(symbols_in_words(numbers_in_words(marks_in_words(text))))
    text = without_loose_spaces(text.replace("`", ""))
    return in_traditional_script(text) if traditional else text
