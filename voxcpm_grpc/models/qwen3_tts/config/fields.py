"""Reads the objects of a config.json into dataclasses, and collects all faults.

The official classes have defaults that no released checkpoint has. So a field without a default must be in the file.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def read_fields(kind: type[T], data: Any, path: str, faults: list[str]) -> T | None:
    """`data` as the dataclass `kind`, whose fields are int, float, bool, str or tuple[int, ...].

    Integers are sizes and counts: they must be 1 or more. Keys that the dataclass does not name are ignored. Faults are
    appended with the path of their field, and the result is None if there are any.
    """
    if not isinstance(data, Mapping):
        faults.append(f"{path} is missing" if data is None else f"{path} is {_shown(data)}, expected an object")
        return None
    before, values, hints = len(faults), {}, typing.get_type_hints(kind)
    for field in dataclasses.fields(typing.cast(Any, kind)):
        name = f"{path}.{field.name}" if path else field.name
        if field.name in data:
            values[field.name] = _read(hints[field.name], data[field.name], name, faults)
        elif field.default is dataclasses.MISSING:
            faults.append(f"{name} is missing")
    return kind(**values) if len(faults) == before else None


def _read(kind: Any, value: Any, name: str, faults: list[str]) -> Any:
    if typing.get_origin(kind) is tuple:
        if isinstance(value, list) and value:
            return tuple(_read(int, one, f"{name}[{place}]", faults) for place, one in enumerate(value))
        faults.append(f"{name} is {_shown(value)}, expected a list of numbers")
        return ()
    if kind is float and type(value) is int:
        value = float(value)
    elif kind is int and type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        faults.append(f"{name} is {_shown(value)}, expected {kind.__name__}")
    elif kind is int and value < 1:
        faults.append(f"{name} is {value}, it must be 1 or more")
    return value


def _shown(value: Any) -> str:
    return text if len(text := repr(value)) <= 40 else type(value).__name__
