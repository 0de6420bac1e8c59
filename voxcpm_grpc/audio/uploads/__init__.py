"""Recordings of callers: decoded and checked in processes with limits. Nothing here knows voices or engines."""

from voxcpm_grpc.audio.uploads.cleaning import NO_CLEANING, Cleaning
from voxcpm_grpc.audio.uploads.decode import Decoded, decode
from voxcpm_grpc.audio.uploads.pool import DecodePool
from voxcpm_grpc.audio.uploads.voice_check import Flaw, FlawKind, check_voice, short_flaw

__all__ = [
    "NO_CLEANING",
    "Cleaning",
    "DecodePool",
    "Decoded",
    "Flaw",
    "FlawKind",
    "check_voice",
    "decode",
    "short_flaw",
]
