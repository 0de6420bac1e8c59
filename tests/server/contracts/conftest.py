"""Fake pools for the contracts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest


@pytest.fixture
def multilingual(fake: Any) -> Callable[..., Any]:
    """`multilingual(**info)` makes a pool of a model that can be told to speak English or German."""

    def made(**info: Any) -> Any:
        pool = fake()
        told = replace(pool.info.abilities, language="")
        pool.info = replace(pool.info, abilities=told, speech_languages=("en", "de"), **info)
        return pool

    return made
