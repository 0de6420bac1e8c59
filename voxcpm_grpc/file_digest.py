"""Hashes files of gigabytes beside other threads of the process. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

PART = 64 << 20
"""The bytes that are hashed at once, without the lock of the interpreter.

To get that lock back takes 5 ms while another thread runs Python code, an import for example. With parts of 256 KiB, as
those of `hashlib.file_digest`, a file is hardly read meanwhile.
"""


def digest_file(
    path: Path, name: str = "sha256", begin: bytes = b"", on_bytes: Callable[[int], None] = lambda _: None
) -> _Hash:
    """The hash called `name` of `begin` and the content of a file. Raises OSError.

    `on_bytes` gets the number of bytes that were hashed since its last call.
    """
    digest = hashlib.new(name, begin, usedforsecurity=False)
    with path.open("rb", buffering=0) as file:
        part = memoryview(bytearray(max(1, min(PART, path.stat().st_size))))
        while size := file.readinto(part):
            digest.update(part[:size])
            on_bytes(size)
    return digest
