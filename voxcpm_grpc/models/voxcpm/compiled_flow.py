"""The diffusion on a CPU with evaluations that PyTorch's compiler has compiled for a number of sequences.

A compiled evaluation is a shared library that contains the weights. An engine loads those that an earlier start has
left in the cache, and uses the plain loop for all other numbers of sequences.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxcpm_grpc import lora_files
from voxcpm_grpc.layers.flow import guided
from voxcpm_grpc.models.voxcpm.flow import FlowSchedule, PlainFlow
from voxcpm_grpc.models.voxcpm.local import LocDiT

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[2]
SOURCES = "layers/*.py", "attention/*.py", "kernels/reference.py", "models/voxcpm/*.py"
UNUSED_SECONDS = 30 * 24 * 3600.0  # after which a file is deleted
MOST_SEQUENCES = 8
TOLERANCE = 1e-3  # of a compiled evaluation against the plain one, relative to the largest value

# (x [b, P, D], time token [1, e], mu [m, 2b, e], condition [P, 2b, e], cfg [b], step size []) -> x after the step
Evaluation = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def plain_evaluation(dit: LocDiT) -> Evaluation:
    """The definition of what is compiled: one Euler step."""

    def evaluate(x: Tensor, token: Tensor, mu: Tensor, condition: Tensor, cfg: Tensor, size: Tensor) -> Tensor:
        conditional, unconditional = dit(x, token, mu, condition).chunk(2)
        return x - size * guided(conditional, unconditional, cfg[:, None, None])

    return evaluate


def example(dit: LocDiT, patch: tuple[int, int], sequences: int) -> tuple[Tensor, ...]:
    """Arguments of an evaluation, for patches of (P, D)."""
    random = partial(torch.randn, generator=torch.Generator().manual_seed(sequences))
    x, before, mu = random(sequences, *patch), random(sequences, *patch), random(sequences, dit.mu_tokens, dit.hidden)
    mu, condition = (part.contiguous() for part in dit.context(mu, before))
    return x, random(1, dit.hidden), mu, condition, torch.full((sequences,), 2.0), torch.tensor(0.1)


class CompiledFlow:
    """A `FlowLoop`. Batches of another size, and those with LoRA adapters, take the plain loop."""

    def __init__(self, plain: PlainFlow, evaluations: Mapping[int, Evaluation]) -> None:
        self.plain, self.evaluations = plain, evaluations

    def __call__(
        self,
        noise: Tensor,
        mu: Tensor,
        condition: Tensor,
        cfg: Tensor,
        schedule: FlowSchedule,
        adapter: Tensor | None = None,
    ) -> Tensor:
        evaluate = self.evaluations.get(len(noise))
        if evaluate is None or adapter is not None:
            return self.plain(noise, mu, condition, cfg, schedule, adapter)
        mu, condition = (part.contiguous() for part in self.plain.dit.context(mu, condition))
        x = noise.contiguous()
        for token, size in zip(schedule.tokens, schedule.sizes, strict=True):
            x = evaluate(x, token, mu, condition, cfg, size)
        return x


@dataclass(frozen=True, slots=True)
class CompiledFiles:
    """The compiled evaluations of one model for this CPU, this PyTorch and this code, in a cache folder."""

    folder: Path
    key: str

    @classmethod
    def of(cls, folder: Path, fingerprint: str, merged: Path | None) -> CompiledFiles:
        """Those of a checkpoint with this fingerprint, with a LoRA adapter merged into it. Raises OSError."""
        adapter = lora_files.fingerprint(merged) if merged else ""
        facts = torch.__version__, _cpu(), str(torch.get_num_threads()), fingerprint, adapter
        known = hashlib.sha256("\0".join(facts).encode())
        for source in sorted(path for pattern in SOURCES for path in PACKAGE.glob(pattern)):
            known.update(source.read_bytes())
        return cls(folder, known.hexdigest()[:32])

    def path(self, sequences: int) -> Path:
        return self.folder / f"{self.key}-{sequences}.so"

    def missing(self, most: int) -> list[int]:
        """The numbers of sequences, up to `most`, that have no file."""
        return [count for count in range(1, min(most, MOST_SEQUENCES) + 1) if not self.path(count).is_file()]

    def load(self, dit: LocDiT, patch: tuple[int, int]) -> dict[int, Evaluation]:
        """The evaluations by number of sequences. A file that does not compute what `dit` does is deleted."""
        paths = {count: self.path(count) for count in range(1, MOST_SEQUENCES + 1)}
        present = {count: path for count, path in paths.items() if path.is_file()}
        if present and not _private(self.folder):
            logger.warning("compiled evaluations are not loaded: other users may write to their folder")
            return {}
        loaded = {count: load_evaluation(path, dit, patch, count) for count, path in present.items()}
        found = {count: evaluate for count, evaluate in loaded.items() if evaluate}
        for count, path in present.items():
            if count in found:
                path.touch()
            else:
                path.unlink(missing_ok=True)
        if present:
            logger.info("compiled evaluations loaded=%d unusable=%d", len(found), len(present) - len(found))
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
def load_evaluation(path: Path, dit: LocDiT, patch: tuple[int, int], sequences: int) -> Evaluation | None:
    """The evaluation of a file; None if it cannot be loaded or differs from the plain one."""
    arguments = example(dit, patch, sequences)
    try:
        # The public function loads packages, and first imports the compiler, which takes two seconds.
        native: Any = torch._C
        library = native._aoti.AOTIModelContainerRunnerCpu(str(path), 1)

        def evaluate(*arguments: Tensor) -> Tensor:
            return library.run(list(arguments))[0]

        made, expected = evaluate(*arguments), plain_evaluation(dit)(*arguments)
    except Exception as error:  # a broken file has many kinds of errors
        logger.debug("the compiled evaluation %s cannot be loaded: %s", path.name, error)
        return None
    agrees = made.shape == expected.shape and (made - expected).abs().max() <= TOLERANCE * expected.abs().max()
    return evaluate if agrees else None
