"""The commands of the recipe of the bundled voice."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys

import pytest


def run_command(name: str, *arguments: object) -> str:
    """The output of a command of tools.voice. It runs in this process, which has imported PyTorch already."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        status = importlib.import_module(f"tools.voice.{name}").main()
    assert not status, output.getvalue()
    return output.getvalue()
