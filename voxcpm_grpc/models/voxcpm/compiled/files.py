"""The compiled parts of a model in a cache folder, each a shared library that contains its weights.

An engine loads those that an earlier start has left there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxcpm_grpc import lora_files

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[3]
SOURCES = "layers/*.py", "attention/*.py", "kernels/*/reference.py", "models/voxcpm/**/*.py"
UNUSED_SECONDS = 30 * 24 * 3600.0  # seconds without use after which a file is deleted
TOLERANCE = 1e-3  # a compiled part may differ so much from the plain one, relative to the largest value

Compiled = Callable[..., list[Tensor]]  # takes tensors whose layouts are those of the examples


@dataclass(frozen=True, slots=True)
class CompiledFiles:
    """The compiled parts of one model for this CPU, this PyTorch and this code, in a cache folder."""

    folder: Path
    key: str

    @classmethod
    def of(cls, folder: Path, fingerprint: str, merged: Path | None) -> CompiledFiles:
        """The files of a checkpoint with this fingerprint, with a LoRA adapter merged into it. Raises OSError."""
        adapter = lora_files.fingerprint(merged) if merged else ""
        facts = torch.__version__, _cpu(), str(torch.get_num_threads()), fingerprint, adapter
        known = hashlib.sha256("\0".join(facts).encode())
        for source in sorted(path for pattern in SOURCES for path in PACKAGE.glob(pattern)):
            known.update(source.read_bytes())
        return cls(folder, known.hexdigest()[:32])

    def path(self, part: str) -> Path:
        return self.folder / f"{self.key}-{part}.so"

    def missing(self, parts: Iterable[str]) -> list[str]:
        """Those of these parts that have no file."""
        return [part for part in parts if not self.path(part).is_file()]

    def load(self, loaders: Mapping[str, Callable[[Path], Compiled | None]]) -> dict[str, Compiled]:
        """The parts that have files. A file for which the loader of its part returns None is deleted."""
        present = {part: self.path(part) for part in loaders if self.path(part).is_file()}
        if present and not _private(self.folder):
            logger.warning("compiled parts are not loaded: other users may write to their folder")
            return {}
        loaded = {part: loaders[part](path) for part, path in present.items()}
        found = {part: compiled for part, compiled in loaded.items() if compiled}
        for part, path in present.items():
            if part in found:
                path.touch()
            else:
                path.unlink(missing_ok=True)
        if present:
            logger.info("compiled parts loaded=%d unusable=%d", len(found), len(present) - len(found))
        return found


def delete_unused(folder: Path) -> None:
    """Delete the files of a cache folder that no start has loaded for UNUSED_SECONDS."""
    for path in folder.glob("*.so"):
        if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
            path.unlink(missing_ok=True)


def _cpu() -> str:
    """The model and the instructions of the CPU."""
    words = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    try:
        described = Path("/proc/cpuinfo").read_text("utf-8", "replace").partition("\n\n")[0]
    except OSError:
        described = ""
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(words + [line for line in described.splitlines() if line.startswith(wanted)])


def _private(folder: Path) -> bool:
    """True if no other user can write to a folder: a file of it is code that the engine runs."""
    if not hasattr(os, "getuid"):
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@torch.inference_mode()
def load_library(path: Path, arguments: Sequence[Tensor], expected: Sequence[Tensor]) -> Compiled | None:
    """The function of a file; None if it cannot be loaded, or does not give what is expected for these arguments."""
    try:
        # The public function loads packages, and first imports the compiler, which takes two seconds.
        native: Any = torch._C
        library = native._aoti.AOTIModelContainerRunnerCpu(str(path), 1)

        def run(*arguments: Tensor) -> list[Tensor]:
            return library.run(list(arguments))

        made = run(*arguments)
    except Exception as error:  # a broken file has many kinds of errors
        logger.debug("the compiled part %s cannot be loaded: %s", path.name, error)
        return None
    return run if len(made) == len(expected) and all(map(_agree, made, expected)) else None


def _agree(made: Tensor, expected: Tensor) -> bool:
    return made.shape == expected.shape and bool((made - expected).abs().max() <= TOLERANCE * expected.abs().max())
