"""Recordings in requests: their format, their transcript, and what is done to them."""

from __future__ import annotations

from typing import Any

from voxcpm_grpc.audio import AudioFormat
from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values import inputs
from voxcpm_server.wire.fields import read_cleaning, read_format

DETECTED = {  # these recordings name their format themselves
    pb.AUDIO_ENCODING_UNSPECIFIED,
    pb.AUDIO_ENCODING_WAV,
    pb.AUDIO_ENCODING_MP3,
    pb.AUDIO_ENCODING_OGG_OPUS,
    pb.AUDIO_ENCODING_FLAC,
}


class RecordingReader:
    """Reads recordings for one model and one set of limits. Methods raise InvalidRequest or FailedPrecondition."""

    def __init__(self, info: ModelInfo, limits: LimitSettings) -> None:
        self._info = info
        self._limits = limits

    def inline(self, holder: Any, name: str) -> inputs.Recording | inputs.RawLatents:
        """The recording or the latents within `holder`, the field `name` of a conditioning."""
        field = f"config.conditioning.{name}"
        match holder.WhichOneof("source"):
            case "audio":
                data, limit = holder.audio.data, self._limits.max_inline_audio_bytes
                if len(data) > limit:
                    raise InvalidRequest(
                        f"the inline audio has {len(data)} bytes and the limit is {limit}; upload it as a voice",
                        field=f"{name}.audio.data",
                    )
                format = self._format(holder.audio.format, f"{name}.audio.format")
                return inputs.Recording(
                    data=data, format=format, name=f"{field}.audio.data", cleaning=read_cleaning(holder.audio)
                )
            case "latents":
                self._info.require("latents", f"{name}.latents")
                latents = holder.latents
                return inputs.RawLatents(
                    data=latents.data,
                    dim=latents.feat_dim,
                    fingerprint=latents.model_fingerprint,
                    name=f"{field}.latents",
                )
            case _:
                raise InvalidRequest(f"{name} is empty; set audio or latents", field=name)

    def upload(self, holder: Any, name: str, transcript: str = "") -> inputs.Upload:
        """A recording that follows in parts, as `holder` announces it; `name` is the field with its format."""
        return inputs.Upload(
            format=self._format(holder.source, name), transcript=transcript, cleaning=read_cleaning(holder)
        )

    def transcript(self, transcript: str, field: str) -> str:
        """The transcript without control characters. White space at its end counts: the text follows directly."""
        limit = self._limits.max_transcript_chars
        if len(transcript) > limit:  # the length comes first, because the rest looks at every character
            raise InvalidRequest(
                f"the transcript has {len(transcript)} characters and the limit is {limit}; use a shorter recording",
                field=field,
            )
        kept = "".join(c for c in transcript if c.isspace() or c.isprintable() or c in "\u200c\u200d")
        if not any(c.isalnum() for c in kept):
            raise InvalidRequest("the transcript is empty; write the text of the recording", field=field)
        return kept

    def _format(self, format: pb.AudioFormat, name: str) -> AudioFormat | None:
        """The format of raw PCM; None for a file, which has a header with its format."""
        if format.encoding in DETECTED:
            return None
        return read_format(format, format.encoding, self._info.input_sample_rate, name)
