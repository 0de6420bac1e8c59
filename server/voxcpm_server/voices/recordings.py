"""Doubts about recordings, and latents that callers send instead of recordings."""

from __future__ import annotations

import numpy as np

from voxcpm_grpc.audio import Decoded, FlawKind, short_flaw
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason, VoxCPMError
from voxcpm_grpc.request import ModelInfo, Role, VoicePart
from voxcpm_server.wire.inputs import RawLatents
from voxcpm_server.wire.outputs import RequestWarning, WarningKind

USEFUL_SECONDS = {Role.PROMPT: 1.0, Role.REFERENCE: 2.0}  # less says little about a voice
WARNING_KINDS = {
    FlawKind.SHORT: WarningKind.SHORT_RECORDING,
    FlawKind.CLIPPED: WarningKind.CLIPPED_RECORDING,
    FlawKind.NOISY: WarningKind.NOISY_RECORDING,
    FlawKind.TRUNCATED: WarningKind.TRUNCATED_RECORDING,
    FlawKind.CHANNELS: WarningKind.CANCELLED_CHANNELS,
    FlawKind.LEVEL: WarningKind.RECORDING_LEVEL,
}
FLOAT_BYTES = 4
MAX_LATENT = 65504.0  # of float16, in which a GPU may decode; larger values make audio that is not finite


def recording_warnings(decoded: Decoded, role: Role) -> tuple[RequestWarning, ...]:
    """Doubts about a recording for a role."""
    short = short_flaw(decoded.seconds, USEFUL_SECONDS[role])
    found = (*([short] if short else []), *decoded.flaws)
    return tuple(RequestWarning(WARNING_KINDS[flaw.kind], f"the {role.value} {flaw.text}") for flaw in found)


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
