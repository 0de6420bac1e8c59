"""API keys, of which a file holds only hashes."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from voxcpm_grpc.errors import StartupError
from voxcpm_server.auth.principal import Principal

PREFIX = "voxcpm_"
"""The begin of every key, by which secret scanners and the server tell keys from other tokens."""
ID_BYTES, SECRET_BYTES = 6, 32
NAME = re.compile(r"[\w.@+-]{1,64}", re.ASCII)
KEY = re.compile(PREFIX + r"([0-9a-f]{12})_([\w-]{43})", re.ASCII)
FIELDS = {"name": str, "id": str, "hash": str, "created": datetime, "admin": bool}


@dataclass(frozen=True, slots=True)
class _Entry:
    hash: str
    principal: Principal


class Keys:
    """The keys of a file. A key is `voxcpm_ID_SECRET`; the file has its id and the SHA-256 of the whole key.

    A plain hash is enough, because the secret is 256 random bits and cannot be guessed.
    """

    def __init__(self, entries: Mapping[str, _Entry]) -> None:
        self._entries = entries

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read a file. Raises OSError, and StartupError with the number of the wrong entry."""
        try:
            table = tomllib.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise StartupError(f"the key file {path} is not valid TOML: {error}") from None
        listed = table.get("keys", [])
        if not isinstance(listed, list) or table.keys() - {"keys"}:
            raise StartupError(f"the key file {path} may have only [[keys]] entries; `voxcpm-grpc keys new` adds one")
        entries: dict[str, _Entry] = {}
        for number, fields in enumerate(listed, 1):
            if fault := _fault(fields):
                raise StartupError(f"entry {number} of the key file {path} {fault}")
            if fields["id"] in entries:
                raise StartupError(f"entry {number} of the key file {path} repeats the id {fields['id']}")
            principal = Principal(f"key:{fields['name']}", admin=fields.get("admin", False))
            entries[fields["id"]] = _Entry(fields["hash"], principal)
        return cls(entries)

    def principal(self, key: str) -> Principal | None:
        """The principal of a key, or None if there is no such key. Takes the same time for every wrong secret."""
        found = KEY.fullmatch(key)
        entry = self._entries.get(found[1]) if found else None
        expected = entry.hash if entry else "0" * 64
        return entry.principal if hmac.compare_digest(_hash(key), expected) and entry else None


def _fault(fields: Any) -> str:
    """The fault of an entry, empty if there is none."""
    if not isinstance(fields, dict):
        return "is not a table"
    if unknown := fields.keys() - FIELDS:
        return f"has the unknown field {min(unknown)}; the fields are {', '.join(FIELDS)}"
    for name in ("name", "id", "hash"):
        if name not in fields:
            return f"has no {name}"
    for name, value in fields.items():
        if not isinstance(value, FIELDS[name]):
            return f"has a wrong {name}"
    if not NAME.fullmatch(fields["name"]):
        return "has a name with other characters than letters, digits and . _ @ + -, or more than 64 of them"
    if not re.fullmatch("[0-9a-f]{12}", fields["id"]) or not re.fullmatch("[0-9a-f]{64}", fields["hash"]):
        return "has an id or a hash that `voxcpm-grpc keys new` did not write"
    return ""


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def create(name: str, path: Path, *, admin: bool = False) -> str:
    """Make a key and append its hash to a file, which only its owner can read if it is new. Returns the key.

    Raises StartupError for a bad name and a bad file, and OSError.
    """
    if not NAME.fullmatch(name):
        raise StartupError(
            f"the name {name[:80]!r} must have 1 to 64 of these characters: letters, digits and . _ @ + -"
        )
    if path.exists():
        Keys.read(path)
    id = secrets.token_hex(ID_BYTES)
    key = f"{PREFIX}{id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    created = datetime.now(UTC).replace(microsecond=0).isoformat()
    lines = [f'name = "{name}"', f'id = "{id}"', f'hash = "{_hash(key)}"', f"created = {created}"]
    entry = "\n".join(["[[keys]]", *lines, *["admin = true"] * admin]) + "\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        before = file.read()
        gap = b"" if not before else b"\n" if before.endswith(b"\n") else b"\n\n"
        file.write(gap + entry.encode())
    return key


def revoke(name: str, path: Path) -> int:
    """Remove the keys of this name or id from a file. Returns their number. Raises StartupError and OSError."""
    Keys.read(path)
    head, *entries = re.split(r"(?m)^(?=\[\[keys\]\])", path.read_text("utf-8"))
    kept = [entry for entry in entries if name not in (_fields(entry)["name"], _fields(entry)["id"])]
    if len(kept) < len(entries):
        new = path.with_name(f"{path.name}.new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, stat.S_IMODE(path.stat().st_mode))
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(head + "".join(kept))
        new.replace(path)  # a server never sees half a file
    return len(entries) - len(kept)


def _fields(entry: str) -> dict[str, Any]:
    [fields] = tomllib.loads(entry)["keys"]
    return fields


def listed(path: Path) -> list[dict[str, Any]]:
    """The entries of a file without their hashes, the oldest first. Raises StartupError and OSError."""
    Keys.read(path)
    entries = tomllib.loads(path.read_text("utf-8")).get("keys", [])
    return [{name: value for name, value in entry.items() if name != "hash"} for entry in entries]
