"""The asynchronous client."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Self, Unpack

import grpc

from voxcpm_client.admin import AdminCalls
from voxcpm_client.messages import responses
from voxcpm_client.messages.model_info import ModelInfo, ServedModel
from voxcpm_client.messages.requests import generate_config
from voxcpm_client.stream import AsyncSession, AsyncStream
from voxcpm_client.texts.text import Pause, Text
from voxcpm_client.transport.connection import Connection
from voxcpm_client.transport.security import Security
from voxcpm_client.values.arguments import check_options, check_string, check_text
from voxcpm_client.values.options import SpeechOptions
from voxcpm_client.values.results import Speech
from voxcpm_client.voice_calls import VoiceCalls
from voxcpm_grpc.v1 import tts_pb2 as pb

DEFAULT_TARGET = "127.0.0.1:50051"
"""Address of the server if a client is created without one."""

DEFAULT_TIMEOUT = 300.0
"""Longest duration of a call in seconds, if neither the client nor the call sets another."""

DEFAULT_RETRY_SECONDS = 120.0
"""Longest time from the first failure of a call to a retry, in seconds. The restart of an engine takes less."""


class AsyncClient(VoiceCalls, AdminCalls):
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
