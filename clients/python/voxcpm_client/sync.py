"""The blocking client: the asynchronous one, driven by an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

import grpc

from voxcpm_client.client import DEFAULT_TARGET, DEFAULT_TIMEOUT, AsyncClient, VoiceKind
from voxcpm_client.options import Recording, SpeechOptions
from voxcpm_client.results import Chunk, Header, Latents, ModelInfo, Speech, Summary, Voice
from voxcpm_client.stream import AsyncSession, AsyncStream
from voxcpm_client.text import Text
from voxcpm_client.upload import VoiceOptions
from voxcpm_grpc.audio import AudioFormat

STOP_SECONDS = 5.0
T = TypeVar("T")


class LoopThread:
    """An event loop that other threads hand coroutines to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="voxcpm-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the result; Ctrl-C in the meantime cancels the coroutine."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel what still runs and end the thread. Any thread may call this, also the garbage collector in ours."""
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _finish(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._loop.stop()


class Stream:
    """Speech as it is made; see AsyncStream."""

    def __init__(self, stream: AsyncStream, loop: LoopThread) -> None:
        self._stream = stream
        self._loop = loop

    @property
    def request_id(self) -> str:
        return self._stream.request_id

    @property
    def header(self) -> Header | None:
        """Known from the first chunk on."""
        return self._stream.header

    @property
    def summary(self) -> Summary | None:
        """Known after the last chunk."""
        return self._stream.summary

    def __enter__(self) -> Self:
        self._loop.run(self._stream.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is under way and free what the server holds for it."""
        self._loop.run(self._stream.aclose())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._loop.run(self._next())
        if chunk is None:
            raise StopIteration
        return chunk

    def speech(self) -> Speech:
        """All the audio in one piece, and the end of the stream."""
        return self._loop.run(self._stream.speech())

    async def _next(self) -> Chunk | None:
        return await anext(self._stream, None)


class Session(Stream):
    """A conversation on one stream; any thread may send while another one reads. See AsyncSession."""

    def __init__(self, session: AsyncSession, loop: LoopThread) -> None:
        super().__init__(session, loop)
        self._session = session

    def send_text(self, text: str) -> None:
        """Append to the open turn."""
        self._loop.run(self._session.send_text(text))

    def flush(self, *, end_turn: bool = False, tag: str = "") -> None:
        """Speak what is buffered now; a chunk with `flushed` answers when all of it has been sent."""
        self._loop.run(self._session.flush(end_turn=end_turn, tag=tag))

    def interrupt(self, *, tag: str = "") -> None:
        """Drop the open turn and what is queued behind it; a chunk with `interrupted` answers."""
        self._loop.run(self._session.interrupt(tag=tag))

    def finish(self) -> None:
        """No more input: the audio ends when everything has been said."""
        self._loop.run(self._session.finish())


class Client:
    """A VoxCPM server, for code without asyncio; threads may share it. Everything is as in AsyncClient.

    with Client("127.0.0.1:50051") as client:
        client.say("Hello.").save("hello.wav")
        with client.speak(model_output) as stream:
            for chunk in stream:
                play(chunk.samples)
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        retries: int = 4,
    ) -> None:
        self._client = AsyncClient(target, timeout=timeout, credentials=credentials, metadata=metadata, retries=retries)
        self._loop = LoopThread()
        self._stop = weakref.finalize(self, self._loop.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the calls under way and disconnect."""
        if self._stop.alive:
            self._loop.run(self._client.aclose())
            self._stop()

    def speak(self, text: Text, **options: Unpack[SpeechOptions]) -> Stream:
        """Speak `text`, a string or pieces as they come, and stream the audio."""
        return Stream(self._client.speak(text, **options), self._loop)

    def say(self, text: Text, **options: Unpack[SpeechOptions]) -> Speech:
        """Speak `text` and wait for all of it."""
        return self._loop.run(self._client.say(text, **options))

    def session(self, **options: Unpack[SpeechOptions]) -> Session:
        """A conversation: send text, flush and interrupt while the audio is read."""
        return Session(self._client.session(**options), self._loop)

    def add_prompt(self, audio: Recording, transcript: str, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording and what is said in it, to be continued by later speech."""
        return self._loop.run(self._client.add_prompt(audio, transcript, **options))

    def add_reference(self, audio: Recording, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording whose timbre later speech takes."""
        return self._loop.run(self._client.add_reference(audio, **options))

    def add_hifi(
        self,
        prompt: Recording,
        transcript: str = "",
        *,
        reference: Recording | None = None,
        **options: Unpack[VoiceOptions],
    ) -> Voice:
        """Bind a prompt and a reference, each a recording or an id, to one voice."""
        return self._loop.run(self._client.add_hifi(prompt, transcript, reference=reference, **options))

    def encode_latents(
        self, audio: Recording, *, role: Literal["prompt", "reference"], source: AudioFormat | None = None
    ) -> Latents:
        """A recording as latents, for callers who keep voices themselves."""
        return self._loop.run(self._client.encode_latents(audio, role=role, source=source))

    def voices(self, *, kind: VoiceKind | None = None, labels: Mapping[str, str] | None = None) -> list[Voice]:
        """The caller's voices, newest first."""
        return self._loop.run(self._client.voices(kind=kind, labels=labels))

    def get_voice(self, id: str) -> Voice:
        return self._loop.run(self._client.get_voice(id))

    def delete_voice(self, id: str, *, missing_ok: bool = False, cascade: bool = False) -> None:
        """Delete a voice; `cascade` deletes a hifi voice's members too, unless other voices use them."""
        self._loop.run(self._client.delete_voice(id, missing_ok=missing_ok, cascade=cascade))

    def model_info(self) -> ModelInfo:
        return self._loop.run(self._client.model_info())

    def health(self) -> bool:
        """Whether the server takes calls. Raises Unavailable when there is none."""
        return self._loop.run(self._client.health())
