import asyncio
import queue
import threading

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
