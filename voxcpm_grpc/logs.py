"""The log of a process: lines on stderr, at the level of the settings."""

from __future__ import annotations

import logging
import re
import sys

OURS = ("voxcpm_grpc", "voxcpm_server")


def set_up(level: str, process: str = "") -> None:
    """Write log lines of `level` and above to stderr, those of other packages only from WARNING on.

    process: name of the process in each line; empty for the main process
    """
    name = f" {process}" if process else ""
    logging.basicConfig(
        level=max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s{name} %(name)s{':' if process else ''} %(message)s",
        force=True,
    )
    for package in OURS:
        logging.getLogger(package).setLevel(level.upper())


def log_word(text: str) -> str:
    """The text as one word of a key=value log line."""
    return re.sub(r"[^\w.:/@+\[\]-]", "_", text) or "-"
