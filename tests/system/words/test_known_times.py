"""The times of words beside the true ones: Flite speaks, and knows when it says each word."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.word_times.calls import SENTENCES, Spoken, first_audio, measure
from benchmarks.word_times.rows import row
from benchmarks.word_times.served import served

MEDIAN_MS, P95_MS = 60.0, 200.0
PACE = 8.0  # times as fast as speech
STREAMS = 30  # with times, and as many without
ROUNDS = 4


async def spoken(aligners: Sequence[str]) -> list[Spoken]:
    async with served(aligners, PACE) as address:
        return await measure(address, SENTENCES)


async def test_an_aligner_finds_the_words_of_a_hundred_sentences():
    calls = await spoken(["english"])
    assert len(calls) == 100
    found = row("aligned", calls, 0.0)
    print(found)
    assert found.median_ms <= MEDIAN_MS
    assert found.p95_ms <= P95_MS
    assert found.estimated <= 0.02 * found.words


async def test_estimates_are_worse_and_marked():
    calls = await spoken([])
    found = row("estimated", calls, 0.0)
    print(found)
    assert found.estimated == found.words
    assert P95_MS < found.p95_ms < 500  # a pause or a slow word moves all that follow it


async def test_the_first_audio_of_streams_with_times_is_not_later_than_that_of_those_beside_them():
    """The streams of a round begin together; a busy host delays both kinds."""
    async with served(["english"], 1.0) as address:
        await first_audio(address, STREAMS, 1)  # Flite speaks each text once
        timed, plain = await first_audio(address, STREAMS, ROUNDS)
    print(f"first audio: {statistics.median(timed):.3f} s with times, {statistics.median(plain):.3f} s without")
    tenths = statistics.quantiles(plain, n=10)
    assert statistics.median(timed) <= statistics.median(plain) + max(0.02, (tenths[8] - tenths[0]) / 2)
