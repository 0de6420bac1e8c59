"""A suite of `make test-system`: its tests, environment and limit of time, and the files that it judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from system_environments import HOME, Environment


class Load(Enum):
    """The work of a suite, which decides on the suites beside it."""

    COMPUTES = "one that waits runs beside it, and goes first"
    WAITS = "it waits for timeouts, processes and checks more than it computes: one that computes runs beside it"


@dataclass(frozen=True)
class Suite:
    """Tests that need other packages, other languages or more time than `make test` gives."""

    name: str
    about: str
    minutes: float  # of its tests on a quiet host, at most, without the installation
    tests: tuple[str, ...] = ()  # arguments of pytest; the folder tests/system/NAME if empty
    judges: tuple[str, ...] = field(kw_only=True)  # beginnings of the paths whose change calls for the suite
    spares: tuple[str, ...] = field(default=(), kw_only=True)  # beginnings of those among them that it does not judge
    environment: Environment | None = field(default=None, kw_only=True)  # None: that of `make test`
    by_default: bool = field(default=True, kw_only=True)  # False: only if it is named
    nightly: bool = field(default=False, kw_only=True)  # not by default, but with --nightly
    by_change: bool = field(default=False, kw_only=True)  # also if it is not by default: where what it judges changed
    load: Load = field(default=Load.COMPUTES, kw_only=True)

    @property
    def log(self) -> Path:
        return HOME / "logs" / f"{self.name}.log"

    @property
    def report(self) -> Path:
        return self.log.with_suffix(".xml")

    @property
    def paths(self) -> tuple[str, ...]:
        """Its own tests, or their folders, beside what it judges."""
        tests = tuple(one for one in self.tests if not one.startswith("-")) or (f"tests/system/{self.name}/",)
        return (*tests, *self.judges)

    def is_called_for(self, path: str) -> bool:
        """True if a change of this path calls for the suite."""
        return path.startswith(self.paths) and not path.startswith(self.spares)
