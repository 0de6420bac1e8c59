"""VoxCPMService: the RPCs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.aligners.pool import AlignerPool
from voxcpm_server.auth.authenticator import Authenticator
from voxcpm_server.auth.principal import Caller
from voxcpm_server.models import Model, Models
from voxcpm_server.operation.host import Fronts
from voxcpm_server.operation.metrics import Metrics
from voxcpm_server.operation.recent import RecentCalls
from voxcpm_server.rpc.call import AdmissionGate, Call
from voxcpm_server.rpc.open_calls import OpenCalls
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.services.handler import rpc
from voxcpm_server.services.voices import VoiceRpcs
from voxcpm_server.speech.auditions import Auditions
from voxcpm_server.speech.character_quota import CharacterQuota, CharacterQuotas
from voxcpm_server.speech.session import Session
from voxcpm_server.speech.words.word_times import word_times
from voxcpm_server.speech.writer import ChunkWriter
from voxcpm_server.text.lexicon import Lexicon
from voxcpm_server.text.normalize.normalizer import TextNormalizer
from voxcpm_server.text.preparation import TextPreparation
from voxcpm_server.text.preview import preview_text
from voxcpm_server.values.inputs import (
    GenerateConfig,
    GenerateInput,
    Idle,
    Preview,
    PreviewMode,
    Role,
    TurnChange,
    UploadConfig,
    UploadInput,
    VoiceChoice,
)
from voxcpm_server.values.outputs import Summary, between
from voxcpm_server.voices.builder import ChosenVoice, Created
from voxcpm_server.voices.recordings import recording_warnings
from voxcpm_server.voices.store.records import StoredVoice
from voxcpm_server.voices.uploads import UploadBudget, nothing_after_commit, read_config, receive, reception
from voxcpm_server.wire import generate, replies, voices
from voxcpm_server.wire.fields import inside

log = logging.getLogger(__name__)

T = TypeVar("T")
QUOTAS_TOPIC = "characters"  # the topic of messages between fronts


class VoxCPMService(VoiceRpcs, tts_pb2_grpc.VoxCPMServiceServicer):
    """Implements the RPCs for any model family. No method blocks the event loop."""

    def __init__(
        self,
        *,
        models: Models,
        threads: IoThreads,
        authenticator: Authenticator,
        calls: OpenCalls,
        gate: AdmissionGate,
        limits: LimitSettings,
        lexicon: Lexicon | None = None,
        normalizer: TextNormalizer | None = None,
        aligners: AlignerPool | None = None,
        metrics: Metrics | RecentCalls | None = None,
        tracing: Tracing | None = None,
        fronts: Fronts | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.metrics = metrics
        self.tracing = tracing
        self.calls = calls
        self.gate = gate
        self.uploads = UploadBudget(limits.max_upload_bytes_total, limits.upload_bytes_per_caller)
        self.write_seconds = limits.write_seconds
        self._quotas = _shared_quotas(limits.max_chars_per_minute_per_caller, fronts)
        self._models = models
        self._threads = threads
        self._limits = limits
        self._lexicon = lexicon or Lexicon()
        self._normalizer = normalizer
        self._aligners = aligners

    @rpc(stream=True)
    async def Generate(self, stream: AsyncIterator[pb.GenerateRequest], call: Call) -> None:
        await self.speak(stream, call, call.replies.write)

    async def speak(
        self,
        stream: AsyncIterator[pb.GenerateRequest],
        call: Call,
        send: Callable[[pb.AudioChunk], Awaitable[None]],
    ) -> None:
        """Run a Generate stream whose messages, and whose replies, are those of any call. Raises VoxCPMError."""
        messages = self._inputs(stream, call, lambda model, message: model.reader.generate(message))
        first: GenerateInput | None
        try:
            async with asyncio.timeout(self._limits.stream_idle_seconds):
                first = await anext(messages, None)
        except TimeoutError:
            first = Idle()
        model = self._models.find(call.model)
        if isinstance(first, GenerateConfig):
            config, first = first, None
        else:
            config = model.reader.generate_config(pb.GenerateConfig())
        if isinstance(first, TurnChange):
            config, first = replace(config, turn=first.config), None
        call.voice = config.voice.voice or config.voice.preset or config.voice.hifi
        chosen = await self._voice(model, config, call.caller)
        call.voice = chosen.name
        log.debug(LogLine("voice", request_id=call.request_id, voice=chosen.name))
        config = replace(config, voice=VoiceChoice())  # this frees the recordings inside: a stream may last for long
        with inside("config"):
            session = self._session(model, config, chosen, call, send)
        try:
            await session.run(first, messages)
        finally:
            call.characters, call.audio_seconds = session.summary.chars, session.audio_seconds
            call.summary, call.playback = session.summary, session.playback
            call.arrival_to_audio_seconds = between(session.summary.began, session.summary.first_audio)

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
        async with self._received(self._inputs(stream, call, _read_upload), call) as (config, recordings):
            builder = self._models.find(call.model).builder
            (role,) = config.roles
            upload = config.prompt if role is Role.PROMPT else config.reference
            assert upload is not None and not isinstance(upload, str)
            decoded = await builder.decode(recordings[role], upload, role, call.caller)
            part = await builder.encode(decoded, role)
        warnings = recording_warnings(decoded, role)
        fingerprint = self._models.find(call.model).info.fingerprint
        return replies.latents(part, fingerprint, decoded.seconds, warnings)

    @rpc(stream=False)
    async def GetModelInfo(self, request: pb.GetModelInfoRequest, call: Call) -> pb.GetModelInfoResponse:
        model = self._models.find(voices.model(request))
        call.model = model.name
        loras = [adapter.name for adapter in model.pool.adapters.registered]
        return replies.model_info(model.info, self._limits, model.catalog.presets, model.catalog.default, loras)

    @rpc(stream=False)
    async def ListModels(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        return replies.models(self._models.summaries())

    # ----

    async def _inputs(
        self, stream: AsyncIterator[Any], call: Call, read: Callable[[Model, Any], T]
    ) -> AsyncIterator[T]:
        """The values that a model reads from the messages of a stream, of which the first one chooses the model."""
        model: Model | None = None
        async for message in stream:
            call.identify(generate.request_id(message))
            if model is None:
                model = self._models.find(generate.model(message), "config.model")
                call.model, call.logs_model = model.name, self._models.several
            yield read(model, message)

    async def _voice(self, model: Model, config: GenerateConfig, caller: Caller) -> ChosenVoice:
        choice = config.voice
        if choice == VoiceChoice() and (model.info.speakers or not config.turn.style):
            choice = VoiceChoice(preset=model.catalog.default)
        with self.uploads.account(caller.key) as take:
            for inline in choice.inline:
                take(len(inline.data), inline.name)
            chosen = await model.builder.choose(choice, caller)
        # The voice has a name: the reader refuses others.
        if config.turn.style and chosen.conditioning.prompt is not None:
            model.info.require_style_with_prompt("config.turn.style")
        return chosen

    @asynccontextmanager
    async def _received(
        self, messages: AsyncIterator[UploadInput], call: Call
    ) -> AsyncIterator[tuple[UploadConfig, dict[Role, bytes]]]:
        """Receive a whole upload. The recordings exist, and count against the budget, until the end of the block.

        Messages after the commit are refused, unless auditions may follow: those are not read yet.
        """
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
            auditions = config.preview is not None and config.preview.auditions
            try:
                async with nullcontext() if auditions else nothing_after_commit(messages):
                    yield config, recordings
            finally:
                recordings.clear()

    async def _add(self, stream: AsyncIterator[Any], call: Call) -> None:
        messages = self._inputs(stream, call, _read_upload)
        async with self._received(messages, call) as (config, recordings):
            model = self._models.find(call.model)
            created = await model.builder.create(config, recordings, call.caller)
        call.voice = created.stored.voice.id
        await self._send_created(model, created, config.preview, messages, call)

    async def _send_created(
        self,
        model: Model,
        created: Created,
        preview: Preview | None,
        messages: AsyncIterator[UploadInput],
        call: Call,
    ) -> None:
        """Send the handle, and then the preview and the auditions."""
        info = model.info
        chosen = model.builder.chosen(created.stored)
        format = preview.config.output if preview else model.reader.default_output
        speech = (
            {"seed": preview.config.turn.sampling.seed, "voice": chosen.name}
            if preview is not None and preview.speaks
            else {}
        )
        header = partial(replies.header, info, format, call.request_id, **speech)
        summary = Summary(began=call.started)
        words = word_times(self._aligners, preview.config, info) if preview else None
        chunks = ChunkWriter(call.replies.write, header, info.output_sample_rate, format, summary, words)
        chunks.warn(*created.warnings)
        await chunks.voice(created.stored.voice, created.reused, model.name)
        try:
            if preview is not None and preview.mode is PreviewMode.RECONSTRUCTION:
                await _send_reconstruction(model, created.stored, chunks)
            if preview is not None and preview.speaks:
                await self._speak_created(model, chosen, preview, messages, chunks, call)
            await chunks.finish()
        finally:
            chunks.close()
            call.audio_seconds = chunks.offset / format.sample_rate

    async def _speak_created(
        self,
        model: Model,
        chosen: ChosenVoice,
        preview: Preview,
        messages: AsyncIterator[UploadInput],
        chunks: ChunkWriter,
        call: Call,
    ) -> None:
        auditions = Auditions(
            lambda config: self._session(model, config, chosen, call, call.replies.write, chunks),
            chunks=chunks,
            preview=preview.config,
        )
        try:
            if preview.mode is PreviewMode.SYNTHESIS:
                prompt = chosen.conditioning.prompt
                text = preview.text or preview_text(prompt.text if prompt else "", model.info.languages)
                await auditions.preview(text)
            if preview.auditions:
                await auditions.run(messages, self._limits.stream_idle_seconds)
        finally:
            call.characters = auditions.characters
            if auditions.session is not None:
                call.summary, call.playback = chunks.summary, auditions.session.playback

    def _session(
        self,
        model: Model,
        config: GenerateConfig,
        chosen: ChosenVoice,
        call: Call,
        send: Callable[[pb.AudioChunk], Awaitable[None]],
        chunks: ChunkWriter | None = None,
    ) -> Session:
        """A session of a call, with a reply stream of its own unless the writer of one is given."""
        return Session(
            config,
            chosen.conditioning,
            chosen.name,
            pool=model.pool,
            encode=model.builder.encode_speech,
            limits=self._limits,
            request_id=call.request_id,
            remaining=call.context.time_remaining,
            send=send,
            shorten=call.replies.shorten,
            with_lora=partial(model.builder.with_lora, chosen),
            warnings=chosen.warnings,
            on_segment=call.trace and call.trace.add_segment,
            quota=CharacterQuota(self._quotas, call.caller.key) if self._quotas else None,
            preparation=TextPreparation(
                self._lexicon.preceded_by(config.lexicon), self._normalizer, config.segmentation.language
            ),
            aligners=self._aligners,
            chunks=chunks,
            open_sessions=model.sessions,
        )


def _read_upload(model: Model, message: Any) -> UploadInput:
    return model.uploads.read(message)


async def _send_reconstruction(model: Model, stored: StoredVoice, chunks: ChunkWriter) -> None:
    for part in (stored.prompt, stored.reference):
        if part is not None:
            async with aclosing(model.pool.decode(part)) as pieces:
                async for piece in pieces:
                    await chunks.audio(piece)
            await chunks.flush(None)


def _shared_quotas(per_minute: int, fronts: Fronts | None) -> CharacterQuotas | None:
    """The quotas of text, which callers share among all fronts; None without a limit.

    Each front keeps the buckets, and takes what the others spend from its own. A front that is restarted begins with
    full ones.
    """
    if not per_minute:
        return None
    if fronts is None:
        return CharacterQuotas(per_minute)
    quotas = CharacterQuotas(per_minute, lambda *spent: fronts.send_others(QUOTAS_TOPIC, msgspec.msgpack.encode(spent)))
    fronts.receive(QUOTAS_TOPIC, lambda body: quotas.take(*msgspec.msgpack.decode(body, type=tuple[str, int])))
    return quotas
