"""The sources of settings, which are read once, at the start: a TOML file, environment variables and flags.

Flags override variables (VOXCPM_...), and variables override the file.

Nested settings are spelled `[engine] max_slots = 8` in TOML, `VOXCPM_ENGINE__MAX_SLOTS=8` in the environment and
`--engine.max-slots 8` as a flag. In all three, an unknown key is an error, and an empty value restores the default.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.machine.home import expanded
from voxcpm_grpc.settings.deprecated import REMEDIES
from voxcpm_grpc.settings.models import unnamed
from voxcpm_grpc.settings.schema import NAMED, SEPARATOR, Settings

FLAG_WIDTH = 42  # columns of a flag in the help text
NO_BREAK_SPACE = "\xa0"


def load(argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the file named by `--config` or VOXCPM_CONFIG, the environment and the flags.

    `argv` has flags only. `env` is the environment of the process by default. Raises StartupError, whose message has
    one line for each wrong value, with the source, the key, the value and the rule.
    """
    flags = _merged(_from_flags(argv or ()))
    variables = dict(_from_environment(os.environ if env is None else env))
    file = flags.pop("config", None), variables.pop("config", None)
    path = next((given.value for given in file if given and given.value), None)
    return _validate({**(dict(_from_file(Path(path))) if path else {}), **variables, **flags})


def from_values(values: Mapping[str, Any]) -> Settings:
    """The settings of a program that names them itself, by dotted key: `{"engine.max_slots": 8}`.

    None leaves a setting at its default; the environment is not read. Raises StartupError, one line for each fault.
    """
    source = "the program"
    given = {key: value for key, value in values.items() if value is not None}
    return _validate({_known(key, key, source, str): _Given(value, source) for key, value in given.items()})


def to_toml(settings: Settings) -> str:
    """`settings` as a TOML document. `load` reads it back to equal settings. Settings without a value are comments.

    It has deprecated settings if their values are not the defaults.
    """
    sections: dict[str, list[str]] = {}
    for key, field in FIELDS.items():
        section, _, name = key.rpartition(".")
        value = _value(settings, key)
        if key in REMEDIES and value == field.default:
            continue
        line = f'# {name} = ""' if value is None else f"{name} = {_toml(value)}"
        sections.setdefault(section, []).append(f"{line}  # {field.description}")
    return "\n".join("\n".join([f"[{name}]"] * bool(name) + lines) + "\n" for name, lines in sections.items())


def help_text() -> str:
    """The text of `serve --help`: every flag that is not deprecated, with its type, meaning and default, by section."""
    rows = [
        ("", "--config FILE", "TOML file of settings"),
        ("", "--print-config", "print the effective settings as TOML and exit"),
    ]
    for key, field in CURRENT.items():
        default = "" if field.default is None else f" (default:{NO_BREAK_SPACE}{_plain(field.default)})"
        rows.append((key.rpartition(".")[0], f"{_flag(key)} {_kind(field)}", f"{field.description}{default}"))
    lines = [
        "Each setting can be a flag, an environment variable (VOXCPM_ENGINE__MAX_SLOTS for --engine.max-slots) or a"
    ]
    lines += ["key in a TOML file. Flags override variables, and variables override the file."]
    for section, flag, text in rows:
        heading = f"{SECTIONS.get(section, 'server')}:"
        if heading not in lines:
            lines += ["", heading]
        if len(flag) > FLAG_WIDTH:
            lines.append(f"  {flag}")
            flag = ""
        indent = " " * (FLAG_WIDTH + 3)
        lines += textwrap.wrap(text, 118, initial_indent=f"  {flag:{FLAG_WIDTH}} ", subsequent_indent=indent)
    return "\n".join(lines).replace(NO_BREAK_SPACE, " ") + "\n"


def flags() -> Iterator[Flag]:
    """Every setting that is not deprecated as a flag, in the order of the schema."""
    for key, field in CURRENT.items():
        kind = _kind(field)
        choices = tuple(kind.split("|")) if "|" in kind else ()
        yield Flag(_flag(key), field.description or "", choices, is_path=kind == "PATH")


