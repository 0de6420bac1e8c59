"""A stored voice, its id, which depends on its content alone, and the contents of its objects."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason
from voxcpm_grpc.request import Role, VoicePart
from voxcpm_server.values.voice import Voice, VoiceKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredVoice:
    """A voice and its content. A hifi voice has its own copy of both parts."""

    voice: Voice
    prompt: VoicePart | None = None
    reference: VoicePart | None = None

    @property
    def nbytes(self) -> int:
        """Size of the content."""
        return sum(part.nbytes for part in (self.prompt, self.reference) if part is not None)


class Damaged(FailedPrecondition):
    """The stored data of a voice is not what was written."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"voice {id} is damaged in the store; upload the recording again, or delete the voice",
            reason=Reason.VOICE_DAMAGED,
            voice=id,
        )


def voice_id(kind: VoiceKind, *content: str | memoryview, principal: str = "") -> str:
    """The id of a principal's voice of this content. The same principal, kind and content always have the same id.

    The ids of different principals differ, so that none of them learns which recordings the others have.
    """
    digest = hashlib.blake2b(digest_size=20, person=kind.value.encode())
    for part in (*content, *([principal] if principal else [])):
        data = memoryview(part.encode()) if isinstance(part, str) else part
        digest.update(data.nbytes.to_bytes(8, "little"))
        digest.update(data)
    return f"{kind.value}_{base64.b32encode(digest.digest()).decode().lower()}"


log = logging.getLogger(__name__)

ROLES = {
    VoiceKind.PROMPT: {Role.PROMPT},
    VoiceKind.REFERENCE: {Role.REFERENCE},
    VoiceKind.HIFI: {Role.PROMPT, Role.REFERENCE},
}

LATENTS = "latents"
"""The only array of voices in format 1, float32 with an entry for each step."""

FORMAT, OLDEST = 2, 1
"""Format 2 has arrays of any name and type. Voices that fit into format 1 have it, so that older servers read them."""


class _Versioned(msgspec.Struct, frozen=True):
    format: int


class Record(_Versioned, frozen=True, omit_defaults=True):
    """A voice, and the digest of its content.

    tracks: in format 2 the names of the tracks of each part
    """

    voice: Voice
    latents: str
    tracks: dict[Role, tuple[str, ...]] = {}


def encode(stored: StoredVoice) -> tuple[bytes, bytes]:
    """The contents of its record and of its arrays."""
    of_roles = {Role.PROMPT: stored.prompt, Role.REFERENCE: stored.reference}
    parts = {role: part for role, part in of_roles.items() if part is not None}
    if all(_fits_format_1(part) for part in parts.values()):
        arrays = {str(role): np.ascontiguousarray(part.content[LATENTS], "<f4") for role, part in parts.items()}
        data = save(arrays)
        return msgspec.json.encode(Record(OLDEST, stored.voice, _digest(data))), data
    data = save(
        {
            f"{role}.{name}": array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
            for role, part in parts.items()
            for name, array in part.content.items()
        }
    )
    tracks = {role: part.tracks for role, part in parts.items()}
    return msgspec.json.encode(Record(FORMAT, stored.voice, _digest(data), tracks)), data


def _fits_format_1(part: VoicePart) -> bool:
    arrays = {name: array.dtype.kind + str(array.dtype.itemsize) for name, array in part.content.items()}
    return part.tracks == (LATENTS,) and arrays == {LATENTS: "f4"}


def decode_record(id: str, data: bytes) -> Record:
    """The record of a voice. Raises Damaged, and FailedPrecondition for the record of a newer server."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).format
        if not OLDEST <= version <= FORMAT:
            raise FailedPrecondition(
                f"voice {id} is stored in format {version} and this server reads formats {OLDEST} to {FORMAT}; "
                "upgrade the server",
                reason=Reason.VOICE_FORMAT_TOO_NEW,
                voice=id,
                format=version,
            )
        record = msgspec.json.decode(data, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(id, f"its record of {len(data)} bytes cannot be read: {error}") from None
    if record.voice.id != id:
        raise damaged(id, f"its record belongs to {record.voice.id!r}")
    return record


def decode_content(record: Record, data: bytes) -> StoredVoice:
    """The voice of a record, with read-only content. Raises Damaged."""
    id = record.voice.id
    if _digest(data) != record.latents:
        raise damaged(id, f"its content of {len(data)} bytes does not match the digest in its record")
    try:
        arrays = load(data)
        for array in arrays.values():
            array.flags.writeable = False
        if record.format == OLDEST:
            content = {Role(role): {LATENTS: array} for role, array in arrays.items()}
            tracks = dict.fromkeys(content, (LATENTS,))
        else:
            content, tracks = _by_role(arrays), record.tracks
        texts = {Role.PROMPT: record.voice.transcript}
        parts = {
            role: VoicePart(content=own, tracks=tracks[role], text=texts.get(role, "")) for role, own in content.items()
        }
    except (SafetensorError, InvalidRequest, KeyError, ValueError) as error:
        raise damaged(id, f"its content cannot be read: {error!r}") from None
    if parts.keys() != ROLES.get(record.voice.kind):
        raise damaged(id, f"its content has {', '.join(parts) or 'no part'}, and its kind is {record.voice.kind.value}")
    return StoredVoice(voice=record.voice, prompt=parts.get(Role.PROMPT), reference=parts.get(Role.REFERENCE))


def _by_role(arrays: Mapping[str, np.ndarray]) -> dict[Role, dict[str, np.ndarray]]:
    content: dict[Role, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        role, _, name = key.partition(".")
        content.setdefault(Role(role), {})[name] = array
    return content


def damaged(id: str, why: str) -> Damaged:
    """Log the reason and return the error for the caller."""
    log.error("voice id=%s damaged: %s", id, why)
    return Damaged(id)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()
