"""Streams in compressed formats, decoded by FFmpeg's libraries."""

from __future__ import annotations

import sys
from itertools import pairwise

import grpc
import numpy as np
import pytest
from support.clients.decoding import decoded
from support.clients.grpc_types import EOF

from voxcpm_grpc.audio import AudioFormat, Encoding
from voxcpm_grpc.v1 import tts_pb2 as pb

RATE = 48000
TEXT = "First one here. And a second one. "
FORMATS = [
    (pb.AUDIO_ENCODING_MULAW, Encoding.MULAW, 8000),
    (pb.AUDIO_ENCODING_ALAW, Encoding.ALAW, 16000),
    (pb.AUDIO_ENCODING_MP3, Encoding.MP3, 24000),
    (pb.AUDIO_ENCODING_OGG_OPUS, Encoding.OGG_OPUS, 48000),
    (pb.AUDIO_ENCODING_FLAC, Encoding.FLAC, 44100),
]
formats = pytest.mark.parametrize(
    ("number", "encoding", "rate"), FORMATS, ids=[str(encoding) for _, encoding, _ in FORMATS]
)


def config(number: pb.AudioEncoding, rate: int, **fields: int) -> pb.GenerateConfig:
    format = pb.AudioFormat(encoding=number, sample_rate_hz=rate, **fields)
    return pb.GenerateConfig(output=format, turn=pb.TurnConfig(sampling=pb.Sampling(seed=7)))


def bytes_of(chunks: list[pb.AudioChunk]) -> bytes:
    return b"".join(chunk.audio for chunk in chunks)


@formats
async def test_decoded_audio_has_the_length_that_header_and_summary_state(served, number, encoding, rate):
    pcm = await served.generate(config(pb.AUDIO_ENCODING_PCM_S16LE, rate), TEXT)
    chunks = await served.generate(config(number, rate), TEXT, pb.Flush(tag="a", end_turn=True), TEXT)
    header, summary = chunks[0].header, chunks[-1].summary
    assert (header.format.encoding, header.format.sample_rate_hz) == (number, rate)
    samples, decoded_rate = decoded(bytes_of(chunks), AudioFormat(encoding, rate))
    stated = header.codec_delay_samples + summary.total_samples + summary.codec_padding_samples
    assert len(samples) == stated * decoded_rate // rate
    assert summary.total_samples == sum(chunk.sample_count for chunk in chunks)
    assert summary.total_bytes == len(bytes_of(chunks))
    assert summary.total_samples >= 2 * pcm[-1].summary.total_samples
    for before, after in pairwise(chunks):
        assert after.offset_samples == before.offset_samples + before.sample_count
    (flushed,) = [chunk for chunk in chunks if chunk.HasField("flush_done")]
    assert flushed.flush_done.at_samples == flushed.offset_samples + flushed.sample_count


@formats
async def test_segments_have_their_places_in_the_decoded_audio(served, number, encoding, rate):
    """Speech between two events is the same as in a PCM stream."""
    pcm = await served.generate(config(pb.AUDIO_ENCODING_PCM_S16LE, rate), TEXT)
    chunks = await served.generate(config(number, rate), TEXT)
    reference = np.frombuffer(bytes_of(pcm), "<i2") / np.float32(32768)
    samples, decoded_rate = decoded(bytes_of(chunks), AudioFormat(encoding, rate))
    samples = samples[:: decoded_rate // rate][chunks[0].header.codec_delay_samples :]

    def spans(chunks: list[pb.AudioChunk]) -> list[tuple[int, int]]:
        events = [event for chunk in chunks for event in chunk.segment_events]
        starts = [event.at_samples for event in events if event.kind == pb.SEGMENT_EVENT_KIND_STARTED]
        return list(
            zip(starts, [e.at_samples for e in events if e.kind == pb.SEGMENT_EVENT_KIND_FINISHED], strict=True)
        )

    assert spans(chunks) == spans(pcm) and len(spans(pcm)) == 2
    for start, end in spans(chunks):
        one, other = reference[start:end], samples[start:end]
        assert np.corrcoef(one, other)[0, 1] > 0.75  # of noise, which a shift by a sample would destroy


@formats
async def test_a_stream_goes_on_after_an_interrupt(serve_front, fake, number, encoding, rate):
    async with serve_front(fake(hold_after=30)) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config(number, rate)))
        await call.write(pb.GenerateRequest(text="A sentence that is long and goes on and on and on. "))
        chunks = []
        while sum(chunk.sample_count for chunk in chunks) < 0.3 * rate:
            chunks.append(await call.read())
        await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(tag="stop")))
        while not chunks[-1].HasField("interrupted"):
            chunks.append(await call.read())
        answer = chunks[-1]
        assert answer.interrupted.sent_samples == answer.offset_samples and not answer.sample_count
        served.pool.release()
        await call.write(pb.GenerateRequest(text="Next turn."))
        await call.done_writing()
        while (chunk := await call.read()) is not EOF:
            chunks.append(chunk)
        samples, decoded_rate = decoded(bytes_of(chunks), AudioFormat(encoding, rate))
        summary, delay = chunks[-1].summary, chunks[0].header.codec_delay_samples
        assert len(samples) == (delay + summary.total_samples + summary.codec_padding_samples) * decoded_rate // rate
        (started,) = [e for c in chunks for e in c.segment_events if e.turn_index == 1 and e.at_samples and e.kind == 1]
        assert started.at_samples >= answer.interrupted.sent_samples
        await served.idle()


@pytest.mark.parametrize(
    ("number", "rate", "options", "field"),
    [
        (pb.AUDIO_ENCODING_OGG_OPUS, 44100, {}, "config.output.sample_rate_hz"),
        (pb.AUDIO_ENCODING_MULAW, 48000, {}, "config.output.sample_rate_hz"),
        (pb.AUDIO_ENCODING_FLAC, 48000, {"bitrate": 64000}, "config.output.bitrate"),
        (pb.AUDIO_ENCODING_MP3, 48000, {"compression_level": 10}, "config.output.compression_level"),
    ],
)
async def test_values_that_a_format_does_not_have_are_refused(served, number, rate, options, field):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await served.generate(config(number, rate, **options), TEXT)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field.rpartition(".")[2].removesuffix("_hz") in (raised.value.details() or "")


async def test_the_rate_of_a_format_is_the_nearest_to_the_models(served):
    found = {}
    for number, encoding, _ in FORMATS:
        chunks = await served.generate(config(number, 0), TEXT)
        found[encoding] = chunks[0].header.format.sample_rate_hz
    assert found == {"mulaw": 8000, "alaw": 8000, "mp3": RATE, "ogg_opus": RATE, "flac": RATE}


async def test_the_model_info_lists_the_formats(served):
    info = await served.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert {number for number, _, _ in FORMATS} <= set(info.output_encodings)


async def test_the_model_info_of_a_server_without_pyav_lists_the_formats_that_it_has(served, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    info = await served.stub.GetModelInfo(pb.GetModelInfoRequest())
    listed = {pb.AudioEncoding.Name(number) for number in info.output_encodings}
    assert listed == {f"AUDIO_ENCODING_{name}" for name in ("PCM_S16LE", "PCM_F32LE", "WAV")}
