"""What the objects of a voice hold: a record in JSON and latents in safetensors, typed, versioned and checked."""

from __future__ import annotations

import hashlib
import logging

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from voxcpm_grpc.errors import FailedPrecondition
from voxcpm_server.voices.voice import Damaged, StoredVoice, Voice

log = logging.getLogger(__name__)

FORMAT = 1


class _Versioned(msgspec.Struct, frozen=True):
    format: int


class Record(_Versioned, frozen=True):
    """A voice, and the digest of its latents."""

    voice: Voice
    latents: str


def encode(stored: StoredVoice) -> tuple[bytes, bytes]:
    """Its record and its latents."""
    parts = {"prompt": stored.prompt, "reference": stored.reference}
    latents = save({name: np.ascontiguousarray(part, "<f4") for name, part in parts.items() if part is not None})
    return msgspec.json.encode(Record(FORMAT, stored.voice, _digest(latents))), latents


def decode_record(id: str, data: bytes) -> Record:
    """Raises Damaged, and FailedPrecondition for the record of a newer server."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).format
        if version != FORMAT:
            raise FailedPrecondition(
                f"voice {id} is stored in format {version} and this server reads format {FORMAT}; upgrade the server"
            )
        record = msgspec.json.decode(data, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(id, f"its record of {len(data)} bytes is not one: {error}") from None
    if record.voice.id != id:
        raise damaged(id, f"its record is that of {record.voice.id}")
    return record


def decode_latents(record: Record, data: bytes) -> StoredVoice:
    """Its arrays are read-only. Raises Damaged."""
    id = record.voice.id
    if _digest(data) != record.latents:
        raise damaged(id, f"its latents of {len(data)} bytes are not those of its record")
    try:
        latents = load(data)
    except SafetensorError as error:
        raise damaged(id, f"its latents cannot be read: {error}") from None
    for part in latents.values():
        part.flags.writeable = False
    return StoredVoice(voice=record.voice, prompt=latents.get("prompt"), reference=latents.get("reference"))


def damaged(id: str, why: str) -> Damaged:
    """The error for callers; the reason is for the log."""
    log.error("voice id=%s damaged: %s", id, why)
    return Damaged(id)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()
