"""Fields of request bodies: one table checks them and describes them in the OpenAPI document."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from voxcpm_gateway.errors import HttpError

Kind = Literal["string", "integer", "number", "boolean", "object", "strings", "voice", "file"]
NAMES: Mapping[Kind, str] = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "strings": "an object with strings as values",
    "voice": "a string, or an object with the key id",
    "file": "a file",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request body.

    about: one line of documentation
    choices: the values of a string; empty for any
    bounds: least and greatest value of a number
    """

    name: str
    kind: Kind
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None

    def check(self, value: object, path: str) -> None:
        """Raise HttpError for a value that the field cannot have."""
        if not _fits(self.kind, value):
            raise HttpError(400, f"{path} is {_shown(value)}; it must be {NAMES[self.kind]}", param=path)
        if self.choices and value not in self.choices:
            raise HttpError(
                400,
                f"{path} is {_shown(value)}; it must be one of {', '.join(self.choices)}",
                param=path,
                code="unsupported_value",
            )
        if self.bounds and isinstance(value, int | float) and not self.bounds[0] <= value <= self.bounds[1]:
            raise HttpError(
                400, f"{path} is {value:g}; it must be {self.bounds[0]:g} to {self.bounds[1]:g}", param=path
            )

    def schema(self) -> dict[str, Any]:
        """The field as a schema of OpenAPI."""
        kinds: dict[Kind, dict[str, Any]] = {
            "file": {"type": "string", "format": "binary"},
            "strings": {"type": "object", "additionalProperties": {"type": "string"}},
            "voice": {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"id": {"type": "string"}}}]},
        }
        found = {**kinds.get(self.kind, {"type": self.kind}), "description": self.about}
        if self.choices:
            found["enum"] = list(self.choices)
        if self.bounds:
            found |= {"minimum": self.bounds[0], "maximum": self.bounds[1]}
        return found


def checked(body: object, fields: Sequence[Field], path: str = "") -> dict[str, Any]:
    """The values of a body that are not null. Raises HttpError that names an unknown, missing or wrong field."""
    if not isinstance(body, Mapping):
        raise HttpError(400, "the body must be an object of JSON", code="invalid_json")
    known = {field.name: field for field in fields}
    values: dict[str, Any] = {}
    for name, value in body.items():
        if name not in known:
            raise unknown(f"{path}{name}", name, known)
        if value is not None:
            known[name].check(value, f"{path}{name}")
            values[name] = value
    for field in fields:
        if field.required and field.name not in values:
            raise HttpError(400, f"{path}{field.name} is missing; it is required", param=f"{path}{field.name}")
    return values


def unknown(path: str, name: str, known: Mapping[str, object]) -> HttpError:
    """The error for a field that does not exist."""
    near = difflib.get_close_matches(name, known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return HttpError(400, f"the field {path[:100]!r} is unknown; {remedy}", param=path[:100], code="unknown_parameter")


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """The fields as a schema of OpenAPI for a whole body."""
    return {
        "type": "object",
        "properties": {field.name: field.schema() for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def _fits(kind: Kind, value: object) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "object":
            return isinstance(value, Mapping)
        case "strings":
            return isinstance(value, Mapping) and all(isinstance(one, str) for one in value.values())
        case "voice":
            is_id = isinstance(value, Mapping) and list(value) == ["id"] and isinstance(value["id"], str)
            return isinstance(value, str) or is_id
        case "file":
            return True


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
