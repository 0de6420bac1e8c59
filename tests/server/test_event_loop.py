"""No callback of the front blocks the event loop for long, for any input.

The tests count function calls, because times depend on the host. `python -m benchmarks.event_loop` measures times.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.servers.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[2]
CALLS = 20_000  # function calls in one callback: more than twice the largest measured number
CHARS = 50_000  # passed to sentencex in one callback, likewise
# Modules and types with functions that wait for a disk or process a whole recording, so other threads call them.
OTHER_THREADS = ("_hashlib.", "HASH.", "posix.", "_io.", "FileIO.", "Buffered", "soxr.", "av.", "time.sleep")
HARMLESS = {"posix.urandom", "posix.fspath", "posix.getpid"}  # getpid for each log record


@dataclass
class Watch:
    """Counts the callbacks of a loop, the largest work of one callback, and the functions called."""

    callbacks: int = 0
    calls: int = 0  # in the current callback
    chars: int = 0
    most_calls: tuple[int, str] = (0, "")
    most_chars: tuple[int, str] = (0, "")
    called: set[str] = field(default_factory=set)

    def profile(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            self.calls += 1
        elif event == "c_call":
            self.calls += 1
            self.called.add(
                f"{function.__module__}.{function.__qualname__}" if function.__module__ else function.__qualname__
            )

    def begin(self) -> None:
        self.calls = self.chars = 0

    def end(self, handle: asyncio.Handle) -> None:
        self.callbacks += 1
        if self.calls > self.most_calls[0]:
            self.most_calls = self.calls, repr(handle)[:200]
        if self.chars > self.most_chars[0]:
            self.most_chars = self.chars, repr(handle)[:200]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Counts the work of every callback of this thread's loop inside the block."""
    import sentencex

    run: Callable[[asyncio.Handle], None] = asyncio.Handle._run
    segment: Callable[[str, str], list[str]] = sentencex.segment  # pyright: ignore[reportAttributeAccessIssue]
    watch = Watch()

    def counted(handle: asyncio.Handle) -> None:
        watch.begin()
        sys.setprofile(watch.profile)
        try:
            run(handle)
        finally:
            sys.setprofile(None)
        watch.end(handle)

    def segmented(language: str, text: str) -> list[str]:
        watch.chars += len(text)
        return segment(language, text)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", counted)
        patch.setattr(sentencex, "segment", segmented)
        yield watch


@pytest.mark.timeout(400)
async def test_no_callback_does_much_under_load(serve_front, monkeypatch, caplog):
    caplog.set_level("INFO", logger="voxcpm_server")  # as `serve` logs
    async with serve_front() as served:
        clients = [sys.executable, "-m", "benchmarks.event_loop.clients", served.address]
        with watched(monkeypatch) as watch:
            await asyncio.to_thread(subprocess.run, clients, cwd=ROOT, check=True, timeout=300)
    assert watch.callbacks > 10_000
    assert 0 < watch.most_calls[0] < CALLS, watch.most_calls
    assert 0 < watch.most_chars[0] < CHARS, watch.most_chars
    assert not {name for name in watch.called if name.startswith(OTHER_THREADS)} - HARMLESS


def test_the_front_never_loads_torch():
    code = "import sys, voxcpm_server.main; print(sorted({'torch', 'triton', 'av'} & sys.modules.keys()))"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    assert loaded.stdout.strip() == "[]"
