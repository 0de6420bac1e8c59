"""The sampling options and the abilities of Qwen3-TTS, by which fronts check requests. No torch."""

from __future__ import annotations

import math
import sys

from voxcpm_grpc.abilities import Abilities, Ends, Option
from voxcpm_grpc.models.qwen3_tts.config.config import Generation, Qwen3Config

FRAME_SECONDS = 0.08
LEAST_STEPS = 2  # steps; the official package does not draw the end before
STEPS_PER_TOKEN = 12.0  # steps in an audible second for each token of the text; speech that goes wrong does not end
LEAST_LIMIT = 192  # steps that every text may take
MAX_SILENT_SECONDS = 2.0  # the model has a near-silent state that it does not leave

ENDS = Ends(
    min_steps=LEAST_STEPS,
    steps_per_token=STEPS_PER_TOKEN,
    max_silent_steps=round(MAX_SILENT_SECONDS / FRAME_SECONDS),
)
LANGUAGES = {"en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ja": "japanese", "fr": "french"}
LANGUAGES |= {"ko": "korean", "ru": "russian", "it": "italian", "pt": "portuguese"}
"""The names in config.json of languages that a request may name, by BCP 47 tag."""

HAS_SPEAKERS = "its voices are presets"
HAS_STYLE = "its voice is what a style describes"
CLONES = "its voices are recordings"
IS = "and this server's model is {model}"
HAS = {"custom_voice": HAS_SPEAKERS, "voice_design": HAS_STYLE, "base": CLONES}


def sampling_options(config: Qwen3Config, defaults: Generation) -> tuple[Option, ...]:
    """The options of both stages: the first code of a step, and then its other codes."""

    def temperature(name: str, default: float) -> Option:
        return Option(name=name, default=default, low=0, high=2, rule="it must be from 0 to 2")

    def top_k(name: str, default: int, size: int) -> Option:
        return Option(name=name, default=min(default, size), low=1, high=size, rule=f"it must be from 1 to {size}")

    def top_p(name: str, default: float) -> Option:
        return Option(name=name, default=default, low=sys.float_info.min, high=1, rule="it must be above 0, up to 1")

    return (
        temperature("temperature", defaults.temperature),
        top_k("top_k", defaults.top_k, config.talker.vocab_size),
        top_p("top_p", defaults.top_p),
        Option(
            name="repetition_penalty",
            default=defaults.repetition_penalty,
            low=1,
            high=2,
            rule="it must be from 1 to 2",
        ),
        temperature("code_temperature", defaults.code_temperature),
        top_k("code_top_k", defaults.code_top_k, config.codes),
        top_p("code_top_p", defaults.code_top_p),
    )


def abilities(config: Qwen3Config) -> Abilities:
    """The abilities of a variant. A sentence that refuses names the variant that can."""
    has = HAS[config.kind]
    clones = config.kind == "base"
    style = f"a style needs Qwen3-TTS 1.7B CustomVoice or VoiceDesign, {IS}; "
    style += "send the text without a style" if config.kind == "base" else "its size takes none: leave it out"
    return Abilities(
        prompt="" if clones else f"a prompt needs Qwen3-TTS Base, {IS}; {has}",
        reference="" if clones else f"a reference needs Qwen3-TTS Base, {IS}; {has}",
        reference_audio="a reference is kept as a vector of its speaker, of which no audio is left; set the preview to "
        "PREVIEW_MODE_SYNTHESIS",
        hifi="" if clones else f"a hifi voice needs Qwen3-TTS Base, {IS}; {has}",
        speaker="" if config.kind == "custom_voice" else f"a built-in voice needs Qwen3-TTS CustomVoice, {IS}; {has}",
        no_voice=f"speech without a voice needs Qwen3-TTS VoiceDesign or CustomVoice, {IS}; {has}" if clones else "",
        style="" if config.takes_instructions else style,
        latents=f"latents need VoxCPM, {IS}; its speech is codes",
        lora=f"LoRA adapters need VoxCPM, {IS}; leave them out",
    )


def limit_of(tokens: int, steps_per_token: float) -> int:
    """The steps that a text of so many tokens may take."""
    return max(LEAST_LIMIT, math.floor(tokens * steps_per_token))
