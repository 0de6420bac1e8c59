"""The names of voices and models that callers of OpenAI's API use, and what they stand for here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from voxcpm_gateway.errors import HttpError

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
DATED = re.compile(r"(.+)-(\d{4}|\d{4}-\d{2}-\d{2})")  # names such as tts-1-1106 and gpt-4o-mini-tts-2025-12-15 match
SERVER_DEFAULT = "default"
"""The name for the server's default voice."""


class VoiceNames:
    """The voices that names of callers stand for.

    The aliases of the configuration come first. OpenAI's voices that have no alias stand for the presets of the model,
    in order and in turns, so that different names are different voices as far as there are presets. Without presets
    they stand for the server's default voice. All other names are left to the server.
    """

    def __init__(self, aliases: Mapping[str, str]) -> None:
        self._aliases = {name.lower(): voice for name, voice in aliases.items()}

    def __contains__(self, name: object) -> bool:
        """True for a name that stands for another voice."""
        known = isinstance(name, str) and name.lower()
        return bool(known) and (known in self._aliases or known in OPENAI_VOICES or known == SERVER_DEFAULT)

    def needs_presets(self, name: str) -> bool:
        return name.lower() in OPENAI_VOICES and name.lower() not in self._aliases

    def resolve(self, name: str, presets: Sequence[str]) -> str | None:
        """The voice for a name of a caller; None for the server's default voice.

        presets: those of the model; used only if `needs_presets`
        """
        if name.lower() in self._aliases:
            return self._aliases[name.lower()]
        if name.lower() == SERVER_DEFAULT and name not in presets:
            return None
        if self.needs_presets(name):
            return presets[OPENAI_VOICES.index(name.lower()) % len(presets)] if presets else None
        return name


def model_names(models: Sequence[str]) -> Mapping[str, str]:
    """The names by which callers may ask for the models of the server, and the model of each.

    Own names come first. OpenAI's names, unless a model has one of them, mean the default model, the first one.
    """
    own = {model: model for model in models} | {
        short: model for model in reversed(models) if (short := model.rpartition("/")[2]) not in models
    }
    return own | {name: models[0] for name in OPENAI_MODELS if name not in own}


def chosen_model(name: str, models: Sequence[str]) -> str:
    """The model of the server that a name means. Raises HttpError for a name of none.

    The case of letters does not matter, and OpenAI's names may have a date.
    """
    names = model_names(models)
    if name in names:
        return names[name]
    plain = name.lower()
    if (dated := DATED.fullmatch(plain)) and dated[1] in OPENAI_MODELS:
        plain = dated[1]
    for known, model in names.items():
        if known.lower() == plain:
            return model
    raise HttpError(
        404,
        f"the model {name[:100]!r} does not exist; there are {', '.join(names)}",
        param="model",
        code="model_not_found",
    )
