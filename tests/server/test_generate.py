"""Generate through a real channel, over a pool that makes up audio."""

from __future__ import annotations

import numpy as np


def audio(chunks) -> np.ndarray:
    return np.frombuffer(b"".join(c.audio for c in chunks), "<i2")


async def test_one_text_is_spoken(served):
    chunks = await served.generate("Hello world.")
    assert [c.sequence for c in chunks] == list(range(len(chunks)))
    assert chunks[0].header.request_id
    print([str(c)[:0] or c for c in chunks][-1])
    assert chunks[-1].summary.total_samples == sum(c.sample_count for c in chunks) == 12 * 960
