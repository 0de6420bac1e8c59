"""The call that clients make to a server of each model, for tests that run with several models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.servers.qwen3_servers import CLONES, QWEN3, qwen3_serving
from support.servers.running import Server, serving

DEMO = "demo"


@dataclass(frozen=True)
class Call:
    """A text in a voice of the model, if it has voices, and in a style, if it takes them."""

    voice: str = "slt"
    style: str = ""
    text: str = "The train arrived ten minutes late."
    seed: int = 7

    @property
    def options(self) -> dict[str, Any]:
        """Those of the Python client."""
        return {"voice": self.voice, "style": self.style, "seed": self.seed}

    @property
    def json(self) -> str:
        """Its messages, one a line."""
        turn = {"sampling": {"seed": str(self.seed)}, "style": self.style}
        config = {"config": {"conditioning": {"preset": self.voice}, "turn": turn}}
        return f"{json.dumps(config)}\n{json.dumps({'text': self.text})}"


CALLS = {  # random models end the speech of these voices within some seconds
    f"{QWEN3}custom06": Call(voice="dylan"),
    f"{QWEN3}custom17": Call(voice="serena", style="very happy"),
    f"{QWEN3}design": Call(voice="", style="very happy"),
}


def call_of(model: str) -> Call:
    return CALLS.get(model, Call())


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Run a test with the models of `--model`, or with the bundled voice. Recordings are for models that take them."""
    if "model" in metafunc.fixturenames:
        names = str(metafunc.config.getoption("--model") or DEMO).split(",")
        if metafunc.definition.get_closest_marker("references"):
            names = [name for name in names if name == DEMO or name.startswith(CLONES)]
        metafunc.parametrize("model", names, scope="session")


@contextmanager
def serve(model: str, folder: Path) -> Iterator[Server]:
    """Serve a model until the end of the block."""
    with serving(folder / "voices", model=DEMO) if model == DEMO else qwen3_serving(folder, model) as running:
        yield running
