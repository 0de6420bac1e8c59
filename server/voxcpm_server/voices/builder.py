"""From recordings and ids to what a model is conditioned on, and to stored voices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from voxcpm_grpc.audio import BadAudio, Decoded, DecodePool, resample
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, NotFound, VoxCPMError
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Conditioning, ModelInfo, Prompt
from voxcpm_grpc.settings.schema import LimitSettings
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.io_threads import IoThreads
from voxcpm_server.voices.voice import Damaged, Kind, StoredVoice, Voice, voice_id
from voxcpm_server.wire.inputs import (
    InlinePrompt,
    RawLatents,
    Recording,
    Role,
    Upload,
    UploadConfig,
    VoiceChoice,
    VoiceOptions,
)

KINDS = {Role.PROMPT: Kind.PROMPT, Role.REFERENCE: Kind.REFERENCE}
FLOAT_BYTES = 4
MAX_OWN_SECONDS = 60.0  # of a recording that the operator gave: the limits of callers are not for them


@dataclass(frozen=True, slots=True)
class Created:
    """A stored voice, its latents, and whether it was stored before."""

    stored: StoredVoice
    reused: bool


class VoiceBuilder:
    """Decodes in the decode pool, encodes on an engine, digests in threads: its caller's event loop only waits."""

    def __init__(
        self, pool: EnginePool, decoder: DecodePool, catalog: VoiceCatalog, threads: IoThreads, limits: LimitSettings
    ) -> None:
        self._pool = pool
        self._decoder = decoder
        self._catalog = catalog
        self._threads = threads
        self._limits = limits

    # ---- for generation

    async def conditioning(self, choice: VoiceChoice) -> Conditioning:
        """What the chosen voice means to the model. Raises InvalidRequest, NotFound, FailedPrecondition."""
        if choice.preset:
            try:
                stored = self._catalog.preset(choice.preset)
            except NotFound as error:
                error.field = "config.conditioning.preset"
                raise
            return Conditioning(prompt=_prompt(stored), reference=stored.reference)
        if choice.hifi:
            stored = await self._load(choice.hifi, Kind.HIFI, "config.conditioning.hifi_id")
            return Conditioning(prompt=_prompt(stored), reference=stored.reference)
        prompt = reference = None
        match choice.prompt:
            case str(id):
                prompt = _prompt(await self._load(id, Kind.PROMPT, "config.conditioning.prompt_id"))
            case InlinePrompt(source=source, transcript=transcript):
                prompt = Prompt(text=transcript, latents=await self._inline(source, Role.PROMPT))
        match choice.reference:
            case str(id):
                reference = (await self._load(id, Kind.REFERENCE, "config.conditioning.reference_id")).reference
            case Recording() | RawLatents() as source:
                reference = await self._inline(source, Role.REFERENCE)
        return Conditioning(prompt=prompt, reference=reference)

    async def _load(self, id: str, kind: Kind, field: str) -> StoredVoice:
        try:
            stored = await self._catalog.load(id)
        except (NotFound, FailedPrecondition) as error:
            error.field = field
            raise
        if stored.voice.kind is not kind:
            raise InvalidRequest(
                f"voice {id} is a {stored.voice.kind.name.lower()}; {field.rpartition('.')[2]} needs "
                f"a {kind.name.lower()}",
                field=field,
            )
        return stored

    async def _inline(self, source: Recording | RawLatents, role: Role) -> np.ndarray:
        if isinstance(source, RawLatents):
            return parse_latents(source, self._pool.info, self._max_seconds(role))
        try:
            decoded = await self._decode(source.data, source, role, self._limits.max_inline_audio_bytes)
        except BadAudio as error:
            error.field = source.name
            raise
        return await self.encode(decoded, role)

    # ---- for voices

    async def decode(self, data: bytes, upload: Upload, role: Role) -> Decoded:
        """An uploaded recording at the model's rate. Raises BadAudio."""
        return await self._decode(data, upload, role, self._limits.max_upload_bytes)

    async def encode(self, decoded: Decoded, role: Role) -> np.ndarray:
        """float32 [patches, P, D]. A prompt is padded before its beginning, a reference after its end."""
        return await self._pool.encode(decoded.waveform, pad_left=role is Role.PROMPT)

    async def encode_speech(self, samples: np.ndarray) -> np.ndarray:
        """The latents of audio that the model made, float32 [n] at its output rate, as a reference."""
        info = self._pool.info
        waveform = await self._threads.run(resample, samples, info.output_sample_rate, info.input_sample_rate)
        return await self._pool.encode(waveform, pad_left=False)

    async def create(self, config: UploadConfig, recordings: Mapping[Role, bytes]) -> Created:
        """Make and store the voice that was asked for, durable on return; identical content is found again."""
        members: dict[Role, StoredVoice] = {}
        using: list[str] = []
        decoded: Decoded | None = None
        for role, source in ((Role.PROMPT, config.prompt), (Role.REFERENCE, config.reference)):
            match source:
                case str(id):
                    members[role] = await self._load(id, KINDS[role], f"config.{role.value}_id")
                    using.append(id)
                case Upload() as upload:
                    decoded = await self.decode(recordings[role], upload, role)
                    members[role] = await self._member(decoded, role, upload.transcript, config.options)
        if config.shared:
            assert decoded is not None
            members[Role.REFERENCE] = await self._member(decoded, Role.REFERENCE, "", config.options)
        wanted = [stored for stored in members.values() if stored.voice.id not in using]
        if len(members) > 1:
            wanted.append(self._hifi(members[Role.PROMPT], members[Role.REFERENCE], config.options))
        voice, reused = (await self._catalog.add(*wanted, using=using))[-1]
        made = wanted[-1]
        return Created(StoredVoice(voice=voice, prompt=made.prompt, reference=made.reference), reused)

    async def build(self, kind: Kind, recording: bytes, transcript: str, options: VoiceOptions) -> list[StoredVoice]:
        """The voice of the operator's own recording, which is not stored; before a hifi voice its members.

        Raises BadAudio.
        """
        decoded = await self._decoder.decode(
            recording,
            target_rate=self._pool.info.input_sample_rate,
            max_seconds=MAX_OWN_SECONDS,
            max_bytes=len(recording),
        )
        made = []
        for role, member in KINDS.items():
            if kind in (member, Kind.HIFI):
                said = transcript if role is Role.PROMPT else ""
                id = await self._member_id(decoded, role, said)
                made.append(await self._new_member(id, decoded, role, said, options))
        if kind is Kind.HIFI:
            made.append(self._hifi(made[0], made[1], options))
        return made

    async def _member(self, decoded: Decoded, role: Role, transcript: str, options: VoiceOptions) -> StoredVoice:
        """A prompt or reference, its latents taken from the catalog if they are there."""
        id = await self._member_id(decoded, role, transcript)
        try:
            return await self._catalog.load(id)
        except (NotFound, Damaged):
            return await self._new_member(id, decoded, role, transcript, options)

    async def _member_id(self, decoded: Decoded, role: Role, transcript: str) -> str:
        fingerprint = self._pool.info.fingerprint
        return await self._threads.run(voice_id, KINDS[role], fingerprint, transcript, decoded.waveform.data)

    async def _new_member(
        self, id: str, decoded: Decoded, role: Role, transcript: str, options: VoiceOptions
    ) -> StoredVoice:
        latents = await self.encode(decoded, role)
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
        )
        return StoredVoice(voice=voice, prompt=latents if prompt else None, reference=None if prompt else latents)

    def _hifi(self, prompt: StoredVoice, reference: StoredVoice, options: VoiceOptions) -> StoredVoice:
        fingerprint = self._pool.info.fingerprint
        voice = Voice(
            id=voice_id(Kind.HIFI, fingerprint, prompt.voice.id, reference.voice.id),
            kind=Kind.HIFI,
            fingerprint=fingerprint,
            transcript=prompt.voice.transcript,
            display_name=options.display_name,
            labels=options.labels,
            ttl=options.ttl or 0.0,
            prompt_seconds=prompt.voice.prompt_seconds,
            reference_seconds=reference.voice.reference_seconds,
            prompt_id=prompt.voice.id,
            reference_id=reference.voice.id,
        )
        return StoredVoice(voice=voice, prompt=prompt.prompt, reference=reference.reference)

    async def _decode(self, data: bytes, source: Upload | Recording, role: Role, max_bytes: int) -> Decoded:
        return await self._decoder.decode(
            data,
            format_hint=source.format,
            target_rate=self._pool.info.input_sample_rate,
            max_seconds=self._max_seconds(role),
            max_bytes=max_bytes,
        )

    def _max_seconds(self, role: Role) -> float:
        limits = self._limits
        return limits.max_prompt_seconds if role is Role.PROMPT else limits.max_reference_seconds


