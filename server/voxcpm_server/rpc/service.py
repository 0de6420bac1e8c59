"""VoxCPMService: the RPCs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from voxcpm_grpc.errors import InvalidRequest, NotFound
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.auth.authenticator import Authenticator
from voxcpm_server.auth.principal import Caller
from voxcpm_server.rpc.call import AdmissionGate, Call
from voxcpm_server.rpc.handler import rpc
from voxcpm_server.rpc.metrics import Metrics
from voxcpm_server.rpc.open_calls import OpenCalls
from voxcpm_server.rpc.recent import RecentCalls
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.speech.character_quota import CharacterQuota, CharacterQuotas
from voxcpm_server.speech.chunk_writer import ChunkWriter
from voxcpm_server.speech.session import Session
from voxcpm_server.voices.builder import ChosenVoice, Created, VoiceBuilder, recording_warnings
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.store.io_threads import IoThreads
from voxcpm_server.voices.uploads import UploadBudget, nothing_after_commit, read_config, receive, reception
from voxcpm_server.wire import replies, requests
from voxcpm_server.wire.inputs import (
    AudioRole,
    GenerateConfig,
    GenerateInput,
    Idle,
    UploadConfig,
    UploadInput,
    VoiceChoice,
)
from voxcpm_server.wire.outputs import Summary

log = logging.getLogger(__name__)


class VoxCPMService(tts_pb2_grpc.VoxCPMServiceServicer):
    """Implements the RPCs for any model family. No method blocks the event loop."""

    def __init__(
        self,
        *,
        pool: EnginePool,
        builder: VoiceBuilder,
        catalog: VoiceCatalog,
        threads: IoThreads,
        authenticator: Authenticator,
        calls: OpenCalls,
        gate: AdmissionGate,
        limits: LimitSettings,
        metrics: Metrics | RecentCalls | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.metrics = metrics
        self.tracing = tracing
        self.calls = calls
        self.gate = gate
        self.uploads = UploadBudget(limits.max_upload_bytes_total, limits.upload_bytes_per_caller)
        self.write_seconds = limits.write_seconds
        per_minute = limits.max_chars_per_minute_per_caller
        self._quotas = CharacterQuotas(per_minute) if per_minute else None
        self._pool = pool
        self._builder = builder
        self._catalog = catalog
        self._threads = threads
        self._limits = limits
        self._reader = requests.RequestReader(pool.info, limits)

    @rpc(stream=True)
    async def Generate(self, stream: AsyncIterator[pb.GenerateRequest], call: Call) -> None:
        messages = self._generate_inputs(stream, call)
        first = await self._first(messages)
        if isinstance(first, GenerateConfig):
            config, first = first, None
        else:
            config = self._reader.generate_config(pb.GenerateConfig())
        asked = config.voice
        call.voice = asked.voice or asked.preset or asked.hifi
        chosen = await self._voice(config, call.caller)
        call.voice = chosen.name
        log.debug(LogLine("voice", request_id=call.request_id, voice=chosen.name))
        config = replace(config, voice=VoiceChoice())  # frees the recordings inside: a stream may last for long
        session = Session(
            config,
            chosen.conditioning,
            chosen.name,
            pool=self._pool,
            encode=self._builder.encode_speech,
            limits=self._limits,
            request_id=call.request_id,
            remaining=call.context.time_remaining,
            send=call.replies.write,
            warnings=chosen.warnings,
            on_segment=call.trace and call.trace.add_segment,
            quota=CharacterQuota(self._quotas, call.caller.key) if self._quotas else None,
        )
        try:
            await session.run(first, messages)
        finally:
            call.characters, call.queue_seconds = session.characters, session.queue_seconds
            call.first_audio_seconds, call.audio_seconds = session.first_audio_seconds, session.audio_seconds
            call.arrival_to_audio_seconds = session.arrival_to_audio_seconds
            call.engine_seconds, call.playback = session.engine_seconds, session.playback

    @rpc(stream=True)
    async def AddPrompt(self, stream: AsyncIterator[pb.AddPromptRequest], call: Call) -> None:
        await self._add(stream, call)

    @rpc(stream=True)
    async def AddReference(self, stream: AsyncIterator[pb.AddReferenceRequest], call: Call) -> None:
        await self._add(stream, call)

    @rpc(stream=True)
    async def AddHifi(self, stream: AsyncIterator[pb.AddHifiRequest], call: Call) -> None:
        await self._add(stream, call)

    @rpc(stream=True)
    async def EncodeLatents(
        self, stream: AsyncIterator[pb.EncodeLatentsRequest], call: Call
    ) -> pb.EncodeLatentsResponse:
        async with self._received(stream, call) as (config, recordings):
            (role,) = config.roles
            upload = config.prompt if role is AudioRole.PROMPT else config.reference
            assert upload is not None and not isinstance(upload, str)
            decoded = await self._builder.decode(recordings[role], upload, role, call.caller)
            latents = await self._builder.encode(decoded, role)
        warnings = recording_warnings(decoded, role)
        return replies.latents(latents, self._pool.info.fingerprint, decoded.seconds, warnings)

    @rpc(stream=False)
    async def GetVoice(self, request: pb.GetVoiceRequest, call: Call) -> pb.GetVoiceResponse:
        call.voice = requests.voice_id(request)
        voice = await self._catalog.find(await self._id(call.voice, call.caller), call.caller)
        return replies.get_voice(voice, with_owner=call.caller.admin)

    @rpc(stream=False)
    async def ListVoices(self, request: pb.ListVoicesRequest, call: Call) -> pb.ListVoicesResponse:
        kind, labels, size, token = requests.listing(request)
        page = await self._catalog.page(call.caller, kind=kind, labels=labels, size=size, token=token)
        return replies.voice_page(*page, with_owner=call.caller.admin)

    @rpc(stream=False)
    async def UpdateVoice(self, request: pb.UpdateVoiceRequest, call: Call) -> pb.UpdateVoiceResponse:
        name, change = requests.update(request)
        call.voice = name
        voice = await self._catalog.update(await self._id(name, call.caller), change, call.caller)
        return replies.update_voice(voice, with_owner=call.caller.admin)

    @rpc(stream=False)
    async def DeleteVoice(self, request: pb.DeleteVoiceRequest, call: Call) -> pb.DeleteVoiceResponse:
        name, cascade, allow_missing = requests.deletion(request)
        call.voice = name
        try:
            await self._catalog.delete(await self._id(name, call.caller), call.caller, cascade=cascade)
        except NotFound:
            if not allow_missing:
                raise
        return pb.DeleteVoiceResponse()

    @rpc(stream=False)
    async def GetModelInfo(self, request: pb.GetModelInfoRequest, call: Call) -> pb.GetModelInfoResponse:
        return replies.model_info(self._pool.info, self._limits, self._catalog.presets, self._catalog.default)

    # ----

    async def _generate_inputs(self, stream: AsyncIterator[Any], call: Call) -> AsyncIterator[GenerateInput]:
        async for message in stream:
            call.identify(requests.request_id(message))
            yield self._reader.generate(message)

    async def _first(self, messages: AsyncIterator[GenerateInput]) -> GenerateInput | None:
        try:
            async with asyncio.timeout(self._limits.stream_idle_seconds):
                return await anext(messages, None)
        except TimeoutError:
            return Idle()

    async def _upload_inputs(self, stream: AsyncIterator[Any], call: Call) -> AsyncIterator[UploadInput]:
        async for message in stream:
            call.identify(requests.request_id(message))
            yield self._reader.upload(message)

    async def _id(self, name: str, caller: Caller) -> str:
        """The id of the voice of an id or a name in the field `id`."""
        try:
            return await self._catalog.resolve(name, caller)
        except (InvalidRequest, NotFound) as error:
            error.field = "id"
            raise

    async def _voice(self, config: GenerateConfig, caller: Caller) -> ChosenVoice:
        choice = config.voice
        if choice == VoiceChoice() and not config.style:
            choice = VoiceChoice(preset=self._catalog.default)
        with self.uploads.account(caller.key) as take:
            for inline in choice.inline:
                take(len(inline.data), inline.name)
            chosen = await self._builder.choose(choice, caller)
        if config.style and chosen.conditioning.prompt is not None:  # by its name: the reader refuses others
            raise requests.style_with_prompt_error("config.turn.style")
        return chosen

    @asynccontextmanager
    async def _received(
        self, stream: AsyncIterator[Any], call: Call
    ) -> AsyncIterator[tuple[UploadConfig, dict[AudioRole, bytes]]]:
        """Receive a whole upload. The recordings exist, and count against the budget, until the end of the block."""
        messages = self._upload_inputs(stream, call)
        idle = self._limits.upload_idle_seconds
        with self.uploads.account(call.caller.key) as take:
            async with reception(self._limits.upload_seconds):
                config = await read_config(messages, idle)
                recordings = await receive(
                    messages,
                    config.roles,
                    max_bytes=self._limits.max_upload_bytes,
                    idle_seconds=idle,
                    take=take,
                    threads=self._threads,
                )
            try:
                async with nothing_after_commit(messages):
                    yield config, recordings
            finally:
                recordings.clear()

    async def _add(self, stream: AsyncIterator[Any], call: Call) -> None:
        async with self._received(stream, call) as (config, recordings):
            created = await self._builder.create(config, recordings, call.caller)
        call.voice = created.stored.voice.id
        await self._send_created(created, config, call)

    async def _send_created(self, created: Created, config: UploadConfig, call: Call) -> None:
        """Send the handle and, for a preview, the audio that the model reconstructs from the latents."""
        info = self._pool.info
        format = config.preview or self._reader.default_output

        def header(delay: int) -> pb.StreamHeader:
            return replies.header(info, format, call.request_id, delay=delay)

        chunks = ChunkWriter(call.replies.write, header, info.output_sample_rate, format)
        chunks.warn(*created.warnings)
        await chunks.voice(created.stored.voice, created.reused)
        try:
            for latents in (created.stored.prompt, created.stored.reference) if config.preview else ():
                if latents is not None:
                    async with aclosing(self._pool.decode(latents)) as pieces:
                        async for piece in pieces:
                            await chunks.audio(piece)
                    await chunks.flush(None)
        finally:
            call.audio_seconds = chunks.offset / format.sample_rate
        await chunks.finish(Summary(began=call.started))
