"""The contents of a voice's objects: a record in JSON, and latents in safetensors."""

from __future__ import annotations

import hashlib
import logging

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from voxcpm_grpc.errors import FailedPrecondition, Reason
from voxcpm_server.voices.store.stored_voice import Damaged, StoredVoice
from voxcpm_server.wire.voice import Voice

log = logging.getLogger(__name__)

FORMAT = 1


class _Versioned(msgspec.Struct, frozen=True):
    format: int


class Record(_Versioned, frozen=True):
    """A voice, and the digest of its latents."""

    voice: Voice
    latents: str


def encode(stored: StoredVoice) -> tuple[bytes, bytes]:
    """The contents of its record and of its latents."""
    arrays = {"prompt": stored.prompt, "reference": stored.reference}
    latents = save({name: np.ascontiguousarray(array, "<f4") for name, array in arrays.items() if array is not None})
    return msgspec.json.encode(Record(FORMAT, stored.voice, _digest(latents))), latents


def decode_record(id: str, data: bytes) -> Record:
    """The record of a voice. Raises Damaged, and FailedPrecondition for the record of a newer server."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).format
        if version != FORMAT:
            raise FailedPrecondition(
                f"voice {id} is stored in format {version} and this server reads format {FORMAT}; upgrade the server",
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


def decode_latents(record: Record, data: bytes) -> StoredVoice:
    """The voice of a record, with read-only latents. Raises Damaged."""
    id = record.voice.id
    if _digest(data) != record.latents:
        raise damaged(id, f"its latents of {len(data)} bytes do not match the digest in its record")
    try:
        latents = load(data)
    except SafetensorError as error:
        raise damaged(id, f"its latents cannot be read: {error}") from None
    for array in latents.values():
        array.flags.writeable = False
    return StoredVoice(voice=record.voice, prompt=latents.get("prompt"), reference=latents.get("reference"))


def damaged(id: str, why: str) -> Damaged:
    """Log the reason and return the error for the caller."""
    log.error("voice id=%s damaged: %s", id, why)
    return Damaged(id)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()
