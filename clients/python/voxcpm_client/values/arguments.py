"""Checks of arguments, before anything is sent."""

from __future__ import annotations

import difflib
import operator
from collections.abc import AsyncIterable, Iterable, Mapping
from functools import cache
from typing import cast, get_type_hints

from voxcpm_client.errors import InvalidArgument

NONE_TEXT = "Language models return None for pieces without text: leave those out, or write `piece or ''`"


def check_options(call: str, options: Mapping[str, object], known: type) -> None:
    """Raise TypeError for an option that the TypedDict `known` does not have, with the nearest name, and for one that
    must be a string. Raise InvalidArgument for a string that cannot be sent."""
    names = known.__annotations__
    for name, value in options.items():
        if name in names:
            if name in _strings(known):
                check_strings(**{name: value})
            elif name == "labels":
                check_labels(value)
        else:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the options are {', '.join(names)}"
            raise TypeError(f"{call}() has no option {name!r}{hint}")


@cache
def _strings(known: type) -> frozenset[str]:
    """The options of a TypedDict that are strings."""
    return frozenset(name for name, kind in get_type_hints(known).items() if kind is str)


def check_text(text: object, pause: type) -> None:
    """Raise TypeError for anything but a string or an iterable of strings and values of the type `pause`.

    Lists and tuples are checked as a whole.
    """
    if isinstance(text, str):
        check_string(text, "text")
        return
    if text is None:
        raise TypeError(f"text is None; it must be a str or an iterable of str. {NONE_TEXT}")
    if isinstance(text, bytes | bytearray):
        raise TypeError(f"text is {type(text).__name__}; it must be str: decode it, for example with .decode('utf-8')")
    if isinstance(text, list | tuple):
        for number, piece in enumerate(text, 1):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            check_piece(piece, number, pause)  # pyright: ignore[reportUnknownArgumentType]
    elif not isinstance(text, Iterable | AsyncIterable):
        raise TypeError(f"text is {type(text).__name__}; it must be a str or an iterable of str")


def check_piece(piece: object, number: int, pause: type) -> None:
    """Raise TypeError if a piece of text, counted from 1, is neither a string nor of the type `pause`, and
    InvalidArgument for a string that cannot be sent."""
    if isinstance(piece, str):
        _check_characters(piece, f"piece {number} of the text", "text")
    elif not isinstance(piece, pause):
        hint = f". {NONE_TEXT}" if piece is None else ""
        raise TypeError(f"the pieces of a text must be str; piece {number} is {type(piece).__name__}{hint}")


def check_position(samples: object, name: str) -> None:
    """Raise TypeError if a position in a stream is not a whole number, and InvalidArgument if it is out of range."""
    if not hasattr(samples, "__index__"):
        raise TypeError(f"{name} is {type(samples).__name__}; it must be an int")
    if not 0 <= operator.index(samples) < 1 << 63:  # pyright: ignore[reportArgumentType]
        raise InvalidArgument(f"{name} is {samples}; it must be 0 or more, and at most what was received", field=name)


def check_string(text: object, name: str) -> None:
    """Raise TypeError if an argument is not a string, and InvalidArgument if it cannot be sent."""
    if not isinstance(text, str):
        hint = f". {NONE_TEXT}" if name == "text" and text is None else ""
        raise TypeError(f"{name} is {type(text).__name__}; it must be str{hint}")
    _check_characters(text, name, name)


def check_strings(**arguments: object) -> None:
    """Do the same as `check_string`, for arguments by name that may be None."""
    for name, value in arguments.items():
        if value is not None:
            check_string(value, name)


def check_labels(labels: object) -> None:
    """Raise TypeError unless labels are None or a mapping of strings, and InvalidArgument if they cannot be sent."""
    if labels is None:
        return
    if not isinstance(labels, Mapping):
        raise TypeError(f"labels is {type(labels).__name__}; it must be a mapping of str to str")
    for key, value in cast("Mapping[object, object]", labels).items():
        check_string(key, "a key of labels")
        check_string(value, f"the label {key!r}")


def _check_characters(text: str, name: str, field: str) -> None:
    """Raise InvalidArgument if UTF-8 cannot represent a string."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X} at index {error.start}"
        raise InvalidArgument(
            f"{name} has {half}, which is half of a character or a byte that was not UTF-8; send whole characters",
            field=field,
        ) from None
