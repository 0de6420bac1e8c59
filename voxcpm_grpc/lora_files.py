"""The files of a LoRA adapter in the official format. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from voxcpm_grpc.file_digest import digest_file

CONFIG, WEIGHTS = "lora_config.json", "lora_weights.safetensors"
LEGACY = "lora_weights.ckpt"
"""A pickle, which is never read."""


def fingerprint(directory: Path) -> str:
    """32 hexadecimal digits, a hash of the content of an adapter; empty if a file is missing. Raises OSError."""
    combined = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            combined.update(digest_file(directory / name).digest())
        except (FileNotFoundError, NotADirectoryError):
            return ""
    return combined.hexdigest()[:32]
