"""The blocking client. It runs the asynchronous client in an event loop on a thread of its own."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self, Unpack

import grpc

from voxcpm_client.admin import RegisteredLora
from voxcpm_client.client import DEFAULT_RETRY_SECONDS, DEFAULT_TARGET, DEFAULT_TIMEOUT, AsyncClient
from voxcpm_client.messages.model_info import ModelInfo, ServedModel
from voxcpm_client.messages.server_stats import ServerStats
from voxcpm_client.sync_stream import ClientLoop, Session, Stream
from voxcpm_client.texts.text import Text
from voxcpm_client.values.options import SpeechOptions, VoiceKind, VoiceOptions
from voxcpm_client.values.recordings import Recording
from voxcpm_client.values.results import Speech
from voxcpm_client.values.voices import Latents, Voice
from voxcpm_grpc.audio import AudioFormat


class Client:
    """A client of a VoxCPM server for code without asyncio. Threads can share it, and any number of calls can run at
    the same time.

        with Client("127.0.0.1:50051") as client:
            client.say("Hello.").save("hello.wav")
            with client.speak(model_output, voice="ref_...") as stream:
                for chunk in stream:
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
        self._client = AsyncClient(
            target,
            timeout=timeout,
            tls=tls,
            ca=ca,
            cert=cert,
            key=key,
            credentials=credentials,
            api_key=api_key,
            metadata=metadata,
            retries=retries,
            retry_seconds=retry_seconds,
        )
        self._made_from: Client | None = None
        self._loop = ClientLoop()
        self._stop = weakref.finalize(self, self._loop.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the running calls and close the connection."""
        if self._stop.alive:
            self._loop.run(self._client.aclose())
            self._stop()

    def with_metadata(self, metadata: Mapping[str, str]) -> Client:
        """Return a client that shares the connection of this one and sends more metadata with every call.

        A program that calls for several users makes one for each user, with the credentials of the user. It need not be
        closed: to close one of the two closes both.

        Args:
            metadata: Metadata that is added to that of this client. A name replaces an equal one, also `authorization`.
        """
        other = copy.copy(self)
        other._client = self._client.with_metadata(metadata)
        other._made_from = self  # its event loop stops when it is collected
        return other

    def speak(self, text: Text, **options: Unpack[SpeechOptions]) -> Stream:
        """Speak text and stream the audio.

        A thread reads iterables that may block, such as files.

        Args:
            text: A string, or an iterable of its pieces, with a Pause between them where there is to be silence.
            options: See SpeechOptions.
        """
        return Stream(self._client.speak(text, **options), self._loop)

    def say(self, text: Text, **options: Unpack[SpeechOptions]) -> Speech:
        """Speak text and return all the audio at the end.

        A thread reads iterables that may block, such as files.

        Args:
            text: A string, or an iterable of its pieces, with a Pause between them where there is to be silence.
            options: See SpeechOptions.
        """
        return self._loop.run(self._client.say(text, **options))

    def session(self, **options: Unpack[SpeechOptions]) -> Session:
        """Start a conversation: send text, flush and interrupt while the audio is read.

        Args:
            options: See SpeechOptions. A long conversation needs `timeout=None`.
        """
        return Session(self._client.session(**options), self._loop)

    def add_prompt(self, audio: Recording, transcript: str, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording and its transcript, which later speech continues.

        `ModelInfo.limits` has the limits of a recording: `max_upload_bytes` and `max_prompt_seconds`. The server limits
        the transcript, by default to 2000 characters. The new text follows the transcript without a separator: end the
        transcript with a space if the language uses spaces.

        Args:
            audio: Path, bytes or open file of a recording in any common format, or samples: `(array, rate)`, a Speech.
            transcript: The words of the recording, exactly as spoken.
            options: See VoiceOptions.
        """
        return self._loop.run(self._client.add_prompt(audio, transcript, **options))

    def add_reference(self, audio: Recording, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording whose voice (timbre) later speech takes. It needs no transcript.

        `ModelInfo.limits` has the limits of a recording: `max_upload_bytes` and `max_reference_seconds`.

        Args:
            audio: Path, bytes or open file of a recording in any common format, or samples: `(array, rate)`, a Speech.
            options: See VoiceOptions.
        """
        return self._loop.run(self._client.add_reference(audio, **options))

    def add_hifi(
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
        return self._loop.run(self._client.add_hifi(prompt, transcript, reference=reference, **options))

    def encode_latents(
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
        return self._loop.run(
            self._client.encode_latents(
                audio, role=role, source=source, denoise=denoise, trim_silence_vad=trim_silence_vad, model=model
            )
        )

    def voices(
        self, *, kind: VoiceKind | None = None, labels: Mapping[str, str] | None = None, model: str = ""
    ) -> list[Voice]:
        """List voices: stored ones, newest first, and then the presets.

        Args:
            kind: Only voices of this kind: `prompt`, `reference`, `hifi` or `speaker`. Default: `None`, all kinds.
            labels: Only voices with a name that has all of these labels. Default: `None`.
            model: Only voices of this model, one of `list_models`. Default: `""`, the voices of all models.
        """
        return self._loop.run(self._client.voices(kind=kind, labels=labels, model=model))

    def get_voice(self, id: str, *, model: str = "") -> Voice:
        """Describe one voice. Its time to live starts again.

        Raises NotFound, and InvalidArgument for a name of several voices.

        Args:
            id: Id or name of the voice, or the name of a preset.
            model: Name of the model whose presets and voices are meant first. Default: `""`, the default model.
        """
        return self._loop.run(self._client.get_voice(id, model=model))

    def update_voice(
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
        change = self._client.update_voice(id, name=name, labels=labels, ttl=ttl, lora=lora, model=model)
        return self._loop.run(change)

    def delete_voice(
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
        return self._loop.run(self._client.delete_voice(id, missing_ok=missing_ok, cascade=cascade, model=model))

    def model_info(self, model: str = "") -> ModelInfo:
        """Describe a model of the server, its audio formats and its limits. Raises NotFound for an unknown model.

        Args:
            model: Name of the model, one of `list_models`. Default: `""`, the default model.
        """
        return self._loop.run(self._client.model_info(model))

    def list_models(self) -> list[ServedModel]:
        """List the models of the server, the default first. Raises Unimplemented if the server is too old for it."""
        return self._loop.run(self._client.list_models())

    def server_stats(self) -> ServerStats:
        """Read the statistics of a server whose admin port is the target of this client. Is not repeated."""
        return self._loop.run(self._client.server_stats())

    def register_lora(self, name: str, source: str, *, sha256: str | None = None, model: str = "") -> RegisteredLora:
        """Let a server whose admin port is the target of this client fetch a LoRA adapter and speak with it on request.

        Returns when requests may choose it. Is not repeated. Raises AlreadyExists, InvalidArgument if the adapter does
        not fit the model, and FailedPrecondition if the server does not allow the source.

        Args:
            name: Name for the option `lora`.
            source: Directory of the server, `hf://OWNER/NAME[@REVISION]` or URL, below one of `admin.lora_sources`.
            sha256: SHA-256 of the weights, in hexadecimal digits. Default: `None`, any weights.
            model: Name of the model. Default: `""`, the default model.
        """
        return self._loop.run(self._client.register_lora(name, source, sha256=sha256, model=model))

    def list_loras(self, model: str = "") -> list[RegisteredLora]:
        """List the LoRA adapters of a server whose admin port is the target of this client. Is not repeated.

        Args:
            model: Name of a model. Default: `""`, all models.
        """
        return self._loop.run(self._client.list_loras(model))

    def unregister_lora(self, name: str, model: str = "") -> None:
        """Withdraw a LoRA adapter from new streams of a server whose admin port is the target of this client.

        The server frees it after the last stream that has chosen it. Is not repeated. Raises NotFound.

        Args:
            name: Name of the adapter.
            model: Name of the model. Default: `""`, the default model.
        """
        self._loop.run(self._client.unregister_lora(name, model))

    def drain_engine(self, engine: str, *, restart: bool = False) -> None:
        """Take an engine out of service, on a server whose admin port is the target of this client.

        Other engines of its model go on with its streams. Returns when its process has ended. Is not repeated. Raises
        NotFound, and FailedPrecondition if no other engine takes requests.

        Args:
            engine: Name of the engine, as `server_stats` has it.
            restart: Start it again at once, with what its files are by then. Default: `False`.
        """
        self._loop.run(self._client.drain_engine(engine, restart=restart))

    def start_engine(self, engine: str) -> None:
        """Start an engine again that `drain_engine` took out of service. Returns before it is ready. Raises NotFound.

        Args:
            engine: Name of the engine.
        """
        self._loop.run(self._client.start_engine(engine))

    def health(self, service: str = "") -> bool:
        """True if the server accepts calls, False if not. Raises Unavailable if no server answers.

        Raises NotFound for an unknown service. "liveness" is True from the start of the process to its end.

        Args:
            service: Name of a service of the health service, such as "liveness". Default: `""`, the whole server.
        """
        return self._loop.run(self._client.health(service))
