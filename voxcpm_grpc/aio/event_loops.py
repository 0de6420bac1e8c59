"""The event loop of a server process, and a thread that runs coroutines for code without asyncio."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

STOP_SECONDS = 5.0
SIGNAL_SECONDS = 0.2  # longest delay of a signal that does not wake the main thread
GC_THRESHOLD = 10_000  # new objects between two collections; Python's 700 cost a loaded front 8 % in a profile
T = TypeVar("T")


class LoopError(RuntimeError):
    """The thread cannot run a coroutine here, for the reason in the message."""


class LoopThread:
    """A thread with an event loop that runs coroutines for other threads, from its first coroutine to `stop`.

    A process that is forked from this one has none of its threads, and starts one of its own.

    owner: name of the thing whose coroutines these are, for messages
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._stopped = False
        self._lock = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        _threads.add(self)

    @property
    def stopped(self) -> bool:
        return self._stopped

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Ctrl-C cancels the coroutine. Raises LoopError."""
        _notice_fork()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        except RuntimeError:
            coroutine.close()
            raise
        try:
            _wait(future)
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # its exception refers to this frame

    def stop(self) -> None:
        """Cancel the running coroutines and end the thread. Any thread may call this, including this one."""
        _notice_fork()
        with self._lock:
            self._stopped = True
            running, self._running = self._running, None
        if running is None:
            return
        loop, thread = running
        asyncio.run_coroutine_threadsafe(_finish(), loop)
        if threading.current_thread() is not thread:  # the garbage collector may run in this one
            thread.join(STOP_SECONDS)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._stopped:
                raise LoopError(f"the {self._owner} is closed, perhaps by the end of the program; make another one")
            if self._running is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(loop,), name="voxcpm event loop", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    loop.close()
                    raise LoopError(f"the {self._owner} cannot start a thread; the program may be ending") from None
                self._running = loop, thread
            loop, thread = self._running
        if threading.current_thread() is thread:
            raise LoopError(f"the {self._owner} was called in its own event loop, where it would wait for itself")
        return loop


def _wait(future: Future[Any]) -> None:
    """Wait until a future is done.

    Python runs the handlers of signals in the main thread. A signal does not wake that thread if it arrives just before
    the wait or in another thread, and on Windows never, so the main thread looks for signals itself now and then.
    """
    if threading.current_thread() is threading.main_thread():
        while not wait((future,), SIGNAL_SECONDS).done:
            pass


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _finish() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0)  # results of coroutines that ended just now are still on their way to other threads
    asyncio.get_running_loop().stop()


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_inherited: list[object] = []
_process = os.getpid()


def _notice_fork() -> None:
    """Forget the threads of the parent, in a process that was forked, also if Python's hooks for forks did not run."""
    global _process
    if _process == os.getpid():
        return
    for each in _threads:
        _inherited.append(each._running)  # pyright: ignore[reportPrivateUsage]: closing it would change the parent's
        each._running, each._lock = None, threading.Lock()  # pyright: ignore[reportPrivateUsage]
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notice_fork)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of a server: uvloop's if it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def freeze_objects() -> None:
    """Leave the objects of the start out of later collections, which would block the event loop: they do not end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
