"""The characters without a glyph are those of Unicode's own table."""

import sys

import regex

from voxcpm_grpc.text.characters import INVISIBLE


def test_invisible_characters_are_the_default_ignorable_code_points():
    ignorable = regex.compile(r"\p{Default_Ignorable_Code_Point}")
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    assert [char for char in characters if INVISIBLE.match(char)] == [
        char for char in characters if ignorable.match(char)
    ]
