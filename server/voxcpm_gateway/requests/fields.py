"""Fields of request bodies: one table checks them, describes them in the OpenAPI document and names them in errors."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any, Literal, cast

from voxcpm_gateway.errors import HttpError

Kind = Literal["string", "text", "integer", "number", "boolean", "object", "strings", "voice", "file"]
NAMES: Mapping[Kind, str] = {
    "string": "a string",
    "text": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "strings": "an object with strings as values",
    "voice": "a string, or an object with the key id",
    "file": "a file",
}
UNSIGNED = (0, 2**32 - 1)  # the contract has these whole numbers, unless a field has other bounds
SEEDS = (0, 2**63 - 1)
SPEECH_LANGUAGE = ("config.turn.language", "turn.language")  # what a field sets that is not the language of the text
SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN_CHARS = 60  # characters of a caller's value in an error
SHOWN_KEY = 100
EXACT = 2**53  # below it, a float has every whole number


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request body.

    kind: a `text` is a string that is spoken, and half of a surrogate pair becomes U+FFFD in it; in a `string`, half of
        a surrogate pair is an error
    about: one line of documentation
    choices: the values of a string, in lower case; callers may use any case; empty for any value
    bounds: least and greatest value of a number
    fields: those of an object
    empty_counts: True if an empty string is a value; otherwise it counts as left out, as null does
    sets: fields of the gRPC request that the field sets, by their paths or the last names of their paths, if they have
        other names; errors of the server then name this field
    """

    name: str
    kind: Kind
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    fields: tuple[Field, ...] = ()
    empty_counts: bool = False
    sets: tuple[str, ...] = ()

    def value(self, given: object, path: str) -> Any:
        """The value that a caller gives; None if it counts as left out. Raises HttpError for what cannot be one."""
        if self.kind == "voice" and isinstance(given, Mapping) and list(cast("Mapping[str, object]", given)) == ["id"]:
            given = cast("Mapping[str, object]", given)["id"]
        if given is None or (given in ("", b"") and self.kind in STRINGS and not self.empty_counts):
            return None
        if not _fits(self.kind, given):
            raise self._refused(given, path, NAMES[self.kind])
        if isinstance(given, str):
            return self._string(given, path)
        if self.kind in ("integer", "number"):
            return self._number(cast(float, given), path)
        if self.fields:
            return checked(given, self.fields, f"{path}.")
        if isinstance(given, Mapping):
            for text in (*given, *given.values()):
                refuse_surrogates(text, path)
        return given

    def _string(self, given: str, path: str) -> str:
        if self.choices:
            given = given.lower()
            if given not in self.choices:
                raise self._refused(given, path, f"one of {', '.join(self.choices)}", "unsupported_value")
        if self.kind == "text":
            return mended(given)
        refuse_surrogates(given, path)
        return given

    def _number(self, given: float, path: str) -> float:
        whole = self.kind == "integer"
        if whole and isinstance(given, float) and isfinite(given) and not given.is_integer():
            raise self._refused(given, path, NAMES[self.kind])
        if (bounds := self.bounds or (UNSIGNED if whole else None)) is None:
            if not isfinite(given):
                raise self._refused(given, path, NAMES[self.kind])
        elif not bounds[0] <= given <= bounds[1]:  # NaN fails, too
            raise self._refused(given, path, f"{_shown(bounds[0])} to {_shown(bounds[1])}")
        return int(given) if whole else given

    def _refused(self, given: object, path: str, rule: str, code: str | None = None) -> HttpError:
        return HttpError(400, f"{path} is {_shown(given)}; it must be {rule}", param=path, code=code)

    def schema(self) -> dict[str, Any]:
        """The field as a schema of OpenAPI."""
        kinds: dict[Kind, dict[str, Any]] = {
            "text": {"type": "string"},
            "file": {"type": "string", "format": "binary"},
            "strings": {"type": "object", "additionalProperties": {"type": "string"}},
            "voice": {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"id": {"type": "string"}}}]},
        }
        found = {**kinds.get(self.kind, {"type": self.kind}), "description": self.about}
        if self.choices:
            found["enum"] = list(self.choices)
        if self.bounds:
            found |= {"minimum": self.bounds[0], "maximum": self.bounds[1]}
        return found | (object_schema(self.fields) if self.fields else {})


STRINGS: tuple[Kind, ...] = ("string", "text", "voice", "file")


def checked(body: object, fields: Sequence[Field], path: str = "") -> dict[str, Any]:
    """The values of a body that are not left out. Raises HttpError that names an unknown, missing or wrong field."""
    if not isinstance(body, Mapping):
        raise HttpError(400, "the body must be an object of JSON", code="invalid_json")
    given = cast("Mapping[str, object]", body)
    known = {field.name: field for field in fields}
    values: dict[str, Any] = {}
    for name, one in given.items():
        if name not in known:
            raise unknown(path, name, known)
        if (value := known[name].value(one, f"{path}{name}")) is not None:
            values[name] = value
    for field in fields:
        if field.required and field.name not in values:
            fault = "missing" if given.get(field.name) is None else "empty"
            where = f"{path}{field.name}"
            raise HttpError(400, f"{where} is {fault}; it is required", param=where)
    return values


def unknown(path: str, name: str, known: Mapping[str, object]) -> HttpError:
    """The error for a field that does not exist at a path."""
    shown = name[:SHOWN_KEY]
    near = difflib.get_close_matches(shown, known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    where = f"{path}{shown}"
    return HttpError(400, f"the field {where!r} is unknown; {remedy}", param=where, code="unknown_parameter")


def names_of(fields: Sequence[Field], given: Collection[str], path: str = "") -> dict[str, str]:
    """The names of fields by what they set in the gRPC request. Of several that set the same, one that is given.

    given: the names of the fields that the request has
    """
    names: dict[str, str] = {}
    for field in sorted(fields, key=lambda field: field.name in given):
        names |= dict.fromkeys((field.name, *field.sets), f"{path}{field.name}")
        names |= names_of(field.fields, (), f"{path}{field.name}.")
    return names


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """The fields as a schema of OpenAPI for a whole body."""
    return {
        "type": "object",
        "properties": {field.name: field.schema() for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def mended(text: str) -> str:
    """A text without halves of surrogate pairs: two that follow each other are joined, others become U+FFFD."""
    if SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def refuse_surrogates(text: str, path: str) -> None:
    """Raise HttpError for a string with half of a surrogate pair, which is no character."""
    if not text.isascii() and (found := SURROGATE.search(text)):
        raise HttpError(
            400,
            f"{path} has half of a surrogate pair, U+{ord(found[0]):04X}, at index {found.start()}; a character was "
            "cut in two: send whole characters",
            param=path,
        )


def _fits(kind: Kind, value: object) -> bool:
    match kind:
        case "string" | "text" | "voice":
            return isinstance(value, str)
        case "integer" | "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "object":
            return isinstance(value, Mapping)
        case "strings":
            values = cast("Mapping[str, object]", value).values() if isinstance(value, Mapping) else (None,)
            return all(isinstance(one, str) for one in values)
        case "file":
            return isinstance(value, bytes)


def _shown(value: object) -> str:
    """A value of JSON in an error, as JSON writes it as far as it is short."""
    match value:
        case str():
            return repr(value if len(value) <= SHOWN_CHARS else f"{value[: SHOWN_CHARS - 3]}...")
        case float() if value.is_integer() and abs(value) < EXACT:
            return str(int(value))
        case float() if isnan(value):
            return "NaN, which is not JSON"
        case bool() | int() | float() | None:
            return json.dumps(value)
        case Mapping():
            return "an object"
        case _:
            return "a list"
