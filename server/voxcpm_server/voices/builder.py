"""Turns recordings, latents and ids into conditioning and into stored voices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.audio import BadAudio, resample
from voxcpm_grpc.audio.uploads import Decoded, DecodePool
from voxcpm_grpc.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Reason,
    TooLong,
)
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Conditioning, Request, Role, VoicePart
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_server.auth.principal import OPERATOR, Caller
from voxcpm_server.values.inputs import (
    InlinePrompt,
    RawLatents,
    Recording,
    TurnConfig,
    Upload,
    UploadConfig,
    VoiceChoice,
    VoiceOptions,
)
from voxcpm_server.values.outputs import RequestWarning
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.voices.catalog import VoiceCatalog, VoiceRef
from voxcpm_server.voices.recordings import parse_latents, recording_warnings, transcript_warnings
from voxcpm_server.voices.store.records import Damaged, StoredVoice, voice_id

KINDS = {Role.PROMPT: VoiceKind.PROMPT, Role.REFERENCE: VoiceKind.REFERENCE}
SHORTEST_TEXT = "a"
DISPLAY_NAME = "config.options.display_name"
INLINE = "inline"  # a recording inside a request has this name
MAX_OWN_SECONDS = 60.0  # seconds of the operator's recordings; the limits in the settings are for callers


@dataclass(frozen=True, slots=True)
class Created:
    """A stored voice; `reused` is True if it was stored before. `warnings` are doubts about its recordings."""

    stored: StoredVoice
    reused: bool
    warnings: tuple[RequestWarning, ...]


@dataclass(frozen=True, slots=True)
class ChosenVoice:
    """The voice of a stream.

    name: for its header; empty if the model chooses the voice
    loras: names of its LoRA adapters, each with the name of a voice that it is of; two if it combines voices
    """

    conditioning: Conditioning
    name: str
    warnings: tuple[RequestWarning, ...] = ()
    loras: Mapping[str, str] = field(default_factory=dict[str, str])


class VoiceBuilder:
    """Decodes recordings in the decode pool, encodes them on an engine and computes digests in threads."""

    def __init__(
        self, pool: EnginePool, decoder: DecodePool, catalog: VoiceCatalog, threads: IoThreads, limits: LimitSettings
    ) -> None:
        self._pool = pool
        self._decoder = decoder
        self._catalog = catalog
        self._threads = threads
        self._limits = limits

    async def choose(self, choice: VoiceChoice, caller: Caller) -> ChosenVoice:
        """The voice that a caller chose. Raises InvalidRequest, NotFound and FailedPrecondition.

        Without a choice it is the first built-in voice, or none if the model chooses one.
        """
        if choice.preset:
            try:
                return self.chosen(self._catalog.preset(choice.preset))
            except NotFound as error:
                error.field = "config.conditioning.preset"
                raise
        if choice.voice:
            return self.chosen(await self._load(choice.voice, None, "config.conditioning.voice", caller))
        if choice.hifi:
            return self.chosen(await self._load(choice.hifi, VoiceKind.HIFI, "config.conditioning.hifi_id", caller))
        prompt = reference = None
        names: list[str] = []
        loras: dict[str, str] = {}
        warnings: list[RequestWarning] = []
        match choice.prompt:
            case str(id):
                stored = await self._load(id, VoiceKind.PROMPT, "config.conditioning.prompt_id", caller)
                prompt = stored.prompt
                names.append(stored.voice.id)
                loras |= self._loras(stored)
            case InlinePrompt(source=source, transcript=transcript):
                encoded = await self._inline(source, Role.PROMPT, caller, warnings, transcript)
                prompt = replace(encoded, text=transcript)
                await self._check_length(Conditioning(prompt=prompt), source.name)
                names.append(INLINE)
        match choice.reference:
            case str(id):
                stored = await self._load(id, VoiceKind.REFERENCE, "config.conditioning.reference_id", caller)
                reference = stored.reference
                names.append(stored.voice.id)
                loras |= self._loras(stored)
            case Recording() | RawLatents() as source:
                reference = await self._inline(source, Role.REFERENCE, caller, warnings)
                names.append(INLINE)
        if not names:
            info = self._pool.info
            info.require("no_voice", "config.conditioning")
            first = info.speakers[0] if info.speakers else ""
            return ChosenVoice(Conditioning(speaker=first), first)
        conditioning = Conditioning(prompt=prompt, reference=reference)
        return ChosenVoice(conditioning, "+".join(dict.fromkeys(names)), tuple(warnings), loras)

    def chosen(self, stored: StoredVoice) -> ChosenVoice:
        """The choice of a stored voice, with all that it has."""
        speaker = stored.voice.display_name if stored.voice.kind is VoiceKind.SPEAKER else ""
        conditioning = Conditioning(prompt=stored.prompt, reference=stored.reference, speaker=speaker)
        return ChosenVoice(conditioning, self._catalog.name_of(stored.voice), loras=self._loras(stored))

    def _loras(self, stored: StoredVoice) -> dict[str, str]:
        return {stored.voice.lora: self._catalog.name_of(stored.voice)} if stored.voice.lora else {}

    def check_lora(self, name: str) -> None:
        """Raise NotFound if the model has no LoRA adapter of this name, and FailedPrecondition if it takes none.

        An empty name is none.
        """
        if name:
            self._pool.info.require("lora", "lora")
            self._pool.adapters.find(name)

    def with_lora(self, chosen: ChosenVoice, turn: TurnConfig) -> TurnConfig:
        """The turn with the LoRA adapter of its voice, unless it has chosen one, or none, itself.

        Raises FailedPrecondition if the server does not have that adapter, and InvalidRequest if there are two.
        """
        if turn.has_adapter or not chosen.loras:
            return turn
        if len(chosen.loras) > 1:
            voices = " and ".join(f"voice {voice} the LoRA adapter {lora!r}" for lora, voice in chosen.loras.items())
            raise InvalidRequest(
                f"{voices}; set lora to one of them, or to an empty string for none", field="turn.lora"
            )
        ((lora, voice),) = chosen.loras.items()
        try:
            adapter = self._pool.adapters.find(lora)
        except NotFound:
            raise FailedPrecondition(
                f"voice {voice} speaks with the LoRA adapter {lora!r}, which this server does not have; register the "
                "adapter, or set lora to an empty string to speak with the model alone",
                field="turn.lora",
                reason=Reason.LORA_OF_VOICE_MISSING,
                voice=voice,
                lora=lora,
            ) from None
        return replace(turn, adapter=adapter, has_adapter=True)

    async def _check_length(self, conditioning: Conditioning, field: str) -> None:
        """Raise InvalidRequest if the engine has no room for a text behind a voice."""
        try:
            await self._pool.check(Request(id="check", text=SHORTEST_TEXT, conditioning=conditioning))
        except TooLong as error:
            raise InvalidRequest(
                f"the voice and the shortest text need {error.positions} positions and the engine has {error.limit}; "
                "use a shorter recording or a shorter transcript",
                field=field,
            ) from None

    async def _load(self, name: str, kind: VoiceKind | None, field: str, caller: Caller) -> StoredVoice:
        """The voice of an id or a name; of any kind if `kind` is None."""
        try:
            stored = await self._catalog.load(await self._catalog.resolve(name, caller, kind), caller)
        except (InvalidRequest, NotFound, FailedPrecondition) as error:
            error.field = field
            raise
        if kind is not None and stored.voice.kind is not kind:
            raise InvalidRequest(
                f"voice {name[:80]} is a {stored.voice.kind.name.lower()}; {field.rpartition('.')[2]} needs "
                f"a {kind.name.lower()}",
                field=field,
            )
        return stored

    async def _inline(
        self,
        source: Recording | RawLatents,
        role: Role,
        caller: Caller,
        warnings: list[RequestWarning],
        transcript: str = "",
    ) -> VoicePart:
        """A recording inside a request, without its transcript; adds to `warnings`."""
        if isinstance(source, RawLatents):
            return parse_latents(source, self._pool.info, self._max_seconds(role))
        try:
            decoded = await self._decode(source.data, source, role, caller, self._limits.max_inline_audio_bytes)
        except BadAudio as error:
            error.field = source.name
            raise
        warnings += recording_warnings(decoded, role)
        warnings += transcript_warnings(transcript, decoded.seconds, self._pool.info)
        return await self.encode(decoded, role)

    async def decode(self, data: bytes, upload: Upload, role: Role, caller: Caller) -> Decoded:
        """The audio of a caller's recording at the model's input rate. Raises BadAudio and Unavailable."""
        return await self._decode(data, upload, role, caller, self._limits.max_upload_bytes)

    async def encode(self, decoded: Decoded, role: Role) -> VoicePart:
        """The recording as a part of a voice, without its text."""
        return await self._pool.encode(decoded.waveform, role)

    async def encode_speech(self, samples: np.ndarray) -> VoicePart:
        """Audio that the model made, float32 [n] at its output rate, as a reference."""
        info = self._pool.info
        waveform = await self._threads.run(resample, samples, info.output_sample_rate, info.input_sample_rate)
        return await self._pool.encode(waveform, Role.REFERENCE)

    async def create(self, config: UploadConfig, recordings: Mapping[Role, bytes], caller: Caller) -> Created:
        """Build the voice and store it durably for a caller.

        A voice of the same content that is stored already gets the options that the config sets, and is returned.
        """
        self._catalog.check_name(config.options.display_name, DISPLAY_NAME)
        members: dict[Role, StoredVoice] = {}
        using: list[str] = []
        decoded: Decoded | None = None
        warnings: tuple[RequestWarning, ...] = ()
        for role, source in ((Role.PROMPT, config.prompt), (Role.REFERENCE, config.reference)):
            match source:
                case str(id):
                    members[role] = await self._load(id, KINDS[role], f"config.{role.value}_id", caller)
                    using.append(members[role].voice.id)
                case Upload() as upload:
                    decoded = await self.decode(recordings[role], upload, role, caller)
                    members[role] = await self._member(decoded, role, upload.transcript, config.options, caller)
                    warnings += recording_warnings(decoded, Role.REFERENCE if config.shared else role)
                    warnings += transcript_warnings(upload.transcript, decoded.seconds, self._pool.info)
        if config.shared:
            assert decoded is not None
            members[Role.REFERENCE] = await self._member(decoded, Role.REFERENCE, "", config.options, caller)
        wanted = [stored for stored in members.values() if stored.voice.id not in using]
        if len(members) > 1:
            wanted.append(self._hifi(members[Role.PROMPT], members[Role.REFERENCE], config.options, caller))
        prompt, reference = (members.get(role) for role in Role)
        await self._check_length(
            Conditioning(prompt=prompt and prompt.prompt, reference=reference and reference.reference), "audio"
        )
        try:
            added = await self._catalog.add(*wanted, using=using, owner=caller.key, options=config.options)
        except AlreadyExists as error:
            error.field = DISPLAY_NAME
            raise
        voice, reused = added[-1]
        built = wanted[-1]
        return Created(StoredVoice(voice=voice, prompt=built.prompt, reference=built.reference), reused, warnings)

    async def build(
        self, kind: VoiceKind, recording: bytes, transcript: str, options: VoiceOptions
    ) -> list[StoredVoice]:
        """Build the voice of the operator's own recording, without storing it. Raises BadAudio and FailedPrecondition.

        A hifi voice comes last, after its members.
        """
        self._pool.info.require(kind.ability, "kind")
        decoded = await self._decoder.decode(
            recording,
            target_rate=self._pool.info.input_sample_rate,
            max_seconds=MAX_OWN_SECONDS,
            max_bytes=len(recording),
        )
        built = []
        for role, member in KINDS.items():
            if kind in (member, VoiceKind.HIFI):
                text = transcript if role is Role.PROMPT else ""
                id = await self._member_id(decoded, role, text, OPERATOR)
                part = await self.encode(decoded, role)
                built.append(self._described(id, decoded, part, role, text, options, OPERATOR))
        if kind is VoiceKind.HIFI:
            built.append(self._hifi(built[0], built[1], options, OPERATOR))
        return built

    async def _member(
        self, decoded: Decoded, role: Role, transcript: str, options: VoiceOptions, caller: Caller
    ) -> StoredVoice:
        """A prompt or reference, with its content from the catalog if it is stored already."""
        id = await self._member_id(decoded, role, transcript, caller)
        try:
            stored = await self._catalog.load(VoiceRef(id), caller)
            part = stored.prompt if role is Role.PROMPT else stored.reference
            assert part is not None
        except (NotFound, Damaged):
            part = await self.encode(decoded, role)
        return self._described(id, decoded, part, role, transcript, options, caller)

    async def _member_id(self, decoded: Decoded, role: Role, transcript: str, caller: Caller) -> str:
        content = self._pool.info.fingerprint, transcript, decoded.waveform.data
        return await self._threads.run(partial(voice_id, principal=caller.principal), KINDS[role], *content)

    def _described(
        self,
        id: str,
        decoded: Decoded,
        part: VoicePart,
        role: Role,
        transcript: str,
        options: VoiceOptions,
        caller: Caller,
    ) -> StoredVoice:
        prompt = role is Role.PROMPT
        voice = Voice(
            id=id,
            kind=KINDS[role],
            fingerprint=self._pool.info.fingerprint,
            transcript=transcript,
            display_name=options.display_name,
            labels=options.labels,
            ttl=options.ttl or 0.0,
            prompt_seconds=decoded.seconds if prompt else 0.0,
            reference_seconds=0.0 if prompt else decoded.seconds,
            principal=caller.principal,
            lora=options.lora or "",
        )
        part = replace(part, text=transcript)
        return StoredVoice(voice=voice, prompt=part if prompt else None, reference=None if prompt else part)

    def _hifi(self, prompt: StoredVoice, reference: StoredVoice, options: VoiceOptions, caller: Caller) -> StoredVoice:
        fingerprint = self._pool.info.fingerprint
        voice = Voice(
            id=voice_id(VoiceKind.HIFI, fingerprint, prompt.voice.id, reference.voice.id, principal=caller.principal),
            kind=VoiceKind.HIFI,
            fingerprint=fingerprint,
            transcript=prompt.voice.transcript,
            display_name=options.display_name,
            labels=options.labels,
            ttl=options.ttl or 0.0,
            prompt_seconds=prompt.voice.prompt_seconds,
            reference_seconds=reference.voice.reference_seconds,
            prompt_id=prompt.voice.id,
            reference_id=reference.voice.id,
            principal=caller.principal,
            lora=options.lora or "",
        )
        return StoredVoice(voice=voice, prompt=prompt.prompt, reference=reference.reference)

    async def _decode(
        self, data: bytes, source: Upload | Recording, role: Role, caller: Caller, max_bytes: int
    ) -> Decoded:
        return await self._decoder.decode(
            data,
            format_hint=source.format,
            cleaning=source.cleaning,
            target_rate=self._pool.info.input_sample_rate,
            max_seconds=self._max_seconds(role),
            max_bytes=max_bytes,
            caller=caller.key,
        )

    def _max_seconds(self, role: Role) -> float:
        limits = self._limits
        return limits.max_prompt_seconds if role is Role.PROMPT else limits.max_reference_seconds
