"""Compiles kernels in parallel before their first launches.

Triton compiles a kernel when it is launched for the first time, one after another, which takes a minute for all kernels
of a large model. Here processes share the work. They write to Triton's cache, where the first launches find the result.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from voxcpm_grpc import progress

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[1]
MAX_PROCESSES = 16
DONE = "compiled"  # the name of the file in Triton's cache


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, and the types, constants and options of a launch as Triton writes them: JSON."""

    module: str
    name: str
    specialization: str


def precompile(run: Callable[[], object], key: str) -> None:
    """Compile the kernels that `run` launches, unless that was done before for this key.

    Within `run` the launches of kernels that are not compiled do nothing. `key` must name everything that the launches
    depend on besides the code of this package, Triton and the device.
    """
    import torch
    import triton
    from triton.runtime.cache import get_cache_manager

    device = f"{torch.cuda.get_device_name()} {torch.cuda.get_device_capability()}"
    known = hashlib.sha256("\0".join([triton.__version__, device, key]).encode())
    for source in sorted(PACKAGE.rglob("*.py")):
        known.update(source.read_bytes())
    cache = get_cache_manager(known.hexdigest())
    if cache.get_file(DONE):
        return
    started = monotonic()
    progress.report("kernels are being compiled")
    with progress.unreported():
        launches = record(run)
    processes = min(MAX_PROCESSES, os.cpu_count() or 1, len(launches))
    failed = compile_all(launches, processes)
    logger.info(
        "kernels compiled=%d failed=%d processes=%d seconds=%.1f",
        len(launches) - failed,
        failed,
        processes,
        monotonic() - started,
    )
    if not failed:
        cache.put(b"", DONE)


def record(run: Callable[[], object]) -> list[Launch]:
    """The launches of `run` whose kernels this process has not compiled. They do nothing."""
    from triton import knobs

    found: dict[Launch, None] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        function = fn.jit_function.fn
        found[Launch(function.__module__, function.__qualname__, compile["specialization_data"])] = None
        return True  # skips the compilation and the launch

    hooks: Any = knobs.runtime
    with hooks.scope():
        hooks.jit_cache_hook = note
        run()
    return list(found)


def compile_all(
    launches: Sequence[Launch], processes: int, command: Sequence[str] = (sys.executable, "-m", __name__)
) -> int:
    """Compile the kernels of these launches in so many processes; returns the number that failed.

    Each process runs `command`, which reads launches and answers them, as `main` does. Kernels whose process ends count
    as failed.
    """
    waiting: SimpleQueue[Launch] = SimpleQueue()
    for launch in launches:
        waiting.put(launch)
    answered = progress.counting("kernels are being compiled", len(launches))

    def work(_: int) -> int:
        compiled = 0
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                while True:
                    process.stdin.write(json.dumps(asdict(waiting.get_nowait())) + "\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                    if not answer:
                        break
                    compiled += json.loads(answer)
                    answered()
            except (Empty, OSError):  # everything is compiled, or the process ended
                pass
            finally:
                process.kill()
        return compiled

    with ThreadPoolExecutor(max(1, processes)) as threads:
        return len(launches) - sum(threads.map(work, range(processes)))


def main() -> None:
    """Compile each launch that arrives on stdin, as a line of JSON; answer 1, or 0 if it failed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the compiler prints to stdout what the assembler rejects
    for line in sys.stdin:
        try:
            _compile(Launch(**json.loads(line)))
            compiled = 1
        except Exception:
            logger.warning("a kernel cannot be compiled ahead", exc_info=True)
            compiled = 0
        print(compiled, file=answers, flush=True)


def _compile(launch: Launch) -> None:
    from importlib import import_module

    from triton.runtime import driver

    kernel = getattr(import_module(launch.module), launch.name).preload(launch.specialization)
    active: Any = driver.active
    active.launcher_cls(kernel.src, kernel.metadata)  # in Triton 3.6 it compiles a function of its own


if __name__ == "__main__":
    main()
