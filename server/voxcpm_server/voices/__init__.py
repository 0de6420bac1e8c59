"""Stored voices: what they are, and the store that servers share."""

from voxcpm_server.voices.objects import Objects
from voxcpm_server.voices.store import VoiceStore
from voxcpm_server.voices.voice import Damaged, Kind, StoredVoice, Voice, voice_id

__all__ = ["Damaged", "Kind", "Objects", "StoredVoice", "Voice", "VoiceStore", "voice_id"]
