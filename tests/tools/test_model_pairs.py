"""The pairs of clients and models that the suites clients and languages run."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from support.clients.model_calls import keep_pairs

CLIENTS = ("node", "go", "java", "ruby", "cpp", "buf")


def cases(*models: str, recordings: bool = False) -> list[Any]:
    """The items of a test that runs with each client and each model."""
    return [
        SimpleNamespace(
            nodeid=f"test[{client}-{model}]",
            callspec=SimpleNamespace(params={"program": client, "model": model}),
            get_closest_marker=lambda mark: recordings and mark == "references",
        )
        for model in models
        for client in CLIENTS
    ]


def kept(items: list[Any], models: str) -> list[tuple[str, str]]:
    config: Any = SimpleNamespace(
        getoption=lambda name: models, hook=SimpleNamespace(pytest_deselected=lambda items: None)
    )
    keep_pairs(config, items)
    return [(item.callspec.params["program"], item.callspec.params["model"]) for item in items]


def test_each_client_meets_the_bundled_voice_and_one_other_model_in_turn():
    pairs = kept(cases("demo", "base", "custom", "design"), "demo,base,custom,design")
    assert [client for client, model in pairs if model == "demo"] == list(CLIENTS)
    others = [(client, model) for client, model in pairs if model != "demo"]
    assert sorted(client for client, _ in others) == sorted(CLIENTS)
    assert Counter(model for _, model in others) == {"base": 2, "custom": 2, "design": 2}


def test_recordings_meet_each_model_that_takes_them():
    pairs = kept(cases("demo", "base", recordings=True), "demo,base,custom,design")
    assert pairs == [(client, model) for model in ("demo", "base") for client in CLIENTS]


def test_without_the_bundled_voice_every_pair_runs():
    assert len(kept(cases("base", "custom"), "base,custom")) == 2 * len(CLIENTS)
