"""The home directory of the user, which users of containers and services often lack."""

from __future__ import annotations

from pathlib import Path

from voxcpm_grpc.errors import StartupError


def home() -> Path | None:
    """The home directory; None without the variable HOME and without an entry in the list of users."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def needed_home(purpose: str) -> Path:
    """The home directory. Raises StartupError without one; `purpose` says what needs it and what else to set."""
    if (found := home()) is None:
        raise StartupError(f"this user has no home directory: {purpose}, or the variable HOME")
    return found


def expanded(path: str) -> Path:
    """A path, whose ~/ stands for the home directory. Raises StartupError if there is none."""
    if not path.startswith("~/"):
        return Path(path)
    return needed_home(f"{path} needs one; write a path without ~/") / path[2:]
