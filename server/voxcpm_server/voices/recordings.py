"""Doubts about recordings, and latents that callers send instead of recordings."""

from __future__ import annotations

import unicodedata

import numpy as np

from voxcpm_grpc.audio.uploads import Decoded, FlawKind, short_flaw
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason, VoxCPMError
from voxcpm_grpc.request import ModelInfo, Role, VoicePart
from voxcpm_server.values.inputs import RawLatents
from voxcpm_server.values.outputs import RequestWarning, WarningKind

USEFUL_SECONDS = {Role.PROMPT: 1.0, Role.REFERENCE: 2.0}  # seconds; less says little about a voice
WARNING_KINDS = {
    FlawKind.SHORT: WarningKind.SHORT_RECORDING,
    FlawKind.CLIPPED: WarningKind.CLIPPED_RECORDING,
    FlawKind.NOISY: WarningKind.NOISY_RECORDING,
    FlawKind.TRUNCATED: WarningKind.TRUNCATED_RECORDING,
    FlawKind.CHANNELS: WarningKind.CANCELLED_CHANNELS,
    FlawKind.LEVEL: WarningKind.RECORDING_LEVEL,
}
SLOWEST, FASTEST = 2.0, 25.0  # characters a second of a transcript; of speech that was not slowed down they are 8 to 20
WIDE_SLOWEST, WIDE_FASTEST = 0.7, 10.0  # those of scripts whose characters are syllables or words
FLOAT_BYTES = 4
MAX_LATENT = 65504.0  # float16 ends here, in which a GPU may decode; larger values make audio that is not finite


def recording_warnings(decoded: Decoded, role: Role) -> tuple[RequestWarning, ...]:
    """Doubts about a recording for a role."""
    short = short_flaw(decoded.seconds, USEFUL_SECONDS[role])
    found = (*([short] if short else []), *decoded.flaws)
    return tuple(RequestWarning(WARNING_KINDS[flaw.kind], f"the {role.value} {flaw.text}") for flaw in found)


def transcript_warnings(transcript: str, seconds: float, info: ModelInfo) -> tuple[RequestWarning, ...]:
    """A doubt about the transcript of a recording, if it has one and the model reads it beside the speech."""
    text = transcript.strip()
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    narrow = len(text) - wide
    least, most = narrow / FASTEST + wide / WIDE_FASTEST, narrow / SLOWEST + wide / WIDE_SLOWEST
    if not (text and info.reads_transcripts) or least <= seconds <= most:
        return ()
    doubt, remedy = ("many", "leave out words that are not spoken") if seconds < least else ("few", "add those missing")
    message = (
        f"the transcript has {len(text)} characters, which are {doubt} for {seconds:.1f} s of speech: it takes "
        f"{least:.1f} to {most:.1f} s to say them; write exactly the words of the recording, and {remedy}"
    )
    return (RequestWarning(WarningKind.TRANSCRIPT, message),)


def parse_latents(raw: RawLatents, info: ModelInfo, max_seconds: float) -> VoicePart:
    """Latents as a part of a voice, without its text.

    Raises InvalidRequest, and FailedPrecondition for those of another model.
    """
    shape = info.latents
    assert shape is not None  # the reader refuses latents otherwise
    patch = shape.frames * shape.dim
    seconds = len(raw.data) // (FLOAT_BYTES * patch) * info.input_samples_per_step / info.input_sample_rate
    error: VoxCPMError | None = None
    if raw.fingerprint and raw.fingerprint != info.fingerprint:
        error = FailedPrecondition(
            f"the latents are of model {raw.fingerprint[:16]} and this server runs {info.fingerprint[:16]}; "
            "encode the recording again",
            reason=Reason.LATENTS_OF_ANOTHER_MODEL,
            model_fingerprint=raw.fingerprint,
        )
    elif raw.dim != shape.dim:
        error = InvalidRequest(f"feat_dim is {raw.dim} and the model's is {shape.dim}; encode the recording again")
    elif not raw.data or len(raw.data) % (FLOAT_BYTES * patch):
        error = InvalidRequest(
            f"the latents have {len(raw.data)} bytes; they must be whole patches of {shape.frames} frames, "
            f"{FLOAT_BYTES * patch} bytes each"
        )
    elif seconds > max_seconds:
        error = InvalidRequest(
            f"the latents last {seconds:.1f} s and the limit is {max_seconds:g} s; use a shorter recording"
        )
    if error is not None:
        error.field = raw.name
        raise error
    latents = np.frombuffer(raw.data, "<f4").reshape(-1, shape.frames, shape.dim)
    if not np.isfinite(latents).all():
        raise InvalidRequest(
            "the latents contain values that are not finite (NaN or infinity); encode the recording again",
            field=raw.name,
        )
    if (largest := float(np.abs(latents).max())) > MAX_LATENT:
        raise InvalidRequest(
            f"the latents have a value of size {largest:g} and the limit is {MAX_LATENT:g}; encode the recording again",
            field=raw.name,
        )
    return VoicePart(content=dict.fromkeys(info.tracks, latents.astype(np.float32, copy=False)), tracks=info.tracks)
