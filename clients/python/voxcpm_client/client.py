"""The asynchronous client."""

from __future__ import annotations

import copy
import os
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack, get_args

import grpc

from voxcpm_client import responses, upload
from voxcpm_client.admin import AdminCalls
from voxcpm_client.arguments import check_labels, check_options, check_string, check_strings, check_text
from voxcpm_client.connection import Connection
from voxcpm_client.errors import InvalidArgument
from voxcpm_client.hifi import hifi_upload, load
from voxcpm_client.model_info import ModelInfo, ServedModel
from voxcpm_client.options import SpeechOptions, VoiceKind, VoiceOptions
from voxcpm_client.recordings import Recording
from voxcpm_client.requests import duration, generate_config
from voxcpm_client.results import Latents, Speech, Voice
from voxcpm_client.retry import Attempts
from voxcpm_client.security import Security
from voxcpm_client.stream import AsyncSession, AsyncStream
from voxcpm_client.text import Pause, Text
from voxcpm_client.upload import Upload
from voxcpm_grpc.audio import AudioFormat
from voxcpm_grpc.v1 import tts_pb2 as pb

DEFAULT_TARGET = "127.0.0.1:50051"
"""Address of the server if a client is created without one."""

DEFAULT_TIMEOUT = 300.0
"""Longest duration of a call in seconds, if neither the client nor the call sets another."""

DEFAULT_RETRY_SECONDS = 120.0
"""Longest time from the first failure of a call to a retry, in seconds. The restart of an engine takes less."""

SHORT_TIMEOUT = 30.0  # seconds, for calls that do not use the model
MAX_PAGES = 1000


