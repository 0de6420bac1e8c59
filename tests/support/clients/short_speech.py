"""The options of short speech, for tests of a real server."""

from __future__ import annotations

from typing import TypedDict


class ShortSpeech(TypedDict):
    """The options that `SHORT` sets; a call can add all others."""

    max_steps: int
    timesteps: int
    seed: int


SHORT: ShortSpeech = {"max_steps": 4, "timesteps": 4, "seed": 7}
