"""The asynchronous client."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack

import grpc

from voxcpm_client import convert, upload
from voxcpm_client.connection import Connection
from voxcpm_client.errors import InvalidArgument
from voxcpm_client.options import VOICE_PREFIXES, Recording, SpeechOptions, generate_config, read
from voxcpm_client.results import Latents, ModelInfo, Speech, Voice
from voxcpm_client.retry import Attempts
from voxcpm_client.stream import AsyncSession, AsyncStream
from voxcpm_client.text import Text
from voxcpm_client.upload import Upload, VoiceOptions
from voxcpm_grpc.audio import AudioFormat
from voxcpm_grpc.v1 import tts_pb2 as pb

DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_TIMEOUT = 300.0  # seconds of one call, speech included
SHORT_TIMEOUT = 30.0  # and of one that does no work on a model
MAX_PAGES = 1000

VoiceKind = Literal["prompt", "reference", "hifi"]


class AsyncClient:
    """A VoxCPM server. One client serves any number of calls at once.

        async with AsyncClient("127.0.0.1:50051") as client:
            speech = await client.say("Hello.", seed=7)
            speech.save("hello.wav")
            async with client.speak(model_output, voice="ref_...") as stream:
                async for chunk in stream:
                    play(chunk.samples)

    `timeout` bounds every call in seconds, unless the call has its own; None for no limit. `retries` bounds the new
    attempts after UNAVAILABLE, or RESOURCE_EXHAUSTED with a time to come back; they are made only before the first
    audio and within the timeout. `metadata` goes with every call. Without `credentials` (see `tls_credentials`) the
    connection is not encrypted. Every failure of a call is a SpeechError; a file that cannot be read is an OSError.
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
        self._timeout = timeout
        self._connection = Connection(target, credentials=credentials, metadata=metadata, retries=retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the calls under way and disconnect."""
        await self._connection.close()

    # ------------------------------------------------------------ speech

    def speak(self, text: Text, **options: Unpack[SpeechOptions]) -> AsyncStream:
        """Speak `text`, a string or pieces as they come, and stream the audio.

        A sync iterable that may block, such as a file, is read in a thread of its own. Options: see SpeechOptions.
        """
        return AsyncStream(self._connection, generate_config(options), text, timeout=self._long_timeout(options))

    async def say(self, text: Text, **options: Unpack[SpeechOptions]) -> Speech:
        """Speak `text` and wait for all of it."""
        async with self.speak(text, **options) as stream:
            return await stream.speech()

    def session(self, **options: Unpack[SpeechOptions]) -> AsyncSession:
        """A conversation: send text, flush and interrupt while the audio is read. Give a long one `timeout=None`."""
        return AsyncSession(self._connection, generate_config(options), None, timeout=self._long_timeout(options))

    # ------------------------------------------------------------ voices

    async def add_prompt(self, audio: Recording, transcript: str, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording and what is said in it, to be continued by later speech.

        The same content gets the same id, however often it is added. Options: see VoiceOptions.
        """
        config = pb.AddPromptConfig(
            options=upload.stored_as(options),
            transcript=transcript,
            source=upload.source_format(options),
            preview=upload.preview(options),
        )
        return await self._add(pb.AddPromptRequest, config, [Upload(await _load(audio))], options)

    async def add_reference(self, audio: Recording, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording whose timbre later speech takes; it needs no transcript. Otherwise as `add_prompt`."""
        config = pb.AddReferenceConfig(
            options=upload.stored_as(options),
            source=upload.source_format(options),
            preview=upload.preview(options),
        )
        return await self._add(pb.AddReferenceRequest, config, [Upload(await _load(audio))], options)

    async def add_hifi(
        self,
        prompt: Recording,
        transcript: str = "",
        *,
        reference: Recording | None = None,
        **options: Unpack[VoiceOptions],
    ) -> Voice:
        """Bind a prompt and a reference to one voice. Otherwise as `add_prompt`.

        Each is a recording or the id of a stored voice (`prm_...`, `ref_...`; write a file of such a name as a Path).
        Without `reference`, the prompt's recording plays both parts.
        """
        config = pb.AddHifiConfig(options=upload.stored_as(options), preview=upload.preview(options))
        source = upload.source_format(options)
        uploads = []
        if isinstance(prompt, str) and prompt.startswith("prm_"):
            config.prompt_id = prompt
        else:
            config.uploaded_prompt.CopyFrom(pb.UploadedPrompt(source=source, transcript=transcript))
            uploads.append(Upload(await _load(prompt), pb.AUDIO_ROLE_PROMPT))
        if reference is None and not uploads:
            raise InvalidArgument("a stored prompt needs a reference: its recording is not kept", field="reference")
        if reference is None:
            config.same_as_prompt.SetInParent()
        elif isinstance(reference, str) and reference.startswith("ref_"):
            config.reference_id = reference
        else:
            config.uploaded_reference.CopyFrom(pb.UploadedReference(source=source))
            uploads.append(Upload(await _load(reference), pb.AUDIO_ROLE_REFERENCE))
        return await self._add(pb.AddHifiRequest, config, uploads, options)

    async def encode_latents(
        self, audio: Recording, *, role: Literal["prompt", "reference"], source: AudioFormat | None = None
    ) -> Latents:
        """A recording as latents, for callers who keep voices themselves; give them as `prompt=` or `reference=`."""
        roles = {"prompt": pb.AUDIO_ROLE_PROMPT, "reference": pb.AUDIO_ROLE_REFERENCE}
        if role not in roles:
            raise InvalidArgument(f"role is {role!r}; it must be one of {', '.join(roles)}", field="role")
        config = pb.EncodeLatentsConfig(
            source=upload.source_format({"source": source} if source else {}),
            role=roles[role],
            request_id=uuid.uuid4().hex,
        )
        attempts = self._connection.attempts(self._timeout)
        response = await upload.encode(self._connection, config, Upload(await _load(audio)), attempts)
        return convert.latents(response)

    async def voices(self, *, kind: VoiceKind | None = None, labels: Mapping[str, str] | None = None) -> list[Voice]:
        """The caller's voices, newest first; of one kind and with all of `labels`, if given."""
        if kind is not None and kind not in VOICE_PREFIXES.values():
            raise InvalidArgument(f"kind is {kind!r}; it must be prompt, reference or hifi", field="kind")
        number: Any = pb.VoiceKind.Value(f"VOICE_KIND_{kind.upper()}") if kind else pb.VOICE_KIND_UNSPECIFIED
        found: list[Voice] = []
        token = ""
        for _ in range(MAX_PAGES):
            page = await self._unary(
                "ListVoices", pb.ListVoicesRequest(kind=number, labels=labels or {}, page_token=token)
            )
            found += map(convert.voice, page.handles)
            token = page.next_page_token
            if not token:
                break
        return found

    async def get_voice(self, id: str) -> Voice:
        return convert.voice((await self._unary("GetVoice", pb.GetVoiceRequest(id=id))).handle)

    async def delete_voice(self, id: str, *, missing_ok: bool = False, cascade: bool = False) -> None:
        """Delete a voice; `cascade` deletes a hifi voice's members too, unless other voices use them."""
        await self._unary("DeleteVoice", pb.DeleteVoiceRequest(id=id, allow_missing=missing_ok, cascade=cascade))

    # ------------------------------------------------------------ server

    async def model_info(self) -> ModelInfo:
        return convert.model_info(await self._unary("GetModelInfo", pb.GetModelInfoRequest()))

    async def health(self) -> bool:
        """Whether the server takes calls. Raises Unavailable when there is none."""
        return await self._connection.health(self._short())

    async def _unary(self, method: str, request: Any) -> Any:
        return await self._connection.unary(method, request, self._short())

    async def _add(self, kind: Any, config: Any, uploads: list[Upload], options: VoiceOptions) -> Voice:
        attempts = self._connection.attempts(self._long_timeout(options))
        return await upload.add_voice(self._connection, kind, config, uploads, attempts)

    def _long_timeout(self, options: SpeechOptions | VoiceOptions) -> float | None:
        return options.get("timeout", self._timeout)

    def _short(self) -> Attempts:
        return self._connection.attempts(min(SHORT_TIMEOUT, self._timeout or SHORT_TIMEOUT))


async def _load(audio: Recording) -> bytes:
    return await asyncio.to_thread(read, audio)
