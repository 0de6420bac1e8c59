"""Voices and latents, as calls return them: frozen values of plain Python types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt

from voxcpm_client.values.results import Speech, SpeechWarning


@dataclass(frozen=True, slots=True)
class VoiceName:
    """A name of a voice, with the labels that were given with it."""

    name: str
    """The name, for the option `voice`."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """The labels of the name. Default: `{}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice on the server: a stored one, or a preset of the model."""

    id: str
    """Id of the voice, for the option `voice`; unlike a name, it never means several voices. The same recording,
    transcript and model give the same id."""

    kind: str
    """`prompt` (continued by the speech), `reference` (gives its timbre), `hifi` (both), or `speaker` (built into the
    model)."""

    name: str = ""
    """Display name, or the name of the preset. Of several names, it is the one that the call has used, otherwise the
    one given last. Default: `""`."""

    names: tuple[VoiceName, ...] = ()
    """All names of the voice, `name` first, each with its labels. Default: `()`."""

    transcript: str = ""
    """The words of the prompt recording. Default: `""`."""

    prompt_seconds: float = 0.0
    """Duration of the prompt recording in seconds; 0 if there is none. Default: `0.0`."""

    reference_seconds: float = 0.0
    """Duration of the reference recording in seconds; 0 if there is none. Default: `0.0`."""

    prompt_id: str = ""
    """The id of the prompt of a hifi voice. Default: `""`."""

    reference_id: str = ""
    """The id of the reference of a hifi voice. Default: `""`."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels of `name`; of the voice, if it has no name. Default: `{}`."""

    content_digest: str = ""
    """Digest of the recording, the transcript and the model; the part of the id after its prefix. Default: `""`."""

    model_fingerprint: str = ""
    """Fingerprint of the model that the voice was made for; another model cannot use it. Default: `""`."""

    model: str = ""
    """Name of the model of the server that can use the voice. Empty if the server has no such model.
    Default: `""`."""

    created: datetime | None = None
    """Time at which the voice was stored, or stored again with other options (UTC). None for a preset.
    Default: `None`."""

    expires: datetime | None = None
    """Time at which the voice is deleted unless it is used before (UTC). None for a preset. Default: `None`."""

    reused: bool = False
    """True if the server had this voice already. Default: `False`."""

    principal: str = ""
    """Owner of the voice, such as `key:billing`; only admins see it. Default: `""`."""

    lora: str = ""
    """LoRA adapter of the voice, for calls that name none; empty: the model alone. Default: `""`."""

    preview: Speech | None = None
    """The recording as the model reproduces it, or the text of an Audition, spoken with the voice, if the option
    `preview` asked for it. Default: `None`."""

    auditions: tuple[Speech, ...] = ()
    """The texts of the option `auditions`, spoken with the voice, in their order. Default: `()`."""

    warnings: tuple[SpeechWarning, ...] = ()
    """Doubts of the server about the recordings that were just uploaded. Default: `()`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Latents:
    """A recording as the model reads it, from `encode_latents`. Give it as `reference` or in a `Prompt`."""

    data: npt.NDArray[np.float32]
    """The latents, float32 [frames, feat_dim]."""

    model_fingerprint: str
    """Fingerprint of the model that made them. The server refuses latents of another model with
    FAILED_PRECONDITION; an empty string skips this check."""

    seconds: float = 0.0
    """Duration of the recording in seconds. Default: `0.0`."""

    warnings: tuple[SpeechWarning, ...] = ()
    """Doubts of the server about the recording. Default: `()`."""
