"""Hashes files of gigabytes beside other threads of the process. No torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

LEAST_PART, PART = 64 << 10, 64 << 20
"""The bytes that are hashed at once, without the lock of the interpreter.

A thread waits 5 ms for this lock while another one runs Python code, such as an import. `hashlib.file_digest` takes it
after every 256 KiB, so it would hash most of a large file only after the import.
"""


def digest_file(
    path: Path, name: str = "sha256", begin: bytes = b"", on_bytes: Callable[[int], None] = lambda _: None
) -> _Hash:
    """The hash called `name` of `begin` and the content of a file. Raises OSError.

    `on_bytes` gets the number of bytes that were hashed since its last call.
    """
    digest = hashlib.new(name, begin, usedforsecurity=False)
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        part = memoryview(bytearray(max(LEAST_PART, min(PART, size))))
        while size := file.readinto(part):
            digest.update(part[:size])
            on_bytes(size)
    return digest
