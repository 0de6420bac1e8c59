"""The sampling options and the abilities of a model, by which fronts and engines check requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from voxcpm_grpc.errors import FailedPrecondition, NotFound, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A sampling option that a model has: a field of Sampling."""

    name: str
    default: int | float
    low: int | float
    high: int | float
    rule: str  # the error for a value that is not from `low` to `high` has these words
    choices: tuple[int | float, ...] = ()  # the server runs only these values; an empty tuple stands for all

    def check_choice(self, value: float) -> None:
        """Raise FailedPrecondition unless the server runs this value."""
        if not self.choices or value in self.choices:
            return
        allowed = ", ".join(map(str, self.choices))
        text = f"{self.name} is {value} and this server runs {allowed}"
        if self.name == "inference_timesteps":  # its reason is older than other options
            raise FailedPrecondition(
                text,
                field=self.name,
                reason=Reason.TIMESTEPS_NOT_SERVED,
                inference_timesteps=value,
                allowed=allowed,
            )
        raise FailedPrecondition(
            text, field=self.name, reason=Reason.OPTION_NOT_SUPPORTED, option=self.name, allowed=allowed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The defaults of a model for the fields of Sampling that end the speech."""

    min_steps: int
    steps_per_token: float
    max_silent_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """The abilities of a model: each is the sentence that refuses a request which needs it; empty if the model can.

    {model} in a sentence stands for the name of the model.
    """

    prompt: str = ""  # the model continues a recording
    reference: str = ""  # the model takes the timbre of a recording
    reference_audio: str = ""  # the model gives the recording of a reference back
    hifi: str = ""  # the model does both at once
    speaker: str = ""  # the model has built-in voices
    no_voice: str = ""  # the model chooses a voice itself
    style: str = ""
    style_with_prompt: str = ""
    language: str = ""  # the model takes the language of the text
    latents: str = ""  # the model takes and gives speech as latents
    lora: str = ""
    text_streaming: str = ""  # the model begins before the text is complete


AbilityName = Literal[
    "prompt",
    "reference",
    "reference_audio",
    "hifi",
    "speaker",
    "no_voice",
    "style",
    "style_with_prompt",
    "language",
    "latents",
    "lora",
    "text_streaming",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """The latents of a step."""

    frames: int
    dim: int  # channels of a frame


def unknown_speaker(name: str, speakers: Sequence[str]) -> NotFound:
    """The error for a name that none of the built-in voices has."""
    near = get_close_matches(name.lower(), speakers, n=1, cutoff=0.0)
    known = f"the nearest name is {near[0]!r}, of {', '.join(speakers)}" if near else "this model has none"
    message = f"there is no built-in voice {name!r}; {known}"
    return NotFound(message, field="speaker", reason=Reason.VOICE_NOT_FOUND, voice=name)
