"""Pauses in a Generate stream are silence of an exact length, in order with everything else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clients.decoding import decoded
from support.clients.grpc_types import EOF
from support.servers.sessions import SlowClient, session
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.audio import AudioFormat, Encoding
from voxcpm_grpc.errors import Exhausted
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech import reader
from voxcpm_server.values.inputs import Continuity, Flush, Interrupt, Pause, Text

STEP = 960  # samples of a character; the space before a new word counts
STARTED, FINISHED, DROPPED = 1, 2, 3


def config(encoding: Any = pb.AUDIO_ENCODING_PCM_S16LE, rate: int = 48000, **turn: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(
        output=pb.AudioFormat(encoding=encoding, sample_rate_hz=rate),
        turn=pb.TurnConfig(sampling=pb.Sampling(seed=7), **turn),
    )


def pause(milliseconds: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(pause=pb.Pause(milliseconds=milliseconds))


def samples_of(chunks: list[pb.AudioChunk]) -> np.ndarray:
    return np.frombuffer(b"".join(chunk.audio for chunk in chunks), "<i2")


def events(chunks: list[pb.AudioChunk]) -> list[tuple[int, int, int, int]]:
    return [(e.kind, e.turn_index, e.segment_index, e.at_samples) for c in chunks for e in c.segment_events]


def check_numbers(chunks: list[pb.AudioChunk]) -> None:
    assert [c.sequence for c in chunks] == list(range(len(chunks)))
    assert all(b.offset_samples == a.offset_samples + a.sample_count for a, b in pairwise(chunks))
    assert chunks[-1].summary.total_samples == sum(c.sample_count for c in chunks)
    assert chunks[-1].summary.total_bytes == sum(len(c.audio) for c in chunks)


def length(milliseconds: int, rate: int) -> int:
    return (2 * milliseconds * rate + 1000) // 2000


async def test_a_pause_is_silence_between_the_speech_before_and_after_it(served):
    plain = await served.generate(config(), "One is.", pb.Flush(), " Two is.")
    chunks = await served.generate(config(), "One is.", pause(300), "Two is.")
    check_numbers(chunks)
    speech, heard = samples_of(plain), samples_of(chunks)
    silence = 14_400
    assert len(heard) == len(speech) + silence
    assert (heard[7 * STEP : 7 * STEP + silence] == 0).all()
    assert (np.delete(heard, np.s_[7 * STEP : 7 * STEP + silence]) == speech).all()
    assert events(chunks) == [
        (STARTED, 0, 0, 0),
        (FINISHED, 0, 0, 7 * STEP),
        (STARTED, 0, 1, 7 * STEP + silence),
        (FINISHED, 0, 1, 15 * STEP + silence),
    ]
    assert chunks[-1].summary.segments == 2


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 96000])
async def test_a_pause_is_exact_to_the_sample_at_every_rate(served, rate):
    chunks = await served.generate(config(rate=rate), "One is.", pause(333), pause(1), "Two is.", pb.Flush(tag="f"))
    check_numbers(chunks)
    first, second = [e for c in chunks for e in c.segment_events if e.kind in (STARTED, FINISHED)][1:3]
    silence = length(333, rate) + length(1, rate)
    assert second.at_samples - first.at_samples == silence
    heard = samples_of(chunks)
    assert (heard[first.at_samples : second.at_samples] == 0).all()
    assert abs(first.at_samples - 7 * STEP * rate / 48000) <= 1
    (done,) = [c.flush_done.at_samples for c in chunks if c.HasField("flush_done")]
    assert done == len(heard)


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [
        (pb.AUDIO_ENCODING_MP3, 24000),
        (pb.AUDIO_ENCODING_OGG_OPUS, 48000),
        (pb.AUDIO_ENCODING_OGG_OPUS, 16000),
        (pb.AUDIO_ENCODING_FLAC, 22050),
        (pb.AUDIO_ENCODING_ALAW, 8000),
        (pb.AUDIO_ENCODING_WAV, 44100),
    ],
)
async def test_a_decoder_finds_the_pause_at_its_position_in_every_format(served, encoding, rate):
    chunks = await served.generate(config(encoding, rate), "One is.", pause(500), "Two is.", pause(40))
    check_numbers(chunks)
    _, finished, started, last = [e.at_samples for c in chunks for e in c.segment_events]
    assert started - finished == length(500, rate)
    assert chunks[-1].summary.total_samples == last + length(40, rate)
    data, delay = b"".join(c.audio for c in chunks), chunks[0].header.codec_delay_samples
    format = {
        pb.AUDIO_ENCODING_MP3: Encoding.MP3,
        pb.AUDIO_ENCODING_OGG_OPUS: Encoding.OGG_OPUS,
        pb.AUDIO_ENCODING_FLAC: Encoding.FLAC,
        pb.AUDIO_ENCODING_ALAW: Encoding.ALAW,
        pb.AUDIO_ENCODING_WAV: Encoding.WAV,
    }[encoding]
    heard, decoded_rate = decoded(data, AudioFormat(format, rate))  # decoders of Opus make 48 kHz
    begin, end = ((delay + at) * decoded_rate // rate for at in (finished, started))
    margin = decoded_rate // 20  # codecs smear speech over some milliseconds
    assert np.abs(heard[begin + margin : end - margin]).max() < 0.01
    assert np.abs(heard[begin - margin : begin]).max() > 0.05
    assert np.abs(heard[end : end + margin]).max() > 0.05


@pytest.mark.parametrize("turn", [{"speed": 1.7}, {"speed": 0.6, "volume_gain_db": 6.0}, {"volume_gain_db": -9.0}])
async def test_speed_and_volume_leave_a_pause_as_it_is(served, turn):
    chunks = await served.generate(config(rate=44100, **turn), "One is.", pause(250), "Two is.")
    check_numbers(chunks)
    heard = samples_of(chunks)
    _, finished, started, _ = [e.at_samples for c in chunks for e in c.segment_events]
    assert started - finished == 11_025
    assert (heard[finished:started] == 0).all()


async def test_pauses_keep_their_order_with_flushes_and_turns(served):
    chunks = await served.generate(
        config(),
        "One is.",
        pause(100),
        pb.Flush(tag="a", end_turn=True),
        pause(200),
        "Two is.",
        pb.Flush(tag="b"),
        pause(50),
    )
    check_numbers(chunks)
    assert [(c.flush_done.tag, c.flush_done.at_samples) for c in chunks if c.HasField("flush_done")] == [
        ("a", 7 * STEP + 4800),
        ("b", 15 * STEP + 14_400),
    ]
    assert events(chunks)[2] == (STARTED, 1, 0, 7 * STEP + 14_400)
    assert chunks[-1].summary.turns == 2
    assert chunks[-1].summary.total_samples == 15 * STEP + 16_800
    silent = [c.turn_index for c in chunks if c.audio and not any(c.audio)]
    assert silent == sorted(silent) and set(silent) == {0, 1}


async def test_a_pause_ends_a_segment_and_a_word_but_not_the_turn(served):
    await served.generate(config(), "The doctor", pause(10), "said this", pause(10), "、你", pause(10), "好")
    assert [request.text for request in served.pool.requests] == ["The doctor", " said this", " 、你", "好"]
    assert {request.turn for request in served.pool.requests} == {0}


async def test_a_stream_of_silence_alone_has_its_length(served):
    for messages in ((pause(700),), (pause(350), pb.Flush(), pause(350)), (config(), pause(700), pb.Finish())):
        chunks = await served.generate(*messages)
        check_numbers(chunks)
        assert samples_of(chunks).tolist() == [0] * 33_600


@pytest.mark.parametrize("milliseconds", [0, 60_001, 2**32 - 1])
async def test_a_pause_out_of_range_is_refused(served, details_of, milliseconds):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate("One is.", pause(milliseconds))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"the pause has {milliseconds} milliseconds" in str(caught.value.details())
    assert details_of(caught.value).field == "pause.milliseconds"


async def test_too_many_waiting_pauses_are_refused(served, details_of, monkeypatch):
    monkeypatch.setattr(reader, "MAX_PAUSES", 20)
    served.pool.hold_after = 2
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate("One is. ", *[pause(1)] * 30)
    served.pool.release()
    assert "pauses wait to be sent and the limit is 20" in str(caught.value.details())
    assert details_of(caught.value).field == "pause"


async def test_a_stream_that_begins_with_a_pause_can_be_retried_if_it_gets_no_slot(served, fake):
    served.pool.failures["One is."] = (-1, Exhausted("full", retry_after=1.0))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(pause(500), "One is.")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(pause(500), pb.Flush(), "One is.")
    assert caught.value.code() is grpc.StatusCode.ABORTED
    await served.idle()


async def test_an_interrupt_drops_the_rest_of_a_pause_and_counts_what_was_heard(served):
    call = served.stub.Generate(timeout=HANG_SECONDS)
    for message in (pb.GenerateRequest(config=config()), pb.GenerateRequest(text="One is."), pause(200)):
        await call.write(message)
    await call.write(pb.GenerateRequest(flush=pb.Flush(tag="f")))
    sent = 0
    while True:
        chunk = await call.read()
        sent = chunk.offset_samples + chunk.sample_count
        if chunk.HasField("flush_done"):
            break
    for played, end in ((7 * STEP + 1, 7), (7 * STEP, 7), (sent, 7)):
        await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(played_samples=played)))
        while not (chunk := await call.read()).HasField("interrupted"):
            pass
        answer = chunk.interrupted
        assert (answer.heard_turn_index, answer.heard_input_end, answer.heard_estimated) == (0, end, False)
        assert answer.sent_samples == sent
    await call.write(pause(10))
    await call.write(pb.GenerateRequest(text="Two is."))
    await call.done_writing()
    rest = []
    while (chunk := await call.read()) is not EOF:
        rest.append(chunk)
    assert events(rest) == [(STARTED, 1, 0, sent + 480), (FINISHED, 1, 0, sent + 480 + 8 * STEP)]
    assert {c.turn_index for c in rest if c.audio} == {1}


class Stopping(SlowClient):
    """Takes no more messages once it has received so much audio, until it is resumed."""

    def __init__(self, samples: int) -> None:
        super().__init__(10**9)
        self._samples = samples

    async def send(self, message: pb.AudioChunk) -> None:
        self.received.append(message)
        if message.offset_samples + message.sample_count >= self._samples:
            self._samples = 10**12
            await self._resumed.wait()


def test_a_long_pause_is_made_as_it_is_taken_and_an_interrupt_ends_it(fake):
    client = Stopping(7 * STEP + 48_000)

    def script() -> Iterator[Any]:
        yield Text("One is.")
        yield Pause(60_000)
        yield Text("Two is.")
        yield Flush("f", False)
        yield 50.0
        yield Interrupt("i", 7 * STEP + 10)
        yield 1.0
        client.resume()
        yield 1.0
        yield Text("Three is.")

    chunks = session(fake(), script(), client=client)
    check_numbers(chunks)
    (reply,) = [c.interrupted for c in chunks if c.HasField("interrupted")]
    assert (reply.tag, list(reply.dropped_flush_tags), reply.heard_input_end) == ("i", ["f"], 7)
    assert reply.sent_samples == 7 * STEP + 48_000
    assert max(c.sample_count for c in chunks) <= 24_000
    assert [e.text for c in chunks for e in c.segment_events if e.kind == DROPPED] == ["Two is."]
    assert chunks[-1].summary.total_samples == reply.sent_samples + 10 * STEP


PARTS = st.lists(st.sampled_from(["One is. ", "Two", "三。", 1, 20, 777, 1500, "flush", "end"]), max_size=8)


@given(parts=PARTS, rate=st.sampled_from([8000, 11025, 24000, 48000]), opus=st.booleans(), ahead=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mix_of_text_pauses_and_flushes_adds_up(fake, parts, rate, opus, ahead):
    output = AudioFormat(Encoding.PCM_S16LE, rate) if not opus else AudioFormat(Encoding.MULAW, 8000)
    messages: list[Any] = []
    for part in parts:
        if isinstance(part, int):
            messages.append(Pause(part))
        elif part in ("flush", "end"):
            messages.append(Flush("f", part == "end"))
        else:
            messages.append(Text(part))
    chunks = session(
        fake(), messages, output=output, continuity=Continuity.INDEPENDENT if ahead else Continuity.CARRY, max_lead=1.0
    )
    check_numbers(chunks)
    found = [e for c in chunks for e in c.segment_events]
    speech = sum(b.at_samples - a.at_samples for a, b in zip(found[::2], found[1::2], strict=True))
    silence = sum(length(part, output.sample_rate) for part in parts if isinstance(part, int))
    assert chunks[-1].summary.total_samples == speech + silence
    positions = [e.at_samples for e in found]
    assert positions == sorted(positions)
