"""The call that clients make to a server of each model, for tests that run with several models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.servers.qwen3_servers import CLONES, QWEN3, qwen3_serving
from support.servers.running import FEW_TIMESTEPS, Server, serving

DEMO = "demo"


@dataclass(frozen=True)
class Call:
    """A text in a voice of the model, if it has voices, and in a style, if it takes them."""

    voice: str = "miles"
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


def models(config: pytest.Config) -> list[str]:
    """Those of `--model`, or the bundled voice."""
    return str(config.getoption("--model") or DEMO).split(",")


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Run a test with the models of `--model`, without the mark `models` with the first one alone.

    Recordings are for models that take them.
    """
    if "model" in metafunc.fixturenames:
        names = models(metafunc.config)
        if not metafunc.definition.get_closest_marker("models"):
            del names[1:]
        if metafunc.definition.get_closest_marker("references"):
            names = [name for name in names if name == DEMO or name.startswith(CLONES)]
        metafunc.parametrize("model", names, scope="session")


def keep_pairs(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If `--model` names others behind the bundled voice, run each case of a test with the bundled voice and with one
    of the others, which are given to the cases in turns.
    """
    count = len(models(config)) - 1
    if models(config)[0] != DEMO or not count:
        return
    turns: Counter[tuple[str, str]] = Counter()  # of the cases of a test with the same model
    left: list[pytest.Item] = []
    tests: list[str] = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or callspec.params.get("model", DEMO) == DEMO:
            continue
        test, model = item.nodeid.partition("[")[0], callspec.params["model"]
        if test not in tests:
            tests.append(test)
        offered = 1 if item.get_closest_marker("references") else count
        if (turns[test, model] + tests.index(test)) % offered != (models(config).index(model) - 1) % offered:
            left.append(item)
        turns[test, model] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


@contextmanager
def serve(model: str, folder: Path) -> Iterator[Server]:
    """Serve a model until the end of the block."""
    bundled = serving(folder / "voices", model=DEMO, family=FEW_TIMESTEPS)
    with bundled if model == DEMO else qwen3_serving(folder, model) as running:
        yield running
