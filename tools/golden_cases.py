"""The generations of make_goldens.py."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

VOICE = Path(__file__).resolve().parent.parent / "voxcpm_grpc" / "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One generation.

    prompt, reference: seconds of a synthetic voice. preset: a recording that is both, instead. ended_by: the required
    end of the generation; seeds with another end are skipped. recordings: False leaves them out of the file. seed: the
    first one to try. fsq_margin: the least distance of a value from a rounding boundary.
    """

    name: str
    text: str
    prompt_text: str | None = None
    prompt: float | None = None
    reference: float | None = None
    preset: str = ""
    cfg_value: float = 2.0
    timesteps: int = 10
    min_len: int = 2
    max_len: int = 2000
    ended_by: str = "stop"
    whole_audio: bool = False
    recordings: bool = True
    min_patches: int = 8
    max_patches: int = 40
    seed: int = 0
    vae_context: str = "official"
    fsq_margin: float = 1e-4


ZERO_SHOT = Case(name="zero_shot", text="The old voice is from this world.")
DESIGN = Case(name="design", text="(a warm old voice)Hello, you are spoken to.", seed=156)
# 0.45 s and 0.41 s are three patches, with padding: then the official decoder takes the whole prompt as context.
PROMPT = Case(name="prompt", text="And this is new.", prompt_text="It is warm. ", prompt=0.45, seed=19)
REFERENCE = Case(name="reference", text="你好世界，今天 is a good day.", reference=0.73, seed=19)
HIFI = Case(name="hifi", text="今天天气很好。", prompt_text="Hello, ", prompt=0.41, reference=0.93, seed=19)
SENTENCE = Case(name="sentence", text="Hello from VoxCPM, spoken over gRPC.", whole_audio=True, max_patches=60)


def cases() -> Iterator[Case]:
    for cfg_value in (1.0, 2.0, 3.0):
        for timesteps in (4, 10):
            name = f"zero_shot_cfg{cfg_value:.0f}_n{timesteps}"
            yield replace(ZERO_SHOT, name=name, cfg_value=cfg_value, timesteps=timesteps)
    for case, cfg_value, timesteps in (
        (DESIGN, 3.0, 4),
        (PROMPT, 1.0, 10),
        (REFERENCE, 3.0, 10),
        (HIFI, 1.0, 4),
    ):
        yield replace(case, whole_audio=True, max_patches=12)
        other = replace(case, name=f"{case.name}_cfg{cfg_value:.0f}_n{timesteps}", cfg_value=cfg_value)
        yield replace(other, timesteps=timesteps, max_len=9, ended_by="max_len", max_patches=9)
    yield replace(PROMPT, name="prompt_two_patches", prompt=0.27)
    # The official decoder takes at most 3 prompt patches, and an exact one needs 5: here the whole prompt is decoded.
    yield replace(PROMPT, name="prompt_primed", prompt=0.9, vae_context="whole prompt")
    yield replace(HIFI, name="hifi_primed", prompt=0.9, vae_context="whole prompt")
    yield Case(name="cap", text="Hi!", ended_by="cap", seed=10)
    yield replace(ZERO_SHOT, name="min_len", min_len=17)  # one more than the stop of the same seed needs
    yield SENTENCE


def older_cases(patch: float) -> Iterator[Case]:
    """The cases of an older model with patches of so many seconds. A prompt is the only voice of these models."""
    zero_shot = replace(ZERO_SHOT, text="Hello from this world.", max_patches=16)
    # Of a longer prompt, the official decoder takes two patches, and an exact one needs six or ten.
    prompt = replace(PROMPT, prompt=1.05, vae_context="whole prompt", recordings=False, seed=0, max_patches=16)
    for case in (zero_shot, prompt):
        for cfg_value in (1.0, 2.0, 3.0):
            for timesteps in (4, 10):
                name = f"{case.name}_cfg{cfg_value:.0f}_n{timesteps}"
                yield replace(case, name=name, cfg_value=cfg_value, timesteps=timesteps)
    yield replace(prompt, name="prompt_two_patches", prompt=1.9 * patch, vae_context="official", recordings=True)
    ended = replace(zero_shot, name="max_len", max_len=4, ended_by="max_len", min_patches=4, max_patches=4)
    yield replace(ended, whole_audio=True)


def voice_cases() -> Iterator[Case]:
    """The cases of the bundled voice. Its many values come nearer to rounding boundaries."""
    text = "(a woman's voice)The door is open."
    described = Case(name="described", text=text, min_patches=4, max_patches=16, fsq_margin=1e-5)
    yield described
    preset = json.loads((VOICE / "presets" / "presets.json").read_text())[0]
    yield replace(
        described,
        name="hifi",
        text="The door is open.",
        prompt_text=preset["transcript"],
        preset=preset["recording"],
        vae_context="whole prompt",
    )
