"""Voices: what they are, the store that servers share, and all that a server speaks with."""

from voxcpm_server.voices.library import Library
from voxcpm_server.voices.objects import Objects
from voxcpm_server.voices.store import VoiceStore
from voxcpm_server.voices.voice import Damaged, Kind, StoredVoice, Voice, voice_id

__all__ = ["Damaged", "Kind", "Library", "Objects", "StoredVoice", "Voice", "VoiceStore", "voice_id"]
