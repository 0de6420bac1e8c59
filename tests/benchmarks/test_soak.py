"""The calls and the page of the soak."""

from __future__ import annotations

import math
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.soak.actions import Caller, attempt, caller_of, say_what_lacks, speak
from benchmarks.soak.deaths import Death, Listened, Run, table_of
from benchmarks.soak.page import growth
from voxcpm_client import Exhausted


def samples(*points: tuple[int, float]) -> list:
    """Samples of these numbers of calls and MiB."""
    return [
        {"seconds": 0.0, "calls": calls, "mib": {"front": mib}, "descriptors": 0, "threads": 0, "voices": 0}
        for calls, mib in points
    ]


def test_growth_is_the_slope_of_the_second_half():
    assert growth(samples((0, 9.0), (10, 90.0), (20, 100.0), (30, 102.0), (40, 104.0)), "front") == pytest.approx(200.0)


def test_a_second_half_without_a_call_has_no_growth():
    """On a host that is busy enough, no call ends between two samples."""
    assert math.isnan(growth(samples((0, 9.0), (10, 90.0), (20, 100.0), (20, 102.0)), "front"))


def run_of(*streams: Listened, deaths: tuple[Death, ...] = ()) -> Run:
    return Run(streams=[*streams], deaths=[*deaths])


def test_a_late_stream_counts_as_one_that_held_enough_only_if_it_held_more_than_the_longest_outage():
    went_on = Listened(1.0, first_audio=0.1, outage=2.0, continuations=1)
    table = table_of(run_of(went_on, *(Listened(1.0, first_audio=0.1, late=0.5, held=held) for held in (1.0, 3.0))))
    assert (table["continued"], table["late"], table["late_with_enough_audio"]) == (1, 2, 1)
    assert table["longest_outage_of_continued"] == 2.0


def test_first_audio_around_a_death_is_that_of_the_streams_that_began_after_it():
    streams = [Listened(began, first_audio=began / 100) for began in (10.0, 21.0, 25.0, 40.0)]
    table = table_of(run_of(*streams, deaths=(Death(20.0, "engine", "kill"),)))
    assert table["first_audio_around_ms"]["p99"] == pytest.approx(250.0)
    assert table["first_audio_ms"]["p99"] == pytest.approx(400.0)


class Client:
    """A client of a server that announces encodings. `asked` has the formats of its calls, which may fail."""

    def __init__(self, *encodings: str, error: Exception | None = None) -> None:
        self.encodings, self.error = encodings, error
        self.asked: set[str] = set()

    async def model_info(self) -> Any:
        return SimpleNamespace(encodings=self.encodings)

    async def say(self, text: str, *, format: str, max_steps: int) -> None:
        self.asked.add(format)
        if self.error is not None:
            raise self.error


async def caller(client: Any) -> Caller:
    return await caller_of(client, random.Random(1))


async def test_a_soak_asks_for_the_formats_that_the_server_announces_and_says_which_lack(capsys):
    client = Client("pcm_s16le", "pcm_f32le", "wav", "mulaw")
    found = await caller(client)
    for _ in range(50):
        await speak(found)
    assert client.asked == {"pcm_s16le", "wav", "mulaw"}
    say_what_lacks(found)
    assert capsys.readouterr().out == "the server has no mp3, ogg_opus, flac: no call asks for them\n"


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (KeyError("details"), "speak: KeyError: 'details'"),
        (Exhausted("full", request_id="r-1"), "speak: Exhausted: full"),
    ],
)
async def test_a_call_that_fails_in_any_way_is_counted(error, counted):
    done = Counter[str]()
    await attempt(speak, await caller(Client("wav", error=error)), done)
    await attempt(speak, await caller(Client("wav")), done)
    assert done == {counted: 1, "speak": 1}
