import asyncio
import queue
import signal
import threading

import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.aio.event_loops import LoopThread


def test_a_coroutine_that_ends_while_the_thread_stops_still_returns():
    thread = LoopThread("test")
    ended: asyncio.Future[str] | None = None
    waiting = threading.Event()
    returned = queue.SimpleQueue[str]()

    async def wait() -> str:
        nonlocal ended
        ended = asyncio.get_running_loop().create_future()
        waiting.set()
        return await ended

    async def end_and_stop() -> None:
        assert ended is not None
        asyncio.get_running_loop().call_soon(ended.set_result, "done")  # one step before the thread stops
        thread.stop()

    threading.Thread(target=lambda: returned.put(thread.run(wait())), daemon=True).start()
    assert waiting.wait(HANG_SECONDS)
    thread.run(end_and_stop())
    assert returned.get(timeout=HANG_SECONDS) == "done"


def test_a_signal_that_does_not_wake_the_main_thread_ends_its_wait():
    """The signal reaches another thread, so that the wait of the main thread goes on in the kernel."""
    thread = LoopThread("test")

    async def wait() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await asyncio.sleep(HANG_SECONDS)

    with pytest.raises(KeyboardInterrupt):
        thread.run(wait())
    thread.stop()
