"""The aligners that the setting `words.aligners` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec

from voxcpm_grpc.errors import StartupError
from voxcpm_server.aligners.aligner import Aligner

GROUP = "voxcpm_grpc.aligners"  # entry points have this group
BUNDLED = "english"
PACKAGE = "pocketsphinx"  # the bundled aligner needs it


def usable(names: Sequence[str]) -> list[str]:
    """The aligners that can be loaded: all but the bundled one without its package. Loads none.

    Raises StartupError for a name that belongs to no aligner.
    """
    for name in names:
        _check(name)
    return [name for name in names if name != BUNDLED or find_spec(PACKAGE) is not None]


def load(name: str) -> Aligner:
    """The aligner of a name: the bundled one, that of an entry point, or a class as `module:Class`.

    Raises StartupError.
    """
    try:
        return _maker(name)()
    except Exception as error:
        raise StartupError(f"words.aligners: {name} did not start: {error!r}") from error


def _check(name: str) -> None:
    module, separator, _ = name.partition(":")
    try:
        known = find_spec(module) if separator else name == BUNDLED or list(entry_points(group=GROUP, name=name))
    except (ImportError, ValueError):  # a package around the module is missing, or the name is none of a module
        known = None
    if not known:
        raise StartupError(
            f"words.aligners: there is no aligner {name!r}; it must be {BUNDLED}, the name of an entry point of the "
            f"group {GROUP}, or module:Class"
        )


def _maker(name: str) -> Callable[[], Aligner]:
    if name == BUNDLED:
        from voxcpm_server.aligners.english.aligner import EnglishAligner

        return EnglishAligner
    module, separator, attribute = name.partition(":")
    if separator:
        return getattr(import_module(module), attribute)
    (entry,) = entry_points(group=GROUP, name=name)
    return entry.load()
