"""A lexicon: words, and the spellings that are spoken instead of them. Its rules, and files that hold one."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from voxcpm_grpc.text.characters import CONTROL, INVISIBLE, readable

MAX_WORD = 100
MAX_SPELLING = 200
MAX_FILE_ENTRIES = 100_000


def clean(word: str) -> str:
    """A word as it is looked up: composed, without invisible characters, single spaces inside, none at the ends."""
    return " ".join(INVISIBLE.sub("", readable(word)).split())


def entry_fault(word: str, spelling: str) -> str:
    """The fault of an entry, for people; empty if there is none."""
    for name, text, limit in (("word", word, MAX_WORD), ("spelling", spelling, MAX_SPELLING)):
        if len(text) > limit:
            return f"a {name} has {len(text)} characters and the limit is {limit}; shorten it"
        if found := CONTROL.search(text):
            return f"a {name} has the control character U+{ord(found[0]):04X} at index {found.start()}; remove it"
    if not clean(word):
        return "a word is empty; write the word that is to be spoken in another way"
    if not any(char.isalnum() for char in readable(spelling)):
        return f"the spelling of {clean(word)!r} has no letter and no digit; write what is to be spoken"
    return ""


def read_lexicon(path: Path) -> dict[str, str]:
    """The words and spellings of a file: one object in JSON, or with the suffix .toml one table in TOML. Blocks.

    Raises ValueError with the path and the fault.
    """
    try:
        text = path.read_text("utf-8-sig")
        found: object = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text, object_pairs_hook=_object)
    except OSError as error:
        raise ValueError(f"the lexicon {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # wrong UTF-8, JSON and TOML raise it, too
        raise ValueError(f"the lexicon {path} is not valid: {error}") from None
    if not isinstance(found, Mapping):
        raise ValueError(f'the lexicon {path} is not an object such as {{"GIF": "jif"}}')
    entries = cast("Mapping[str, object]", found)
    if len(entries) > MAX_FILE_ENTRIES:
        raise ValueError(f"the lexicon {path} has {len(entries)} words and the limit is {MAX_FILE_ENTRIES}")
    checked: dict[str, str] = {}
    for word, spelling in entries.items():
        if not isinstance(spelling, str):
            raise ValueError(f"the lexicon {path} has a spelling of {word!r} that is not a string")
        fault = entry_fault(word, spelling) or ("" if clean(word) not in checked else f"{clean(word)!r} is there twice")
        if fault:
            raise ValueError(f"the lexicon {path}: {fault}")
        checked[clean(word)] = spelling
    return checked


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        words = [word for word, _ in pairs]
        raise ValueError(f"{next(word for word in words if words.count(word) > 1)!r} is there twice")
    return found
