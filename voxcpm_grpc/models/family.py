"""The description of a model family that hosts without PyTorch use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model family: how its checkpoints are recognised, which files they have, and where its code is.

    `load(directory, config, options)` gives the SpeechModel, `footprint(config, options)` its Footprint; `prepare()`
    imports early what they need. These are named as "module:function", and imported where an engine runs.
    """

    name: str
    recognizes: Callable[[Mapping[str, Any]], bool]  # the content of config.json decides
    kinds: tuple[str, ...]  # messages call what config.json names so
    # A checkpoint has these files, each with its alternatives; the fingerprint hashes them.
    hashed: tuple[tuple[str, ...], ...]
    patterns: tuple[str, ...]  # a download fetches the files that match: data only, no code
    settings: frozenset[str]  # the family reads these settings of engines, of `settings.engine.OF_FAMILIES`
    load: str
    footprint: str
    prepare: str = ""

    def missing(self, present: Callable[[str], bool]) -> list[str]:
        """The files that a checkpoint lacks, each as a text with its alternatives."""
        return [" or ".join(names) for names in self.hashed if not any(map(present, names))]
