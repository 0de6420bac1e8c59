"""Runs commands of click within the process."""

from __future__ import annotations

import inspect
from typing import Any

from click.testing import CliRunner


def cli_runner() -> CliRunner:
    """A runner whose results have stdout and stderr apart, as all have since click 8.2."""
    choice: dict[str, Any] = {"mix_stderr": False}
    return CliRunner(**(choice if "mix_stderr" in inspect.signature(CliRunner).parameters else {}))
