"""The sampling options and the abilities of a model, by which fronts and engines check requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A sampling option that a model has: a field of Sampling."""

    name: str
    default: int | float
    low: int | float
    high: int | float
    rule: str  # the words of the refusal of a value that is not from `low` to `high`
    choices: tuple[int | float, ...] = ()  # the only values that the server runs; empty for all

    def check_range(self, value: float) -> None:
        """Raise InvalidRequest unless the model knows this value."""
        if not self.low <= value <= self.high:  # written so that NaN fails
            raise InvalidRequest(f"{self.name} is {value}; {self.rule}", field=self.name)

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

    prompt: str = ""  # to continue a recording
    reference: str = ""  # to take the timbre of a recording
    hifi: str = ""  # both at once
    no_voice: str = ""  # to choose a voice itself
    style: str = ""
    style_with_prompt: str = ""
    language: str = ""  # to be told the language of the text
    latents: str = ""  # to take and give speech as latents
    lora: str = ""
    text_streaming: str = ""  # to begin before the text is complete


AbilityName = Literal[
    "prompt",
    "reference",
    "hifi",
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
