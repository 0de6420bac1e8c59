"""One Generate stream of the blocking client, and the event loop that runs it."""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from voxcpm_client.errors import UnusableClient
from voxcpm_client.stream import AsyncSession, AsyncStream
from voxcpm_client.values.options import TurnOptions
from voxcpm_client.values.results import Chunk, Header, Speech, SpeechWarning, Summary
from voxcpm_grpc.aio.event_loops import LoopError, LoopThread

T = TypeVar("T")


class ClientLoop(LoopThread):
    """A thread that runs the calls of a blocking client."""

    def __init__(self) -> None:
        super().__init__("client")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Raises UnusableClient if it cannot run here, or if the client was
        closed meanwhile."""
        try:
            return super().run(coroutine)
        except LoopError as error:
            raise UnusableClient(str(error)) from None
        except CancelledError:
            if self.stopped:
                raise UnusableClient("the client was closed during this call") from None
            raise


class Stream:
    """The audio of one call as it is made. Iterate over it once; each item is a Chunk.

    The end of the `with` block, or `close()`, cancels a call that is still running. Iteration raises SpeechError. If
    the connection is lost before the first audio, or the server is full and gives a time to try again, the client
    retries the call.
    """

    def __init__(self, stream: AsyncStream, loop: ClientLoop) -> None:
        self._stream = stream
        self._loop = loop

    @property
    def request_id(self) -> str:
        """Id of the call in the server's log."""
        return self._stream.request_id

    @property
    def header(self) -> Header | None:
        """The settings of the stream. Set from the first chunk on."""
        return self._stream.header

    @property
    def summary(self) -> Summary | None:
        """Totals and times of the stream. Set after the last chunk."""
        return self._stream.summary

    @property
    def warnings(self) -> tuple[SpeechWarning, ...]:
        """Doubts of the server about the recordings and the text so far."""
        return self._stream.warnings

    def __enter__(self) -> Self:
        self._loop.run(self._stream.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the call, which frees its slot on the server. Has no effect if the stream has ended."""
        if self._loop.stopped:  # the call has ended with its client
            return
        self._loop.run(self._stream.aclose())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._loop.run(self._next())
        if chunk is None:
            raise StopIteration
        return chunk

    def speech(self) -> Speech:
        """Read the stream to its end and return all the audio."""
        return self._loop.run(self._stream.speech())

    async def _next(self) -> Chunk | None:
        return await anext(self._stream, None)


class Session(Stream):
    """A conversation on one stream. One thread can send text while another one reads the audio of earlier text.

        with client.session(voice="ref_...") as session:
            session.send_text("Hello. ")
            session.send_text("How are you?")
            session.finish()
            for chunk in session:
                play(chunk.samples)

    Sending waits while too much text waits to be spoken (`ModelInfo.limits.max_buffered_text_chars`), so long texts
    need a thread that sends and one that reads. Every method that sends raises Cancelled after `finish` and after the
    end of the stream.
    """

    def __init__(self, session: AsyncSession, loop: ClientLoop) -> None:
        super().__init__(session, loop)
        self._session = session

    def send_text(self, text: str) -> None:
        """Append text to the open turn. An interrupt drops what the server has not taken of it yet.

        Args:
            text: Any part of the text, of any length. It is split into messages as needed.
        """
        self._loop.run(self._session.send_text(text))

    def flush(self, *, end_turn: bool = False, tag: str = "") -> None:
        """Have all text sent so far spoken now. A chunk with `flushed` follows when all its audio has been sent.

        Args:
            end_turn: True also ends the turn; the next text starts a new one. Default: `False`.
            tag: Returned as `Flushed.tag`, at most 128 characters. Default: `""`.
        """
        self._loop.run(self._session.flush(end_turn=end_turn, tag=tag))

    def interrupt(self, *, tag: str = "", played_samples: int | None = None) -> None:
        """End the turn, and drop all text that is not spoken and all audio that is not sent yet. A chunk with
        `interrupted` follows.

        Args:
            tag: Returned as `Interrupted.tag`, at most 128 characters. Default: `""`.
            played_samples: Samples that the listener has heard; the answer then names their text. Default: `None`.
        """
        self._loop.run(self._session.interrupt(tag=tag, played_samples=played_samples))

    def pause(self, seconds: float) -> None:
        """Add silence after all text sent so far, which is spoken first as by a flush. It opens a turn if none is open.

        Args:
            seconds: Length of the silence, 0.001 to 60, rounded to milliseconds. Speed does not change it.
        """
        self._loop.run(self._session.pause(seconds))

    def set_turn(self, **options: Unpack[TurnOptions]) -> None:
        """Change the settings of the turns that start after this call. The open turn keeps its own.

        Args:
            options: See TurnOptions. What is left out has its default, but the seed stays that of the session.
        """
        self._loop.run(self._session.set_turn(**options))

    def finish(self) -> None:
        """Send no more text. The stream ends when all of the text has been spoken."""
        self._loop.run(self._session.finish())
