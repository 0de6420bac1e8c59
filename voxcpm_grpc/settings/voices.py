"""Settings of the voice store."""

from __future__ import annotations

from pydantic import Field

from voxcpm_grpc.settings.types import Frozen, Positive, Quota, Seconds, quota


class VoiceSettings(Frozen):
    """The voice store and the default voice."""

    url: str | None = Field(
        default=None,
        description="voice store, which several servers can share: a folder, or a URL such as s3://bucket/voices; "
        "default: the user's data directory",
    )
    default: str = Field(
        default="auto",
        description="default voice, for streams without a voice and a style: auto (the preset that the model marks as "
        "default, if there is one, or the first of its built-in voices), none (the model chooses) or the name of a "
        "preset",
    )
    ttl_seconds: Seconds = Field(
        default=30 * 86400.0, description="time after its last use at which a voice is deleted"
    )
    max_voices: Positive = Field(
        default=10_000,
        description="largest number of stored voices; voices that other servers add to a shared store are counted at "
        "the next sweep",
    )
    max_voices_per_caller: Quota | None = Field(
        default=None,
        description="largest number of stored voices of one caller, an IP address; 0: no such limit, as behind a "
        "proxy; default: three quarters of max_voices",
    )
    cache_bytes: Positive = Field(default=256 << 20, description="loaded voices kept in memory")
    timeout_seconds: Seconds = Field(default=10.0, description="longest wait for the voice store")
    sweep_seconds: Seconds = Field(default=600.0, description="pause between two sweeps, which remove expired voices")

    @property
    def voices_per_caller(self) -> float:
        """The largest number of stored voices of a caller; infinity if there is no limit."""
        return quota(self.max_voices_per_caller, max(1, self.max_voices * 3 // 4))