def parse_latents(raw: RawLatents, info: ModelInfo, max_seconds: float) -> np.ndarray:
    """float32 [patches, P, D] of what a caller sent.

    Raises InvalidRequest, and FailedPrecondition for another model's.
    """
    patch = info.patch_size * info.latent_dim
    seconds = len(raw.data) // (FLOAT_BYTES * patch) * info.samples_per_patch / info.input_sample_rate
    error: VoxCPMError | None = None
    if raw.fingerprint and raw.fingerprint != info.fingerprint:
        error = FailedPrecondition(
            f"the latents are of model {raw.fingerprint[:16]} and this server runs {info.fingerprint[:16]}; "
            "encode the recording again"
        )
    elif raw.dim != info.latent_dim:
        error = InvalidRequest(f"feat_dim is {raw.dim} and the model's is {info.latent_dim}")
    elif not raw.data or len(raw.data) % (FLOAT_BYTES * patch):
        error = InvalidRequest(
            f"the latents have {len(raw.data)} bytes; they must be whole patches of {info.patch_size} frames, "
            f"{FLOAT_BYTES * patch} bytes each"
        )
    elif seconds > max_seconds:
        error = InvalidRequest(f"the latents last {seconds:.1f} s and the limit is {max_seconds:g} s")
    if error is not None:
        error.field = raw.name
        raise error
    latents = np.frombuffer(raw.data, "<f4").reshape(-1, info.patch_size, info.latent_dim)
    if not np.isfinite(latents).all():
        raise InvalidRequest("the latents hold values that are not finite (NaN or infinity)", field=raw.name)
    return latents.astype(np.float32, copy=False)


def _prompt(stored: StoredVoice) -> Prompt | None:
    return None if stored.prompt is None else Prompt(text=stored.voice.transcript, latents=stored.prompt)