class AsyncClient(AdminCalls):
    """A client of a VoxCPM server. Any number of calls can run at the same time.

        async with AsyncClient("127.0.0.1:50051") as client:
            speech = await client.say("Hello.", seed=7)
            speech.save("hello.wav")
            async with client.speak(model_output, voice="ref_...") as stream:
                async for chunk in stream:
                    play(chunk.samples)

    Every failed call raises a SpeechError. A recording that cannot be read raises an OSError.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        tls: bool = False,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        api_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retries: int | None = None,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
    ) -> None:
        """Create a client. It connects to the server at its first call.

        The client retries a call after UNAVAILABLE, and after RESOURCE_EXHAUSTED if the server gives a time to try
        again, but never after the first audio of the call. A server that has never answered is retried for 5 s.
        Calls that do not use a model, such as `voices` and `list_models`, have a timeout of at most 30 s.

        Raises InvalidArgument for an address or options that cannot be used.

        Args:
            target: Address of the server, `HOST:PORT` or a name that gRPC resolves. Default: `127.0.0.1:50051`.
            timeout: Longest duration of a call in seconds, including retries; None: no limit. Default: `300.0`.
            tls: True encrypts the connection. Implied by `ca`, `cert` and `key`. Default: `False`.
            ca: PEM file of the certificate authorities to trust. Default: `None`, those of the system.
            cert: PEM file of the client's certificate and its chain, for servers that ask for one. Default: `None`.
            key: PEM file of the private key of `cert`. Default: `None`.
            credentials: Credentials of gRPC instead of `tls`, `ca`, `cert` and `key`. Default: `None`.
            api_key: Key to send as `authorization: Bearer`, unencrypted only to this host itself. Default: `None`.
            metadata: Metadata to send with every call. Default: `None`.
            retries: Largest number of new attempts in a call, 0 or more; None: no such limit. Default: `None`.
            retry_seconds: Longest time from the first failure of a call to a retry; 0: no retries. Default: `120.0`.
        """
        self._timeout = timeout
        security = Security(tls=tls, ca=ca, cert=cert, key=key, api_key=api_key, given=credentials)
        self._connection = Connection(
            target, security=security, metadata=metadata, retries=retries, retry_seconds=retry_seconds
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the running calls and close the connection."""
        await self._connection.close()

    def with_metadata(self, metadata: Mapping[str, str]) -> AsyncClient:
        """Return a client that shares the connection of this one and sends more metadata with every call.

        A program that calls for several users makes one for each user, with the credentials of the user. It need not be
        closed: to close one of the two closes both.

        Args:
            metadata: Metadata that is added to that of this client. A name replaces an equal one, also `authorization`.
        """
        other = copy.copy(self)
        other._connection = self._connection.with_metadata(metadata)
        return other

    # ------------------------------------------------------------ speech

    def speak(self, text: Text, **options: Unpack[SpeechOptions]) -> AsyncStream:
        """Speak text and stream the audio.

        A thread reads iterables that may block, such as files.

        Args:
            text: A string, or an iterable of its pieces, with a Pause between them where there is to be silence.
            options: See SpeechOptions.
        """
        check_options("speak", options, SpeechOptions)
        check_text(text, Pause)
        return AsyncStream(self._connection, generate_config(options), text, timeout=self._long_timeout(options))

    async def say(self, text: Text, **options: Unpack[SpeechOptions]) -> Speech:
        """Speak text and return all the audio at the end.

        A thread reads iterables that may block, such as files.

        Args:
            text: A string, or an iterable of its pieces, with a Pause between them where there is to be silence.
            options: See SpeechOptions.
        """
        check_options("say", options, SpeechOptions)
        async with self.speak(text, **options) as stream:
            return await stream.speech()

    def session(self, **options: Unpack[SpeechOptions]) -> AsyncSession:
        """Start a conversation: send text, flush and interrupt while the audio is read.

        Args:
            options: See SpeechOptions. A long conversation needs `timeout=None`.
        """
        check_options("session", options, SpeechOptions)
        return AsyncSession(self._connection, generate_config(options), None, timeout=self._long_timeout(options))

    # ------------------------------------------------------------ voices

    async def add_prompt(self, audio: Recording, transcript: str, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording and its transcript, which later speech continues.

        `ModelInfo.limits` has the limits of a recording: `max_upload_bytes` and `max_prompt_seconds`. The server limits
        the transcript, by default to 2000 characters. The new text follows the transcript without a separator: end the
        transcript with a space if the language uses spaces.

        Args:
            audio: Path, bytes or open file of a recording in any common format, or samples: `(array, rate)`, a Speech.
            transcript: The words of the recording, exactly as spoken.
            options: See VoiceOptions.
        """
        check_options("add_prompt", options, VoiceOptions)
        check_string(transcript, "transcript")
        config = pb.AddPromptConfig(
            model=options.get("model") or "",
            options=upload.stored_as(options),
            transcript=transcript,
            source=upload.source_format(options),
            preview=upload.preview(options),
            **upload.cleaning(options),
        )
        return await self._add(pb.AddPromptRequest, config, [Upload(await load(audio, options.get("source")))], options)

    async def add_reference(self, audio: Recording, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording whose voice (timbre) later speech takes. It needs no transcript.

        `ModelInfo.limits` has the limits of a recording: `max_upload_bytes` and `max_reference_seconds`.

        Args:
            audio: Path, bytes or open file of a recording in any common format, or samples: `(array, rate)`, a Speech.
            options: See VoiceOptions.
        """
        check_options("add_reference", options, VoiceOptions)
        config = pb.AddReferenceConfig(
            model=options.get("model") or "",
            options=upload.stored_as(options),
            source=upload.source_format(options),
            preview=upload.preview(options),
            **upload.cleaning(options),
        )
        return await self._add(
            pb.AddReferenceRequest, config, [Upload(await load(audio, options.get("source")))], options
        )

    async def add_hifi(
        self,
        prompt: Recording,
        transcript: str = "",
        *,
        reference: Recording | None = None,
        **options: Unpack[VoiceOptions],
    ) -> Voice:
        """Store one voice that combines a prompt and a reference. The limits are those of the two.

        A string that starts with `prm_` or `ref_` is an id; write the path of a file with such a name as a Path.

        Args:
            prompt: A recording, or the id of a stored prompt (`prm_...`).
            transcript: The words of the prompt, as for `add_prompt`; not used for a stored prompt. Default: `""`.
            reference: A recording, or the id of a stored reference. Default: `None`, the recording of the prompt.
            options: See VoiceOptions.
        """
        check_options("add_hifi", options, VoiceOptions)
        check_string(transcript, "transcript")
        config, uploads = await hifi_upload(prompt, transcript, reference, options)
        return await self._add(pb.AddHifiRequest, config, uploads, options)

    async def encode_latents(
        self,
        audio: Recording,
        *,
        role: Literal["prompt", "reference"],
        source: AudioFormat | None = None,
        denoise: bool = False,
        trim_silence_vad: bool = False,
        model: str = "",
    ) -> Latents:
        """Encode a recording without storing it. The result serves as `reference`, or in a Prompt.

        `ModelInfo.limits` has the limits of a recording, as for `add_prompt` and `add_reference`.

        Args:
            audio: Path, bytes or open file of a recording in any common format, or samples: `(array, rate)`, a Speech.
            role: `prompt` or `reference`: the later use of the latents. They do not fit the other use.
            source: Encoding and sample rate of raw PCM without a header. Default: `None`, for audio files.
            denoise: True reduces steady noise, by up to 20 dB. Default: `False`.
            trim_silence_vad: True cuts the silence at both ends down to 0.2 s. Default: `False`.
            model: Name of the model that the latents are for, one of `list_models`. Default: `""`, the default model.
        """
        roles = {"prompt": pb.AUDIO_ROLE_PROMPT, "reference": pb.AUDIO_ROLE_REFERENCE}
        if role not in roles:
            raise InvalidArgument(f"role is {role!r}; it must be one of {', '.join(roles)}", field="role")
        check_string(model, "model")
        config = pb.EncodeLatentsConfig(
            source=upload.source_format({"source": source} if source else {}),
            role=roles[role],
            request_id=uuid.uuid4().hex,
            denoise=denoise,
            trim_silence_vad=trim_silence_vad,
            model=model,
        )
        attempts = self._connection.attempts(self._timeout)
        response = await upload.encode(self._connection, config, Upload(await load(audio, source)), attempts)
        return responses.latents(response, config.request_id)

    async def voices(
        self, *, kind: VoiceKind | None = None, labels: Mapping[str, str] | None = None, model: str = ""
    ) -> list[Voice]:
        """List voices: stored ones, newest first, and then the presets.

        Args:
            kind: Only voices of this kind: `prompt`, `reference` or `hifi`. Default: `None`, all kinds.
            labels: Only voices with a name that has all of these labels. Default: `None`.
            model: Only voices of this model, one of `list_models`. Default: `""`, the voices of all models.
        """
        if kind is not None and kind not in get_args(VoiceKind):
            raise InvalidArgument(f"kind is {kind!r}; it must be prompt, reference or hifi", field="kind")
        check_string(model, "model")
        check_labels(labels)
        number: Any = pb.VoiceKind.Value(f"VOICE_KIND_{kind.upper()}") if kind else pb.VOICE_KIND_UNSPECIFIED
        found: list[Voice] = []
        token = ""
        for _ in range(MAX_PAGES):
            page = await self._unary(
                "ListVoices", pb.ListVoicesRequest(kind=number, labels=labels or {}, page_token=token, model=model)
            )
            found += map(responses.voice, page.handles)
            token = page.next_page_token
            if not token:
                break
        return found

    async def get_voice(self, id: str, *, model: str = "") -> Voice:
        """Describe one voice. Its time to live starts again.

        Raises NotFound, and InvalidArgument for a name of several voices.

        Args:
            id: Id or name of the voice, or the name of a preset.
            model: Name of the model whose presets and voices are meant first. Default: `""`, the default model.
        """
        check_string(id, "id")
        check_string(model, "model")
        return responses.voice((await self._unary("GetVoice", pb.GetVoiceRequest(id=id, model=model))).handle)

    async def update_voice(
        self,
        id: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: float | None = None,
        lora: str | None = None,
        model: str = "",
    ) -> Voice:
        """Change a stored voice and return it as it is now. The options that are given replace those of the voice.

        Raises NotFound, AlreadyExists if another voice has the new name, InvalidArgument for a name of several voices,
        and FailedPrecondition for a preset of the model.

        Args:
            id: Id or name of the voice. The id stays.
            name: New name in place of the one in `id`, or else the newest; an empty one removes it. Default: `None`.
            labels: New labels of that name, which replace all its labels, as in VoiceOptions. Default: `None`.
            ttl: New time to live in seconds, as in VoiceOptions. Default: `None`.
            lora: New LoRA adapter, as in VoiceOptions; an empty string removes it. Default: `None`.
            model: As for `get_voice`. Default: `""`.
        """
        check_string(id, "id")
        check_string(model, "model")
        check_strings(name=name, lora=lora)
        check_labels(labels)
        request = pb.UpdateVoiceRequest(id=id, display_name=name, lora=lora, model=model)
        if labels is not None:
            request.labels.CopyFrom(pb.VoiceLabels(labels=labels))
        if ttl is not None:
            request.ttl.CopyFrom(duration("ttl", ttl))
        return responses.voice((await self._unary("UpdateVoice", request)).handle)

    async def delete_voice(
        self, id: str, *, missing_ok: bool = False, cascade: bool = False, model: str = ""
    ) -> tuple[str, ...]:
        """Delete a stored voice, or one of its names. Streams that use it continue.

        Returns the names that the voice keeps: none if it is deleted. Raises NotFound, InvalidArgument for a name of
        several voices, and FailedPrecondition for a preset of the model.

        Args:
            id: Id of the voice, or a name: if the voice has others, this name alone is deleted.
            missing_ok: True does not raise NotFound. Default: `False`.
            cascade: True also deletes members of a hifi voice without another use or another name. Default: `False`.
            model: As for `get_voice`. Default: `""`.
        """
        check_string(id, "id")
        check_string(model, "model")
        request = pb.DeleteVoiceRequest(id=id, allow_missing=missing_ok, cascade=cascade, model=model)
        return tuple((await self._unary("DeleteVoice", request)).kept_names)

    # ------------------------------------------------------------ server

    async def model_info(self, model: str = "") -> ModelInfo:
        """Describe a model of the server, its audio formats and its limits. Raises NotFound for an unknown model.

        Args:
            model: Name of the model, one of `list_models`. Default: `""`, the default model.
        """
        check_string(model, "model")
        return responses.model_info(await self._unary("GetModelInfo", pb.GetModelInfoRequest(model=model)))

    async def list_models(self) -> list[ServedModel]:
        """List the models of the server, the default first. Raises Unimplemented if the server is too old for it."""
        found = await self._unary("ListModels", pb.ListModelsRequest())
        return [responses.served_model(model) for model in found.models]

    async def health(self, service: str = "") -> bool:
        """True if the server accepts calls, False if not. Raises Unavailable if no server answers.

        Raises NotFound for an unknown service. "liveness" is True from the start of the process to its end.

        Args:
            service: Name of a service of the health service, such as "liveness". Default: `""`, the whole server.
        """
        check_string(service, "service")
        return await self._connection.health(service, self._short())

    async def _unary(self, method: str, request: Any) -> Any:
        return await self._connection.unary(method, request, self._short())

    async def _add(self, kind: Any, config: Any, uploads: list[Upload], options: VoiceOptions) -> Voice:
        attempts = self._connection.attempts(self._long_timeout(options))
        return await upload.add_voice(self._connection, kind, config, uploads, upload.auditions(options), attempts)

    def _long_timeout(self, options: SpeechOptions | VoiceOptions) -> float | None:
        return options.get("timeout", self._timeout)

    def _short(self) -> Attempts:
        return self._connection.attempts(min(SHORT_TIMEOUT, self._timeout or SHORT_TIMEOUT))
