"""The files of a LoRA adapter in the official format. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

CONFIG, WEIGHTS = "lora_config.json", "lora_weights.safetensors"
LEGACY = "lora_weights.ckpt"
"""A pickle, which is never read."""


def fingerprint(directory: Path) -> str:
    """32 hexadecimal digits, a hash of the content of an adapter; empty if a file is missing. Raises OSError."""
    combined = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            with (directory / name).open("rb") as file:
                combined.update(hashlib.file_digest(file, "sha256").digest())
        except (FileNotFoundError, NotADirectoryError):
            return ""
    return combined.hexdigest()[:32]
