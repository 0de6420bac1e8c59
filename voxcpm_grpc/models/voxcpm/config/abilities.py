"""The sampling options and the abilities of VoxCPM, by which fronts check requests. No torch."""

from __future__ import annotations

from voxcpm_grpc.abilities import Abilities, Ends, Option
from voxcpm_grpc.models.voxcpm.config.generation import OFFICIAL, RANGES, Generation

LATENTS = "latents"  # a voice has one array, with this name: float32 [patches, P, D]
TIMESTEPS = 10  # the official package has this default
ENDS = Ends(
    # The official package lets the speech end from patch index min_steps + 1 on, with min_steps + 2 patches.
    min_steps=2,
    steps_per_token=6.0,
)
NO_REFERENCE = (
    "references and hifi voices need VoxCPM2, and this server's model is {model}; use a prompt, which is a recording "
    "with its transcript"
)
NO_SPEAKER = "a built-in voice needs Qwen3-TTS CustomVoice, and this server's model is {model}; use a voice of your own"
NO_STYLE = "a style needs VoxCPM2, and this server's model is {model}; send the text without a style"
NO_STYLE_WITH_PROMPT = (
    "a style cannot be combined with a prompt, because the model would read it aloud; drop one of them"
)
NO_LANGUAGE = "{model} takes no language: it follows that of the text; send the text without a language"

NO_TEXT_STREAMING = (
    "{model} reads all text of a segment before it speaks, and has the segmentation modes SENTENCE and MANUAL; "
    "use one of them"
)


def sampling_options(timesteps: tuple[int, ...], defaults: Generation = OFFICIAL) -> tuple[Option, ...]:
    """The options of a server that runs these counts of timesteps. defaults: of the checkpoint."""
    nearest = min(timesteps, key=lambda count: abs(count - TIMESTEPS))
    return (
        _number("cfg_value", defaults.cfg_value),
        Option(
            name="inference_timesteps",
            default=nearest,
            low=1,
            high=100,
            rule="it must be from 1 to 100",
            choices=timesteps,
        ),
        _number("temperature", defaults.temperature),
    )


def _number(name: str, default: float) -> Option:
    low, high = RANGES[name]
    return Option(name=name, default=default, low=low, high=high, rule=f"it must be from {low} to {high}")


def abilities(*, references: bool, styles: bool) -> Abilities:
    """The abilities of a generation. references: it takes references, also with a prompt. styles: it takes styles."""
    no_reference = "" if references else NO_REFERENCE
    return Abilities(
        reference=no_reference,
        hifi=no_reference,
        speaker=NO_SPEAKER,
        style="" if styles else NO_STYLE,
        style_with_prompt=NO_STYLE_WITH_PROMPT,
        language=NO_LANGUAGE,
        text_streaming=NO_TEXT_STREAMING,
    )
