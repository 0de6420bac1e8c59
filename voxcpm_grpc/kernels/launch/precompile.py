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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any

from voxcpm_grpc import progress

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[2]
MAX_PROCESSES = 16
DONE = "compiled"  # Triton's cache has a file of this name
STEP = "kernels are being compiled"
END = -1  # the answers end with it


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

    capability = torch.cuda.get_device_capability()
    device = f"{torch.cuda.get_device_name()} {capability}"
    known = hashlib.sha256("\0".join([triton.__version__, device, key]).encode())
    for source in sorted(PACKAGE.rglob("*.py")):
        known.update(source.read_bytes())
    cache = get_cache_manager(known.hexdigest())
    if cache.get_file(DONE):
        return
    started = monotonic()
    progress.report(STEP)
    count = min(MAX_PROCESSES, len(os.sched_getaffinity(0)))
    command = sys.executable, "-m", __name__, *map(str, capability)
    with compilers(count, command) as processes, Compilation(processes) as compilation:
        with progress.unreported():
            record(run, compilation.add)
        recorded = monotonic() - started
        failed = compilation.finish()
    logger.info(
        "kernels compiled=%d failed=%d processes=%d seconds=%.1f recorded_seconds=%.1f",
        compilation.total - failed,
        failed,
        count,
        monotonic() - started,
        recorded,
    )
    if not failed:
        cache.put(b"", DONE)


def hash_kernels() -> None:
    """Compute what the keys of Triton's cache have in common: the hashes of Triton and of the kernels imported so far.

    Otherwise the first launches do so. Uses no device.
    """
    from triton.runtime.cache import triton_key
    from triton.runtime.jit import JITFunction

    triton_key()
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{PACKAGE.name}."):
            for kernel in vars(module).values():
                if isinstance(kernel, JITFunction):
                    _ = kernel.cache_key


def record(run: Callable[[], object], found: Callable[[Launch], object]) -> None:
    """Report each launch of `run` whose kernel this process has not compiled, once. The launches do nothing."""
    from triton import knobs

    seen: set[Launch] = set()
    skipped: list[tuple[dict[str, Any], str]] = []

    def note(*, fn: Any, key: str, compile: dict[str, Any], **_: Any) -> bool:
        function = fn.jit_function.fn
        launch = Launch(function.__module__, function.__qualname__, compile["specialization_data"])
        if launch not in seen:
            seen.add(launch)
            found(launch)
        kernels = fn.jit_function.device_caches[compile["device"]][0]
        kernels[key] = SkippedKernel()
        skipped.append((kernels, key))
        return True  # the caller skips the compilation and the launch

    hooks: Any = knobs.runtime
    with hooks.scope():
        hooks.jit_cache_hook = note
        try:
            run()
        finally:
            for kernels, key in skipped:
                kernels.pop(key, None)


class SkippedKernel:
    """A kernel that does nothing, as one that Triton has compiled.

    Without it Triton would prepare a compilation at every launch, which takes most of the time of a recorded launch.
    """

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None:
        pass

    def run(self, *_: object) -> None:
        pass


@contextmanager
def compilers(count: int, command: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes of `command`, which reads launches and answers them, as `main` does. The block ends them."""
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(_end, process)
            processes.append(process)
        yield processes


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class Compilation:
    """Compiles kernels in processes while more of them are found. Kernels whose process ends count as failed."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self.total = 0  # launches that were added
        self._waiting: SimpleQueue[Launch | None] = SimpleQueue()  # None ends one process
        self._answered: SimpleQueue[int] = SimpleQueue()  # 1 stands for a kernel that was compiled, else 0
        self._threads = ThreadPoolExecutor(len(processes))
        self._ended = [self._threads.submit(self._serve, process) for process in processes]

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._threads.shutdown(wait=False)

    def _stop(self) -> None:
        for _ in self._ended:
            self._waiting.put(None)

    def add(self, launch: Launch) -> None:
        self.total += 1
        self._waiting.put(launch)

    def finish(self) -> int:
        """Wait for all kernels; returns the number that failed."""
        self._stop()
        count, compiled = progress.counting(STEP, self.total), 0
        self._threads.submit(self._close)
        while (answer := self._answered.get()) != END:
            compiled += answer
            count()
        return self.total - compiled

    def _close(self) -> None:
        for process in self._ended:
            process.result()
        self._answered.put(END)

    def _serve(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # the process ended
            while (launch := self._waiting.get()) is not None:
                process.stdin.write(json.dumps(asdict(launch)) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                if not answer:
                    return
                self._answered.put(int(answer))


def main() -> None:
    """Compile each launch that arrives on stdin, as a line of JSON; answer 1, or 0 if it failed.

    The arguments are the two numbers of the device's compute capability.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the compiler prints to stdout what the assembler rejects
    major, minor = map(int, sys.argv[1:])
    _compile_for((major, minor))
    for line in sys.stdin:
        try:
            _compile(Launch(**json.loads(line)))
            compiled = 1
        except Exception:
            logger.warning("a kernel cannot be compiled ahead", exc_info=True)
            compiled = 0
        print(compiled, file=answers, flush=True)


def _compile_for(capability: tuple[int, int]) -> None:
    """Make Triton compile for a compute capability without asking the device.

    Otherwise each process would create a context on the device, one after another.
    """
    from triton.runtime import driver

    active: Any = driver.active
    active.get_current_device = lambda: 0
    active.get_device_capability = lambda *_: capability


def _compile(launch: Launch) -> None:
    from importlib import import_module

    from triton.runtime import driver

    kernel = getattr(import_module(launch.module), launch.name).preload(launch.specialization)
    active: Any = driver.active
    active.launcher_cls(kernel.src, kernel.metadata)  # in Triton 3.6 it compiles a function of its own


if __name__ == "__main__":
    main()
