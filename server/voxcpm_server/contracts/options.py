"""Parameters of speech in a map of strings, which some contracts have for parameters of their models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.contracts.errors import refused

MAX_SHOWN = 40  # characters of a wrong key or value in an error


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


# The keys are fields of Sampling and of TurnConfig.
SAMPLING: Mapping[str, Callable[[str], Any]] = {
    "seed": int,
    "cfg_value": float,
    "inference_timesteps": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "repetition_penalty": float,
    "code_temperature": float,
    "code_top_k": int,
    "code_top_p": float,
}
TURN: Mapping[str, Callable[[str], Any]] = {
    "style": str,
    "language": str,
    "speed": float,
    "volume_gain_db": float,
    "normalize": _boolean,
}
KINDS: Mapping[Any, str] = {int: "a whole number", float: "a number", _boolean: "true or false"}


def paths(holder: str) -> dict[str, str]:
    """The paths of our fields, and those of the entries of the map `holder`, for errors."""
    return {
        **{f"config.turn.sampling.{name}": f"{holder}.{name}" for name in SAMPLING},
        **{f"config.turn.{name}": f"{holder}.{name}" for name in TURN},
    }


def set_options(turn: pb.TurnConfig, given: Mapping[str, str], holder: str) -> None:
    """Set the fields that a map names. Raises InvalidRequest for other keys, and for values of another type."""
    for name, text in given.items():
        field = f"{holder}.{name[:MAX_SHOWN]}"
        kind = SAMPLING.get(name) or TURN.get(name)
        if kind is None:
            raise refused(field, f"the keys are {', '.join((*SAMPLING, *TURN))}")
        try:
            setattr(turn.sampling if name in SAMPLING else turn, name, kind(text))
        except (KeyError, ValueError):  # the field cannot hold this text, or this number
            raise InvalidRequest(f"{name} is {text[:MAX_SHOWN]!r}; it must be {KINDS[kind]}", field=field) from None
