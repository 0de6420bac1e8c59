"""VoxCPMService: what each RPC does, in a few lines each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from voxcpm_grpc.errors import NotFound
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Conditioning
from voxcpm_grpc.settings.schema import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server import wire
from voxcpm_server.rpc.call import AdmissionGate, Call
from voxcpm_server.rpc.handler import rpc
from voxcpm_server.speech.chunk_writer import ChunkWriter
from voxcpm_server.speech.session import Session
from voxcpm_server.voices.builder import Created, VoiceBuilder
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.io_threads import IoThreads
from voxcpm_server.voices.uploads import UploadBudget, read_config, receive
from voxcpm_server.wire.inputs import (
    GenerateConfig,
    GenerateInput,
    Role,
    Silence,
    UploadConfig,
    UploadInput,
    VoiceChoice,
)
from voxcpm_server.wire.outputs import Header, Summary


class VoxCPMService(tts_pb2_grpc.VoxCPMServiceServicer):
    """The RPCs. Nothing here knows a model family, and nothing blocks the event loop."""

    def __init__(
        self,
        *,
        pool: EnginePool,
        builder: VoiceBuilder,
        catalog: VoiceCatalog,
        threads: IoThreads,
        gate: AdmissionGate,
        limits: LimitSettings,
    ) -> None:
        self.gate = gate
        self.uploads = UploadBudget(limits.max_upload_bytes_total)
        self._pool = pool
        self._builder = builder
        self._catalog = catalog
        self._threads = threads
        self._limits = limits
        self._reader = wire.RequestReader(pool.info, limits)

    @rpc(stream=True)
    async def Generate(self, requests: AsyncIterator[pb.GenerateRequest], call: Call) -> None:
        messages = self._generate_inputs(requests, call)
        first = await self._first(messages)
        if isinstance(first, GenerateConfig):
            config, first = first, None
        else:
            config = self._reader.generate_config(pb.GenerateConfig())
        choice = config.voice
        if choice.is_open and not config.style:
            choice = VoiceChoice(preset=self._catalog.default)
        voice = await self._conditioning(choice)
        if config.style and voice.prompt is not None:  # of a preset: others were refused at once
            raise wire.style_with_prompt("config.turn.style")
        config = replace(config, voice=VoiceChoice())  # a session may last long, and has no use for recordings
        session = Session(
            config,
            voice,
            choice.name,
            pool=self._pool,
            encode=self._builder.encode_speech,
            max_text_chars=self._limits.max_text_chars,
            max_carry_seconds=self._limits.max_carry_seconds,
            idle_seconds=self._limits.stream_idle_seconds,
            request_id=call.request_id,
            remaining=call.context.time_remaining,
            send=call.context.write,
        )
        try:
            await session.run(_after(first, messages))
        finally:
            call.audio_seconds = session.audio_seconds

    @rpc(stream=True)
    async def AddPrompt(self, requests: AsyncIterator[pb.AddPromptRequest], call: Call) -> None:
        await self._add(requests, call)

    @rpc(stream=True)
    async def AddReference(self, requests: AsyncIterator[pb.AddReferenceRequest], call: Call) -> None:
        await self._add(requests, call)

    @rpc(stream=True)
    async def AddHifi(self, requests: AsyncIterator[pb.AddHifiRequest], call: Call) -> None:
        await self._add(requests, call)

    @rpc(stream=True)
    async def EncodeLatents(
        self, requests: AsyncIterator[pb.EncodeLatentsRequest], call: Call
    ) -> pb.EncodeLatentsResponse:
        async with self._received(requests, call) as (config, recordings):
            (role,) = config.roles
            upload = config.prompt if role is Role.PROMPT else config.reference
            assert upload is not None and not isinstance(upload, str)
            decoded = await self._builder.decode(recordings[role], upload, role)
            latents = await self._builder.encode(decoded, role)
        return wire.latents(latents, self._pool.info.fingerprint, decoded.seconds)

    @rpc(stream=False)
    async def GetVoice(self, request: pb.GetVoiceRequest, call: Call) -> pb.GetVoiceResponse:
        return pb.GetVoiceResponse(handle=wire.handle(await self._catalog.find(request.id)))

    @rpc(stream=False)
    async def ListVoices(self, request: pb.ListVoicesRequest, call: Call) -> pb.ListVoicesResponse:
        kind, labels, size, token = wire.listing(request)
        return wire.voice_page(*await self._catalog.page(kind=kind, labels=labels, size=size, token=token))

    @rpc(stream=False)
    async def DeleteVoice(self, request: pb.DeleteVoiceRequest, call: Call) -> pb.DeleteVoiceResponse:
        try:
            await self._catalog.delete(request.id, cascade=request.cascade)
        except NotFound:
            if not request.allow_missing:
                raise
        return pb.DeleteVoiceResponse()

    @rpc(stream=False)
    async def GetModelInfo(self, request: pb.GetModelInfoRequest, call: Call) -> pb.GetModelInfoResponse:
        return wire.model_info(self._pool.info, self._limits, self._catalog.presets, self._catalog.default)

    # ----

    async def _generate_inputs(self, requests: AsyncIterator[Any], call: Call) -> AsyncIterator[GenerateInput]:
        async for request in requests:
            call.request_id = wire.request_id(request) or call.request_id
            yield self._reader.generate(request)

    async def _first(self, messages: AsyncIterator[GenerateInput]) -> GenerateInput | None:
        try:
            async with asyncio.timeout(self._limits.stream_idle_seconds):
                return await anext(messages, None)
        except TimeoutError:
            return Silence()

    async def _upload_inputs(self, requests: AsyncIterator[Any], call: Call) -> AsyncIterator[UploadInput]:
        async for request in requests:
            call.request_id = wire.request_id(request) or call.request_id
            yield self._reader.upload(request)

    async def _conditioning(self, choice: VoiceChoice) -> Conditioning:
        with self.uploads.account() as take:
            for recording in choice.recordings:
                take(len(recording.data), recording.name)
            return await self._builder.conditioning(choice)

    @asynccontextmanager
    async def _received(
        self, requests: AsyncIterator[Any], call: Call
    ) -> AsyncIterator[tuple[UploadConfig, dict[Role, bytes]]]:
        """A whole upload. Its recordings are gone, and counted no more, after the block."""
        messages = self._upload_inputs(requests, call)
        idle = self._limits.upload_idle_seconds
        config = await read_config(messages, idle)
        with self.uploads.account() as take:
            recordings = await receive(
                messages,
                config.roles,
                max_bytes=self._limits.max_upload_bytes,
                idle_seconds=idle,
                take=take,
                threads=self._threads,
            )
            try:
                yield config, recordings
            finally:
                recordings.clear()

    async def _add(self, requests: AsyncIterator[Any], call: Call) -> None:
        async with self._received(requests, call) as (config, recordings):
            created = await self._builder.create(config, recordings)
        await self._tell(created, config, call)

    async def _tell(self, created: Created, config: UploadConfig, call: Call) -> None:
        """The handle, then what the model heard, if the caller wants to hear it too."""
        info = self._pool.info
        format = config.preview or self._reader.default_output
        header = Header(request_id=call.request_id, format=format, model=info.name, fingerprint=info.fingerprint)
        chunks = ChunkWriter(call.context.write, lambda: header, info.output_sample_rate, format)
        await chunks.voice(created.stored.voice, created.reused)
        for latents in (created.stored.prompt, created.stored.reference) if config.preview else ():
            if latents is not None:
                async with aclosing(self._pool.decode(latents)) as pieces:
                    async for piece in pieces:
                        await chunks.audio(piece)
                await chunks.flush(None)
        call.audio_seconds = chunks.offset / format.sample_rate
        await chunks.finish(Summary(wall=call.elapsed))


async def _after(first: GenerateInput | None, rest: AsyncIterator[GenerateInput]) -> AsyncIterator[GenerateInput]:
    if first is not None:
        yield first
    async for message in rest:
        yield message