def describe() -> str:
    """Every setting as a Markdown table for the documentation, and the deprecated ones with their remedies."""
    lines = ["| TOML key | Flag | Environment | Default | Meaning |", "|---|---|---|---|---|"]
    for key, field in CURRENT.items():
        default = "" if field.default is None else f"`{_plain(field.default)}`"
        names = " | ".join(f"`{name}`" for name in (key, _flag(key), _variable(key)))
        lines.append(f"| {names} | {default} | {field.description} |")
    lines += [
        "",
        "## Deprecated",
        "",
        "These settings still work, with a warning at the start. The next version refuses",
    ]
    lines += ["them.", "", "| TOML key | Instead |", "|---|---|"]
    lines += [f"| `{key}` | {remedy} |" for key, remedy in REMEDIES.items()]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, for the completion of command lines. `choices` is empty if it takes any value."""

    name: str
    description: str
    choices: tuple[str, ...]
    is_path: bool


@dataclass(frozen=True, slots=True)
class _Given:
    """A value that was given, and its source."""

    value: Any
    source: str


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _leaves(type(field.default), f"{prefix}{name}.")
        else:
            yield prefix + name, field


FIELDS: Mapping[str, FieldInfo] = dict(_leaves(Settings))
"""Every setting by its dotted TOML key, in the order of the schema."""
CURRENT: Mapping[str, FieldInfo] = {key: field for key, field in FIELDS.items() if key not in REMEDIES}
"""The settings that are not deprecated."""
SECTIONS: Mapping[str, str] = {
    name: field.description or "" for name, field in Settings.model_fields.items() if name not in FIELDS
}

# Kubernetes sets variables for every service in every pod: for a service `voxcpm`, VOXCPM_PORT=tcp://10.0.0.1:50051 and
# others like it. They are not settings.
_KUBERNETES = re.compile(
    r"VOXCPM_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?=|PORT(_\d+_[A-Z]+)?=\w+://|PORT_\d+_[A-Z]+_(PROTO|PORT|ADDR)=)"
)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _variable(key: str) -> str:
    return "VOXCPM_" + key.upper().replace(".", "__")


def _known(key: str, written: str, source: str, spell: Callable[[str], str]) -> str:
    if key in FIELDS:
        return key
    nearest = difflib.get_close_matches(key, CURRENT, 1)
    remedy = f"did you mean {spell(nearest[0])}?" if nearest else "--help lists every setting"
    raise StartupError(f"unknown setting {written} in {source}; {remedy}")


def _from_flags(argv: Sequence[str]) -> Iterator[tuple[str, _Given]]:
    words = list(reversed(argv))
    while words:
        word = words.pop()
        if not word.startswith("--"):
            raise StartupError(f"unexpected argument {word!r}; settings are flags such as --model demo")
        name, equals, value = word.partition("=")
        key = name[2:].replace("-", "_")
        if key != "config":
            _known(key, name, "the flags", _flag)
        if not equals:
            if words and not words[-1].startswith("--"):
                value = words.pop()
            elif key in FIELDS and FIELDS[key].annotation is bool:
                value = "true"
            else:
                raise StartupError(f"the flag {name} needs a value")
        yield key, _Given(value, f"the flag {name}")


def _merged(flags: Iterator[tuple[str, _Given]]) -> dict[str, _Given]:
    """The flags by key. The last value of a flag counts, but models with names and adapters are joined.

    Raises StartupError.
    """
    found: dict[str, _Given] = {}
    for key, given in flags:
        if key == "lora" and key in found:
            given = _Given(f"{found[key].value},{given.value}", given.source)
        elif key == "model" and key in found:
            values = found[key].value, given.value
            named = [NAMED.match(value) is not None for value in values]
            if all(named):
                given = _Given(SEPARATOR.join(values), given.source)
            elif any(named):
                raise StartupError(unnamed(values[named.index(False)]))
        found[key] = given
    return found


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for name, value in env.items():
        if not name.startswith("VOXCPM_") or name.startswith("VOXCPM_CLIENT_"):  # the client has variables of its own
            continue
        if _KUBERNETES.match(f"{name}={value}"):
            continue
        key = name.removeprefix("VOXCPM_").lower().replace("__", ".")
        if key != "config":
            _known(key, name, "the environment", _variable)
        yield key, _Given(value, f"the environment variable {name}")


def _from_file(path: Path) -> Iterator[tuple[str, _Given]]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"the settings file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # the TOML or the UTF-8 is broken
        raise StartupError(f"the settings file {path} is not valid TOML: {error}") from None
    source = f"the file {path}"
    for name, value in table.items():
        if name not in SECTIONS:
            yield _known(name, name, source, str), _Given(value, source)
        elif not isinstance(value, dict):
            raise StartupError(f"{name} is a section in {source}; write [{name}] with its settings below")
        else:
            for leaf, inner in value.items():
                yield _known(f"{name}.{leaf}", f"{name}.{leaf}", source, str), _Given(inner, source)


def _validate(given: Mapping[str, _Given]) -> Settings:
    tree: dict[str, Any] = {}
    for key, one in given.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = _typed(FIELDS[key], one.value)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        lines: list[str] = []
        for fault in error.errors():
            path = ".".join(map(str, fault["loc"])) + "."
            key = next((key for key in given if path.startswith(f"{key}.")), None)
            if key is None:  # the rule is about several settings of a section, which its message names
                lines.append(fault["msg"])
                continue
            value = textwrap.shorten(repr(given[key].value), 80, placeholder="...")
            lines.append(f"{key} is {value} in {given[key].source}; {_rule(fault['type'], fault['msg'])}")
        raise StartupError("\n".join(lines)) from None


def _typed(field: FieldInfo, value: Any) -> Any:
    """`value` for the schema, which converts numbers from text itself, but not lists, home directories and choices."""
    if not isinstance(value, str):
        return value
    if not value:
        return field.default
    if Path in get_args(field.annotation) and value.startswith("~/"):
        return expanded(value)
    if get_origin(field.annotation) is tuple:
        return tuple(part.strip() for part in value.split(","))
    if get_origin(field.annotation) is Literal:
        return next((choice for choice in get_args(field.annotation) if str(choice) == value), value)
    return value


def _rule(kind: str, message: str) -> str:
    """The rule that a value broke, in this program's own terms."""
    if kind == "path_type":
        return "it must be a path"
    if kind.endswith(("_parsing", "_type")):  # the message already quotes the value
        message = message.partition(",")[0]
    return re.sub("^(Input|Tuple) should", "it must", message)


def _kind(field: FieldInfo) -> str:
    """The type of a flag's value: a word such as `INT`, or the choices."""
    if get_origin(field.annotation) is Literal:
        return "|".join(map(str, get_args(field.annotation)))
    names = {bool: "true|false", Path: "PATH", str: "TEXT", float: "NUMBER"}
    kinds = (field.annotation, *get_args(field.annotation))
    kinds += tuple(inner for kind in kinds for inner in get_args(kind))  # an annotated item has its type inside
    kind = next((name for kind, name in names.items() if kind in kinds), "INT")
    return f"{kind},..." if get_origin(field.annotation) is tuple else kind


def _value(settings: Settings, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, name)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case str() | Path():  # JSON and TOML escape alike, except DEL
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return str(value)


def _plain(value: Any) -> str:
    """A default as a user types it on a command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else _toml(value).strip('"')
