"""The tools are no installed package: they run from the repository's root. Small training data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tools.voice.encode import Corpus

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """Utterances of random latents and letters, in the layout of tools.voice.encode."""
    from tools.voice.encode import Corpus
    from tools.voice.shapes import LATENT, PATCH
    from tools.voice.voices import VOICES

    rng = np.random.default_rng(3)
    count, length = rng.integers(3, 9, 40), rng.integers(8, 30, 40)
    right = 1 + np.concatenate(([0], np.cumsum(2 * count + 1)[:-1]))
    patches = rng.normal(size=(int(1 + (2 * count + 1).sum()), PATCH, LATENT)).astype(np.float16)
    patches[0] = 0
    letter = np.full(len(patches), -1, np.int16)
    for first, patches_of, tokens_of in zip(right, count, length, strict=True):
        letter[first : first + patches_of] = np.linspace(0, tokens_of - 1, patches_of).astype(int)
    return Corpus(
        patches=patches,
        voice=np.arange(40) % len(VOICES),
        count=count,
        right=right,
        left=right + count + 1,
        letter=letter,
        ids=rng.integers(4, 30, int(length.sum())).astype(np.int32),
        start=np.concatenate(([0], np.cumsum(length)[:-1])),
        length=length,
    )
