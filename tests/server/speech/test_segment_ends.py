"""The FINISHED event of a segment, which waits only for a message that is sure to follow."""

import numpy as np
import pytest

from voxcpm_grpc.audio import AudioFormat, Encoding
from voxcpm_grpc.events import FinishReason
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.writer import ChunkWriter
from voxcpm_server.text.segments.segmenter import Segmenter
from voxcpm_server.values.inputs import Segmentation
from voxcpm_server.values.outputs import Summary

RATE = 24_000


@pytest.mark.parametrize("interrupted", [False, True])
async def test_the_end_of_a_segment_is_sent_if_an_interrupt_drops_the_next_message_meanwhile(monkeypatch, interrupted):
    """The interrupt comes while the end of the audio is encoded."""
    sent, queued = [], ["the reply to a flush"]

    async def send(message):
        sent.append(message)

    format = AudioFormat(Encoding.PCM_S16LE, RATE)
    writer = ChunkWriter(send, lambda **_: pb.StreamHeader(), RATE, format, Summary(began=0.0))
    run = writer._run

    async def slow(work):
        part = await run(work)
        if interrupted and work == writer._pipeline.end_silence:
            queued.clear()
        return part

    monkeypatch.setattr(writer, "_run", slow)
    segmenter = Segmenter(Segmentation())
    [segment] = [*segmenter.feed("Hello."), *segmenter.flush()]
    await writer.segment_started(segment, 0.0)
    await writer.audio(np.full(RATE, 0.1, np.float32))
    await writer.segment_finished(segment, FinishReason.STOP, message_follows=lambda: bool(queued))
    ends = [event.kind for message in sent for event in message.segment_events]
    assert (pb.SEGMENT_EVENT_KIND_FINISHED in ends) is interrupted
