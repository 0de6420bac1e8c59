"""Speed and volume of turns: every position counts samples of the audio that is sent."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest
from support.clients.decoding import decoded
from support.clients.grpc_types import EOF

from voxcpm_grpc.audio import AudioFormat, Effects, Encoding, resample
from voxcpm_grpc.audio.effects import StreamEffects
from voxcpm_grpc.v1 import tts_pb2 as pb

STEP, NATIVE = 960, 48000  # of the fake engine, which makes one step for each character
FIRST, SECOND = "First one here.", "And a second one."
SPEEDS = (0.5, 0.75, 1.1, 1.5, 2.0)
STARTED, FINISHED = pb.SEGMENT_EVENT_KIND_STARTED, pb.SEGMENT_EVENT_KIND_FINISHED
SEED = pb.Sampling(seed=7)


def config(encoding: Any = pb.AUDIO_ENCODING_PCM_F32LE, rate: int = NATIVE, **turn: Any) -> pb.GenerateConfig:
    output = pb.AudioFormat(encoding=encoding, sample_rate_hz=rate)
    return pb.GenerateConfig(output=output, turn=pb.TurnConfig(sampling=SEED, **turn))


def length(characters: int, speed: float, rate: int) -> int:
    """The samples of the speech of a text, at the rate of the output."""
    native = int(characters * STEP / speed + 0.5)
    return (2 * native * rate + NATIVE) // (2 * NATIVE)


def bytes_of(chunks: list[pb.AudioChunk]) -> bytes:
    return b"".join(chunk.audio for chunk in chunks)


def samples_of(chunks: list[pb.AudioChunk]) -> np.ndarray:
    return np.frombuffer(bytes_of(chunks), "<f4")


def positions(chunks: list[pb.AudioChunk], kind: Any) -> list[int]:
    return [event.at_samples for chunk in chunks for event in chunk.segment_events if event.kind == kind]


def flushes(chunks: list[pb.AudioChunk]) -> list[int]:
    return [chunk.flush_done.at_samples for chunk in chunks if chunk.HasField("flush_done")]


def with_effects(samples: np.ndarray, effects: Effects) -> np.ndarray:
    stream = StreamEffects(NATIVE, effects)
    return np.concatenate([stream.push(samples), stream.flush()])


def check_offsets(chunks: list[pb.AudioChunk]) -> None:
    for before, after in pairwise(chunks):
        assert after.offset_samples == before.offset_samples + before.sample_count
    assert chunks[-1].summary.total_samples == sum(chunk.sample_count for chunk in chunks)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("rate", [48000, 22050, 8000])
async def test_segments_flushes_and_summary_count_the_samples_that_are_sent(served, speed, rate):
    chunks = await served.generate(config(rate=rate, speed=speed), f"{FIRST} {SECOND}", pb.Flush(tag="f"), "More.")
    check_offsets(chunks)
    first, second, third = (len(request.text) for request in served.pool.requests)
    whole = length(first + second, speed, rate)
    more = length(third, speed, rate)
    found = [*positions(chunks, STARTED), *positions(chunks, FINISHED), *flushes(chunks)]
    middle = length(first, speed, rate)
    assert found == pytest.approx([0, middle, whole, middle, whole, whole + more, whole], abs=rate < 48000)
    assert flushes(chunks) == [positions(chunks, STARTED)[2]] == [positions(chunks, FINISHED)[1]]
    assert positions(chunks, FINISHED)[2] == chunks[-1].summary.total_samples
    assert len(samples_of(chunks)) == chunks[-1].summary.total_samples
    assert chunks[-1].summary.total_samples == pytest.approx(whole + more, abs=rate < 48000)  # halves go either way


async def test_each_turn_has_its_own_speed_and_volume(served):
    changes = [Effects(speed=2), Effects(), Effects(speed=0.5, gain_db=-6), Effects(gain_db=20)]
    plain = await served.generate(config(), *[m for _ in changes for m in (FIRST, pb.Flush(tag="f", end_turn=True))])
    messages: list[Any] = []
    for effects in changes:
        turn = pb.TurnConfig(speed=effects.speed, volume_gain_db=effects.gain_db)
        messages += [turn, FIRST, pb.Flush(tag="f", end_turn=True)]
    chunks = await served.generate(config(), *messages)
    check_offsets(chunks)
    ends = flushes(chunks)
    speech = np.split(samples_of(plain), flushes(plain))
    expected = [with_effects(one, effects) for one, effects in zip(speech[:-1], changes, strict=True)]
    assert ends == np.cumsum([len(one) for one in expected]).tolist()
    for found, wanted in zip(np.split(samples_of(chunks), ends), expected, strict=False):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert positions(chunks, STARTED) == [0, *ends[:-1]]


async def test_the_first_audio_comes_with_the_step_that_fills_the_filter(serve_front, fake):
    """The filter keeps less than 0.08 s back at 48 kHz, and nothing else waits."""
    for speed in (0.5, 1.5, 2.0):
        async with serve_front(fake(hold_after=5)) as served:
            call = served.stub.Generate()
            await call.write(pb.GenerateRequest(config=config(speed=speed)))
            await call.write(pb.GenerateRequest(text=SECOND))
            await call.write(pb.GenerateRequest(flush=pb.Flush()))
            sent = 0
            while sent < (5 * STEP - 0.08 * NATIVE) / speed:
                sent += (await call.read()).sample_count
            assert sent <= 5 * STEP / speed
            call.cancel()
            await served.idle()


async def test_speed_1_and_no_gain_change_nothing(served):
    plain = await served.generate(config(), FIRST)
    stated = await served.generate(config(speed=1, volume_gain_db=0), FIRST)
    assert bytes_of(plain) == bytes_of(stated)


@pytest.mark.parametrize(
    ("number", "encoding", "rate"),
    [
        (pb.AUDIO_ENCODING_FLAC, Encoding.FLAC, 44100),
        (pb.AUDIO_ENCODING_OGG_OPUS, Encoding.OGG_OPUS, 48000),
        (pb.AUDIO_ENCODING_MP3, Encoding.MP3, 24000),
        (pb.AUDIO_ENCODING_MULAW, Encoding.MULAW, 8000),
    ],
)
async def test_compressed_audio_is_the_same_speech_and_has_the_stated_length(served, number, encoding, rate):
    pcm = await served.generate(config(), f"{FIRST} {SECOND}")
    chunks = await served.generate(config(number, rate, speed=1.5, volume_gain_db=-3), f"{FIRST} {SECOND}")
    check_offsets(chunks)
    header, summary = chunks[0].header, chunks[-1].summary
    found, decoded_rate = decoded(bytes_of(chunks), AudioFormat(encoding, rate))
    stated = header.codec_delay_samples + summary.total_samples + summary.codec_padding_samples
    assert len(found) == stated * decoded_rate // rate
    assert summary.total_samples == length(sum(len(r.text) for r in served.pool.requests[-2:]), 1.5, rate)
    wanted = resample(with_effects(samples_of(pcm), Effects(speed=1.5, gain_db=-3)), NATIVE, rate)
    found = found[:: decoded_rate // rate][header.codec_delay_samples :][: len(wanted)]
    assert np.corrcoef(found, wanted[: len(found)])[0, 1] > 0.75  # of noise, which a shift by a sample would destroy


@pytest.mark.parametrize("speed", [0.5, 1.5])
@pytest.mark.parametrize("number", [pb.AUDIO_ENCODING_PCM_F32LE, pb.AUDIO_ENCODING_OGG_OPUS])
async def test_an_interrupt_drops_what_the_filter_holds(serve_front, fake, spoken_by, number, speed):
    async with serve_front(fake(hold_after=12)) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config(number, speed=speed)))
        await call.write(pb.GenerateRequest(text="A sentence that is long and goes on and on and on. "))
        chunks = []
        while sum(chunk.sample_count for chunk in chunks) < (12 * STEP - 0.12 * NATIVE) / speed:
            chunks.append(await call.read())
        await served.pool.stalled()
        await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(tag="stop", played_samples=1)))
        while not chunks[-1].HasField("interrupted"):
            chunks.append(await call.read())
        at = chunks[-1].interrupted.sent_samples
        assert at == chunks[-1].offset_samples == sum(chunk.sample_count for chunk in chunks)
        assert at < 12 * STEP / speed
        served.pool.release()
        await call.write(pb.GenerateRequest(text="Next turn."))
        await call.done_writing()
        while (chunk := await call.read()) is not EOF:
            chunks.append(chunk)
        check_offsets(chunks)
        next_turn = length(len(served.pool.requests[-1].text), speed, NATIVE)
        begin = positions(chunks, STARTED)[1]
        assert begin >= at and chunks[-1].summary.total_samples == begin + next_turn
        if number == pb.AUDIO_ENCODING_PCM_F32LE:
            assert begin == at
            request = served.pool.requests[-1]
            speech = np.concatenate([spoken_by(request, step) for step in range(len(request.text))])
            np.testing.assert_allclose(samples_of(chunks)[at:], with_effects(speech, Effects(speed=speed)), atol=1e-6)
        await served.idle()


async def test_the_text_that_was_heard_follows_the_speed_of_its_turn(served):
    """The first turn teaches how long a letter takes; the second one is four times as fast."""
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(config=config(speed=0.5)))
    await call.write(pb.GenerateRequest(text="one two three four five six seven eight."))
    await call.write(pb.GenerateRequest(flush=pb.Flush(tag="a", end_turn=True)))
    while not (chunk := await call.read()).HasField("flush_done"):
        pass
    begin = chunk.flush_done.at_samples
    served.pool.hold_after = served.pool.steps + 30
    await call.write(pb.GenerateRequest(turn=pb.TurnConfig(speed=2)))
    text = "one two three four five six seven eight nine."
    await call.write(pb.GenerateRequest(text=text))
    await call.write(pb.GenerateRequest(flush=pb.Flush(tag="b")))
    sent = 0
    while sent < begin + 20 * STEP / 2:
        chunk = await call.read()
        sent = chunk.offset_samples + chunk.sample_count
    played = begin + 20 * STEP // 2
    await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(played_samples=played)))
    while not (chunk := await call.read()).HasField("interrupted"):
        pass
    heard = chunk.interrupted
    assert (heard.heard_turn_index, heard.heard_estimated) == (1, True)
    assert abs(len(text[: heard.heard_input_end].split()) - len(text[:20].split())) <= 1
    call.cancel()


async def test_a_turn_with_a_bad_speed_names_its_field(served, details_of):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate("One.", pb.TurnConfig(speed=2.5))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "speed is 2.5; it must be 0.5 to 2"
    assert details_of(caught.value).field == "turn.speed"


async def test_a_model_whose_rate_is_too_low_has_no_other_speed(serve_front, fake):
    pool = fake()
    pool.info = replace(pool.info, output_sample_rate=6000)
    async with serve_front(pool) as served:
        await served.generate(config(pb.AUDIO_ENCODING_PCM_S16LE, 8000, volume_gain_db=3), "One.")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(config(pb.AUDIO_ENCODING_PCM_S16LE, 8000, speed=1.5), "One.")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "the model's output rate is 6000 Hz; other speeds than 1 need a rate of 8000" in str(caught.value.details())
