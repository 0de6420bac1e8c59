"""Checks of arguments, before anything is sent."""

from __future__ import annotations

import difflib
import operator
from collections.abc import AsyncIterable, Iterable, Mapping

from voxcpm_client.errors import InvalidArgument

NONE_TEXT = "Language models return None for pieces without text: leave those out, or write `piece or ''`"


def check_options(call: str, options: Mapping[str, object], known: type) -> None:
    """Raise TypeError for an option that the TypedDict `known` does not have, with the nearest name."""
    names = known.__annotations__
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the options are {', '.join(names)}"
            raise TypeError(f"{call}() has no option {name!r}{hint}")


def check_text(text: object, pause: type) -> None:
    """Raise TypeError for anything but a string or an iterable of strings and values of the type `pause`.

    Lists and tuples are checked as a whole.
    """
    if isinstance(text, str):
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
    """Raise TypeError if a piece of text, counted from 1, is neither a string nor of the type `pause`."""
    if not isinstance(piece, str | pause):
        hint = f". {NONE_TEXT}" if piece is None else ""
        raise TypeError(f"the pieces of a text must be str; piece {number} is {type(piece).__name__}{hint}")


def check_position(samples: object, name: str) -> None:
    """Raise TypeError if a position in a stream is not a whole number, and InvalidArgument if it is out of range."""
    if not hasattr(samples, "__index__"):
        raise TypeError(f"{name} is {type(samples).__name__}; it must be an int")
    if not 0 <= operator.index(samples) < 1 << 63:  # pyright: ignore[reportArgumentType]
        raise InvalidArgument(f"{name} is {samples}; it must be 0 or more, and at most what was received", field=name)


def check_string(text: object, name: str) -> None:
    """Raise TypeError if an argument is not a string."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is {type(text).__name__}; it must be str. {NONE_TEXT}")
