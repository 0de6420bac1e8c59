"""The files of a result: a table as JSON, a picture and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Render = Callable[[Mapping[str, Any], str, str], str]
"""Makes the page of a table, from the table, the name of its files and the file of its picture, "" without one."""
Draw = Callable[[Mapping[str, Any], Path], None]
"""Draws a table into a file. May raise ImportError if matplotlib is missing."""


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def publish(table: Mapping[str, Any], folder: Path, name: str, render: Render, draw: Draw) -> None:
    """Write NAME.json, NAME.md and, if matplotlib is installed, NAME.png into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", table)
    picture = f"{name}.png"
    try:
        draw(table, folder / picture)
    except ImportError as error:
        picture = ""
        print(f"no picture is drawn ({error}); to draw one, install the bench extra")
    (folder / f"{name}.md").write_text(render(table, name, picture))
