"""The queue of messages that a stream still has to send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from voxcpm_client.errors import Cancelled
from voxcpm_grpc.v1 import tts_pb2 as pb

REPLAY_BYTES = 1 << 20  # bytes of text kept for a retry; a stream that sent more before its first audio is not retried
WAITING_MESSAGES = 64  # a sender waits while gRPC has not taken so many messages


class RequestQueue:
    """The request messages of a stream, in order.

    The queue keeps messages that were sent until `drop_sent` is called, so that a retry can send them again.
    """

    def __init__(self, first: pb.GenerateRequest) -> None:
        self._kept = [first]
        self._first = 0  # the first message kept has this index in the stream
        self._sent = 0  # the current attempt has taken so many messages
        self._bytes = 0
        self._attempt = 0
        self._closed = False
        self._changed = asyncio.Event()
        self.replayable = True

    async def put(self, message: pb.GenerateRequest) -> None:
        """Add a message; wait while the queue is full. Raises Cancelled if the queue is closed."""
        while not self._closed and self._end - self._sent >= WAITING_MESSAGES:
            await self._changed.wait()
        self.put_now(message)

    def put_now(self, message: pb.GenerateRequest) -> None:
        """Add a message, also to a full queue. Raises Cancelled if the queue is closed."""
        if self._closed:
            raise Cancelled("the stream takes no more text: it was finished or closed")
        self._kept.append(message)
        self._bytes += message.ByteSize()
        if self._bytes > REPLAY_BYTES:
            self.drop_sent()
        self._notify()

    def close(self) -> None:
        """Accept no more messages. Those in the queue are still sent."""
        self._closed = True
        self._notify()

    def drop_sent(self) -> None:
        """Keep only the messages that are not sent yet. The stream cannot be retried after this."""
        self.replayable = False
        del self._kept[: self._sent - self._first]
        self._first = self._sent

    async def messages(self) -> AsyncIterator[pb.GenerateRequest]:
        """All messages from the first one on, as they arrive. A second call ends the iterator of the first one."""
        self._attempt += 1
        attempt, self._sent = self._attempt, self._first
        self._notify()
        while attempt == self._attempt:
            if self._sent == self._end:
                if self._closed:
                    return
                await self._changed.wait()
                continue
            message = self._kept[self._sent - self._first]
            self._sent += 1
            if not self.replayable:
                self.drop_sent()
            self._notify()
            yield message

    def _notify(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def _end(self) -> int:
        return self._first + len(self._kept)
