"""Limits of requests."""

from __future__ import annotations

from pydantic import Field

from voxcpm_grpc.settings.types import Frozen, Positive, Quota, Seconds, quota

MAX_TRIM_SECONDS = 10.0
MIN_SHARE = 16  # a smaller number is not worth sharing out


def _share(total: int, part: float) -> int:
    return max(round(total * part), MIN_SHARE)


class LimitSettings(Frozen):
    """Limits of requests. Each front applies them on its own, but the quota of text, which holds for all of them."""

    max_message_bytes: Positive = Field(default=8 << 20, description="largest request message")
    max_inline_audio_bytes: Positive = Field(
        default=6 << 20, description="largest recording that is sent inside a Generate stream"
    )
    max_upload_bytes: Positive = Field(default=32 << 20, description="largest uploaded recording")
    max_upload_bytes_total: Positive = Field(
        default=512 << 20, description="recordings of all callers in memory, which stay there until they are encoded"
    )
    max_upload_bytes_per_caller: Quota | None = Field(
        default=None,
        description="recordings of one caller, an IP address, in memory; 0: no such limit, as behind a proxy; default: "
        "half of max_upload_bytes_total, but room for two recordings",
    )
    max_prompt_seconds: Seconds = Field(default=60.0, description="longest prompt recording")
    max_reference_seconds: Seconds = Field(default=60.0, description="longest reference recording")
    max_text_chars: Positive = Field(default=20_000, description="text of one stream that may wait to be spoken")
    max_chars_per_minute_per_caller: Quota = Field(
        default=0,
        description="text of one caller, a principal or an IP address, that is spoken in a minute, in characters, "
        "through all fronts together; 0: no such limit",
    )
    max_segment_chars: Positive = Field(default=400, description="longest segment; longer sentences are split")
    max_transcript_chars: Positive = Field(default=2_000, description="longest transcript of a prompt")
    max_style_chars: Positive = Field(default=500, description="longest style, the description of a voice")
    max_lead_seconds: Seconds = Field(
        default=30.0, description="audio that the server may hold for a client that does not read"
    )
    max_queue_seconds: Seconds = Field(default=30.0, description="longest wait of an interactive stream for a slot")
    max_batch_queue_seconds: Seconds = Field(
        default=600.0,
        description="longest wait of a batch stream for its first slot, after which it ends with RESOURCE_EXHAUSTED",
    )
    max_carry_seconds: Seconds = Field(
        default=20.0, description="earlier speech of a stream that conditions the next segment"
    )
    trim_leading_silence_seconds: float = Field(
        default=1.0,
        ge=0,
        le=MAX_TRIM_SECONDS,
        description="silence at the start of a turn that an interactive stream leaves out at most, unless its request "
        "says otherwise, so that speech is heard sooner; 0: all audio is sent",
    )
    max_streams: Positive = Field(default=256, description="streams that are open at the same time")
    max_streams_per_connection: Quota | None = Field(
        default=None,
        description="streams that one connection may open at the same time; 0: no such limit; default: half of "
        f"max_streams, at least {MIN_SHARE}",
    )
    max_streams_per_caller: Quota | None = Field(
        default=None,
        description="streams that one caller, an IP address, may open at the same time; 0: no such limit, as behind a "
        f"proxy; default: three quarters of max_streams, at least {MIN_SHARE}",
    )
    stream_idle_seconds: Seconds = Field(
        default=300.0, description="time without a message after which a stream with nothing left to speak ends"
    )
    write_seconds: Seconds = Field(
        default=300.0,
        description="time for which a client may leave a reply unread, after which its stream or call ends",
    )
    upload_idle_seconds: Seconds = Field(
        default=30.0, description="time without a message after which an upload is refused"
    )
    upload_seconds: Seconds = Field(
        default=300.0,
        description="longest time from the start of an upload to its commit; 300 s are enough for max_upload_bytes at "
        "1 Mbit/s",
    )

    @property
    def streams_per_connection(self) -> float:
        """The largest number of streams of a connection; infinity if there is no limit."""
        return quota(self.max_streams_per_connection, _share(self.max_streams, 1 / 2))

    @property
    def streams_per_caller(self) -> float:
        """The largest number of streams of a caller; infinity if there is no limit."""
        return quota(self.max_streams_per_caller, _share(self.max_streams, 3 / 4))

    @property
    def upload_bytes_per_caller(self) -> float:
        """The largest number of bytes of a caller's recordings in memory; infinity if there is no limit."""
        return quota(self.max_upload_bytes_per_caller, max(self.max_upload_bytes_total // 2, 2 * self.max_upload_bytes))
