"""Recordings that the tests make."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.clients.media import encode_file, sine


@pytest.fixture(scope="session")
def make_sine() -> Callable[..., np.ndarray]:
    return sine


@pytest.fixture(scope="session")
def make_file() -> Callable[..., bytes]:
    return encode_file
