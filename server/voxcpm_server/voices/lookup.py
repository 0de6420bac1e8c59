"""The errors of a search for a voice by its name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from voxcpm_grpc.errors import InvalidRequest, NotFound, Reason
from voxcpm_server.values.voice import Voice, VoiceKind, without_members

MAX_LISTED = 5
SHOWN_CHARS = 40  # characters of a name in an error


def fitting(candidates: Sequence[Voice], kind: VoiceKind | None) -> Sequence[Voice]:
    """The candidates of a kind, if there are any. A hifi voice precedes its own members."""
    if of_kind := [voice for voice in candidates if voice.kind is kind]:
        return of_kind
    return without_members(candidates)


def ambiguous(name: str, found: Sequence[Voice]) -> InvalidRequest:
    """The error for a name that several voices have; it lists some of them."""
    listed = [f"{voice.id} ({_shown(voice.display_name)}, {_created(voice)})" for voice in found[:MAX_LISTED]]
    more = f", and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    return InvalidRequest(
        f"{len(found)} voices are named {_shown(name)}: {', '.join(listed)}{more}; give the id of one of them"
    )


def unknown(name: str, presets: Collection[str], near: str) -> NotFound:
    """The error for a name that no voice has. `near` is a similar name of another voice; empty if there is none."""
    if near:
        hint = f"did you mean {_shown(near)}?"
    elif presets:
        hint = f"the presets are {', '.join(presets)}, and the list of voices has the others"
    else:
        hint = "the list of voices has all"
    return NotFound(
        f"there is no voice {_shown(name)}: no preset, id or display name; {hint}",
        reason=Reason.VOICE_NOT_FOUND,
        voice=name,
    )


def _shown(name: str) -> str:
    return repr(name if len(name) <= SHOWN_CHARS else f"{name[: SHOWN_CHARS - 1]}…")


def _created(voice: Voice) -> str:
    if not voice.created:
        return "a preset"
    return f"created {datetime.fromtimestamp(voice.created, UTC):%Y-%m-%d %H:%M:%S} UTC"
