"""The delivery of replies and of the status behind them.

HTTP/2 flow control holds back the messages of a caller that does not read, and the status behind them. gRPC waits for
such a caller without a limit; a ReplyWriter and `reset_after` do not.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from typing import Any

import grpc

from voxcpm_grpc.errors import Aborted, Reason
from voxcpm_grpc.text.durations import duration_text

log = logging.getLogger(__name__)

STATUS_SECONDS = 10.0  # seconds for the status of a failed RPC; more messages may wait in front of it
ACKNOWLEDGE_SECONDS = 0.25  # seconds for a peer to take a message and to acknowledge it
LEAVE_SECONDS = 1.0  # seconds for the task of an RPC whose connection has ended to end, too


class _Departures(logging.Filter):
    """Drops the error that gRPC logs, with a traceback, when a caller leaves at the moment of its status."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info and record.exc_info[1]
        return not (isinstance(error, grpc.aio.BaseError) and str(error).startswith('Failed "execute_batch"'))


logging.getLogger("grpc._cython.cygrpc").addFilter(_Departures())


class ReplyWriter:
    """Sends the messages of one reply stream. For one task at a time, because gRPC does not allow two writes at once.

    seconds: longest wait until the caller's connection takes a message, the limit of limits.write_seconds
    """

    def __init__(self, context: grpc.aio.ServicerContext, seconds: float) -> None:
        self.shortened = math.inf  # `shorten` sets this limit
        self.header_is_stuck = False  # gRPC sends the HTTP header; a status would send it a second time
        self._context = context
        self._seconds = seconds
        self._rule = "limits.write_seconds"
        self._has_header = False
        self._timeout: asyncio.Timeout | None = None  # it limits the write in progress
        self._since = 0.0  # the write began at this time of the loop
        self._sent = -math.inf  # gRPC had taken the last message at this time of the loop
        self._timer: asyncio.TimerHandle | None = None

    def shorten(self, seconds: float, rule: str) -> None:
        """Limit this and all further waits to `seconds`, which follow from the setting `rule`."""
        if seconds >= self._seconds:
            return
        self._seconds, self._rule = seconds, rule
        self.shortened = seconds
        if self._timer is not None:
            self._timer.cancel()
            self._check()

    async def write(self, message: Any) -> None:
        """Send a message. Raises Aborted if the caller does not read in time."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        if self._timer is None:  # one timer serves all writes of this time, because most of them end at once
            self._timer = loop.call_at(self._since + self._seconds, self._check)
        try:
            async with asyncio.timeout(None) as self._timeout:
                await self._write(message)
            self._sent = loop.time()
        except TimeoutError:
            raise Aborted(
                f"the client took no message for {duration_text(self._seconds)}, the limit of {self._rule}; read "
                "replies as they arrive, and open a new stream for the rest",
                reason=Reason.REPLIES_NOT_READ,
                limit_seconds=f"{self._seconds:g}",
            ) from None
        finally:
            self._timeout = None

    async def _write(self, message: Any) -> None:
        try:
            # The first message does not carry the header: a write that is cut off would leave it half sent.
            if not self._has_header:
                self.header_is_stuck = True
                await self._context.send_initial_metadata(())
                self.header_is_stuck, self._has_header = False, True
            await self._context.write(message)
        except grpc.aio.UsageError:
            raise
        except grpc.aio.BaseError:  # the connection is gone; gRPC cancels the RPC in a moment
            await asyncio.get_running_loop().create_future()

    async def wait_for_acknowledgement(self) -> None:
        """Wait until ACKNOWLEDGE_SECONDS after the last message, in which its peer acknowledges it (WINDOW_UPDATE).

        A server that drains closes a connection right after the status of its last RPC. If an acknowledgement arrives
        after that, the peer sees an error on its own write, and HAProxy then drops the status that it has not read yet.
        """
        left = self._sent + ACKNOWLEDGE_SECONDS - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    def close(self) -> None:
        """Release the timer after the last write."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """End the write in progress if its time is over, or look again when it will be."""
        self._timer = None
        if self._timeout is None:
            return
        loop = asyncio.get_running_loop()
        due = self._since + self._seconds
        if due <= loop.time():
            self._timeout.reschedule(due)
        else:
            self._timer = loop.call_at(due, self._check)


def reset_after(seconds: float) -> None:
    """Reset the RPC of the current task (RST_STREAM) unless gRPC has delivered its status within `seconds`."""
    task = asyncio.current_task()
    assert task is not None
    timer = asyncio.get_running_loop().call_later(seconds, _reset, task)
    task.add_done_callback(lambda _: timer.cancel())


def _reset(task: asyncio.Task[Any]) -> None:
    """Cancel the tasks of an RPC that belong to gRPC; `task` is the one that runs the handler.

    grpc.aio has no call that resets a stream. It does so when the last reference to the RPC is gone, but a task of its
    own waits for the end of the RPC and keeps it. The server's loop forgets the latest RPC when it accepts another one,
    but the first RPC of its life never: that one stays until its connection ends.

    Without such a task the connection has most likely ended, and gRPC ends `task` in a moment.
    """
    watching = [one for one in asyncio.all_tasks() if one is not task and _watches(one, task)]
    if not watching:
        timer = asyncio.get_running_loop().call_later(LEAVE_SECONDS, _end_unwatched, task)
        task.add_done_callback(lambda _: timer.cancel())
        return
    for one in (*watching, task):
        one.cancel()


def _end_unwatched(task: asyncio.Task[Any]) -> None:
    log.warning("a call that its client does not read cannot be reset; it stays until its connection ends")
    task.cancel()


def _watches(one: asyncio.Task[Any], task: asyncio.Task[Any]) -> bool:
    """True for the task of grpc.aio that waits for the end of the RPC of `task`."""
    coroutine = one.get_coro()
    if getattr(coroutine, "__name__", "") != "_schedule_rpc_coro":
        return False
    return any(held is task for scope in gc.get_referents(coroutine) for held in gc.get_referents(scope))
