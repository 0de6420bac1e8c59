"""Audio that the listener does not need yet comes in fewer and longer messages."""

from __future__ import annotations

import asyncio

import numpy as np
from support.servers.paced_servers import INFO, paced_server

from voxcpm_client import Client
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.request import Sampling
from voxcpm_server.speech.output import Audio, FlushDone, OutputQueue, Stop
from voxcpm_server.speech.stream import MERGED_SECONDS
from voxcpm_server.values.inputs import TurnConfig
from voxcpm_server.values.outputs import Segment

SEGMENT = Segment(
    turn=0,
    index=0,
    text="One.",
    spaced=False,
    start=0,
    end=4,
    cut=None,
    source="One.",
    turn_config=TurnConfig(sampling=Sampling()),
)


def test_messages_are_longer_when_the_listener_has_enough_audio(tmp_path):
    """Twenty seconds of speech are made in one."""
    options = {"min_steps": 125, "max_steps": 125, "trim_leading_silence": 0.0}
    with (
        paced_server(tmp_path, pace=20.0) as server,
        Client(server.address) as client,
        client.speak("One sentence. " * 4, **options) as stream,
    ):
        lengths = [one.sample_count for one in stream if one.sample_count]
    step = INFO.samples_per_step
    assert 2 * step < max(lengths) <= 6 * step <= MERGED_SECONDS * INFO.output_sample_rate


def queue_of(*chunks: int) -> OutputQueue:
    """A queue with audio of so many chunks each."""
    queue, made = OutputQueue(max_merged=30), 0
    for count in chunks:
        queue.put_audio(SEGMENT, AudioChunk(index=made, samples=np.full(10 * count, made, np.float32), chunks=count))
        made += count
    return queue


async def taken(queue: OutputQueue) -> list[tuple[int, int] | type]:
    """The chunks and samples of each audio, and the types of the other items, up to Stop."""
    found = list[tuple[int, int] | type]()
    async with asyncio.timeout(10):
        while (item := await queue.get()) and not isinstance(item, Stop):
            found.append((item.chunks, sum(map(len, item.parts))) if isinstance(item, Audio) else type(item))
    return found


async def test_audio_that_waits_for_a_slow_client_is_merged():
    queue = queue_of(1, 1, 1, 2, 3, 1)
    queue.put(Stop())
    assert await taken(queue) == [(3, 30), (2, 20), (3, 30), (1, 10)]


async def test_the_audio_before_an_error_is_sent_to_a_client_that_keeps_up():
    queue = queue_of(2, 1)
    queue.stop()
    assert await taken(queue) == [(3, 30)]


async def test_what_a_slow_client_has_not_read_is_not_sent_at_the_end():
    for queue in (queue_of(2, 2), queue_of(1)):
        queue.put(FlushDone("a"))
        queue.stop()
        assert await taken(queue) == []
    assert queue_of(2, 2).drop() == 4
