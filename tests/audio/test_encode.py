from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxcpm_grpc.audio import AudioFormat, Encoded, Encoding, OutputPipeline, WavWriter, encoder, resample, wav_bytes
from voxcpm_grpc.audio.uploads import decode
from voxcpm_grpc.audio.wav import header
from voxcpm_grpc.errors import Internal, InvalidRequest

LIMITS = {"target_rate": 16000, "max_seconds": 30.0, "max_bytes": 1 << 24}
NOISE = np.random.default_rng(11).uniform(-0.9, 0.9, 50_000).astype(np.float32)


class Pipe(io.RawIOBase):
    """A file that cannot seek."""

    def __init__(self) -> None:
        self.received = b""

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.received += bytes(data)
        return len(data)


@pytest.mark.parametrize("rate", [0, 7999, 47999, 384000, -8000])
def test_an_error_about_a_rate_names_it_and_the_valid_ones(rate):
    with pytest.raises(InvalidRequest, match=f"{rate}; for wav it must be one of 8000, .*192000") as caught:
        AudioFormat(Encoding.WAV, rate)
    assert caught.value.field == "sample_rate"


def test_an_unknown_encoding_is_refused():
    with pytest.raises(InvalidRequest, match="tape; it must be one of pcm_s16le"):
        AudioFormat("tape", 16000)  # type: ignore[arg-type]


def test_every_16_bit_value_is_converted_exactly():
    ints = np.arange(-32768, 32768).astype("<i2")
    hint = AudioFormat(Encoding.PCM_S16LE, 16000)
    samples = decode(ints.tobytes(), format_hint=hint, **LIMITS).waveform
    assert encoder(hint).push(samples).data == ints.tobytes()


def test_16_bit_samples_are_rounded_half_to_even_and_clipped():
    samples = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 40000, -40000], np.float32) / 32768
    encoded = encoder(AudioFormat(Encoding.PCM_S16LE, 16000)).push(samples).data
    assert np.frombuffer(encoded, "<i2").tolist() == [0, 2, 2, 0, -2, 32767, -32768]


def test_floats_are_not_changed():
    stream = encoder(AudioFormat(Encoding.PCM_F32LE, 16000))
    assert stream.push(NOISE * 3).data + stream.flush().data == (NOISE * 3).astype("<f4").tobytes()


STREAMED = (0x7FFFF000 + 36, 0x7FFFF000)  # lengths of file and audio that players take as unknown


def lengths(header: bytes) -> tuple[int, int]:
    (riff,), (data,) = struct.unpack_from("<I", header, 4), struct.unpack_from("<I", header, 40)
    return riff, data


def test_wav_sends_one_open_header_with_the_first_audio():
    stream = encoder(AudioFormat(Encoding.WAV, 24000))
    assert stream.push(NOISE[:0]) == Encoded(b"", 0)
    first = stream.push(NOISE[:100]).data
    assert first[:4] == b"RIFF" and lengths(first) == STREAMED and len(first) == 44 + 200
    rest = stream.push(NOISE[100:300]).data + stream.flush().data
    assert len(rest) == 400
    decoded = decode(first + rest, **{**LIMITS, "target_rate": 24000})
    np.testing.assert_allclose(decoded.waveform, NOISE[:300], atol=0.5 / 32768)


def test_wav_without_audio_is_a_valid_file():
    assert len(encoder(AudioFormat(Encoding.WAV, 24000)).flush().data) == 44


@pytest.mark.parametrize(("encoding", "width"), [(Encoding.PCM_S16LE, 2), (Encoding.PCM_F32LE, 4)])
def test_the_writer_sets_the_lengths_on_close(tmp_path, encoding, width):
    pcm = encoder(AudioFormat(encoding, 16000)).push(NOISE).data
    path = tmp_path / "out.wav"
    with path.open("wb") as file, WavWriter(file, 16000, encoding) as writer:
        for at in range(0, len(pcm), 4000):
            writer.write(pcm[at : at + 4000])
    data = path.read_bytes()
    assert lengths(data) == (len(data) - 8, len(pcm))
    np.testing.assert_allclose(decode(data, **LIMITS).waveform, NOISE, atol=0.51 / 32768)
    if width == 2:
        with wave.open(str(path)) as reader:
            assert (reader.getnframes(), reader.getframerate(), reader.getsampwidth()) == (len(NOISE), 16000, 2)
        assert data == wav_bytes(NOISE, 16000)


def test_a_written_file_is_valid_before_close_and_on_a_pipe():
    pipe = Pipe()
    with WavWriter(pipe, 16000) as writer:  # type: ignore[arg-type]
        writer.write(bytes(320))
        assert lengths(pipe.received) == STREAMED
        assert len(decode(pipe.received, **LIMITS).waveform) == 160
    assert len(decode(pipe.received, **LIMITS).waveform) == 160


def test_audio_longer_than_the_header_can_say_is_read_to_its_end():
    assert lengths(header(16000, data_bytes=5_000_000_000)) == (0xFFFFFFFF, 0xFFFFFFFF)
    assert len(decode(header(16000, data_bytes=5_000_000_000) + bytes(320), **LIMITS).waveform) == 160


def run(pipeline: OutputPipeline, parts: list[np.ndarray]) -> tuple[bytes, int]:
    results = [*(pipeline.push(part) for part in parts), pipeline.flush()]
    return b"".join(part.data for part in results), sum(part.samples for part in results)


@settings(max_examples=30)
@given(
    cuts=st.lists(st.integers(0, 50_000), max_size=10),
    rate=st.sampled_from([8000, 16000, 22050, 44100, 48000]),
    encoding=st.sampled_from([Encoding.PCM_S16LE, Encoding.PCM_F32LE, Encoding.WAV]),
)
def test_the_pipeline_counts_its_samples(cuts, rate, encoding):
    parts = np.split(NOISE, sorted(cuts))
    encoded, samples = run(OutputPipeline(48000, AudioFormat(encoding, rate)), parts)
    assert abs(samples - len(NOISE) * rate / 48000) <= 0.5
    width = 4 if encoding == Encoding.PCM_F32LE else 2
    assert len(encoded) == samples * width + 44 * (encoding == Encoding.WAV)
    if encoding == Encoding.PCM_F32LE:
        np.testing.assert_allclose(np.frombuffer(encoded, "<f4"), resample(NOISE, 48000, rate)[:samples], atol=1e-6)


def test_turns_are_complete_and_share_one_stream():
    pipeline = OutputPipeline(48000, AudioFormat(Encoding.WAV, 16000))
    first = [pipeline.push(NOISE[:9000]), pipeline.end_turn()]
    second = [pipeline.push(NOISE[:9000]), pipeline.end_turn()]
    assert sum(part.samples for part in first) == sum(part.samples for part in second) == 3000
    assert b"".join(part.data for part in first)[44:] == b"".join(part.data for part in second)
    assert pipeline.flush() == Encoded(b"", 0)


def test_no_audio_of_a_discarded_turn_follows():
    pipeline = OutputPipeline(48000, AudioFormat(Encoding.PCM_F32LE, 16000))
    pipeline.push(NOISE[:20000])
    pipeline.discard()
    encoded, samples = run(pipeline, [np.zeros(9000, np.float32)])
    assert samples == 3000 and not np.frombuffer(encoded, "<f4").any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_not_sent(bad):
    pipeline = OutputPipeline(48000, AudioFormat(Encoding.PCM_S16LE, 48000))
    with pytest.raises(Internal):
        pipeline.push(np.array([0, bad], np.float32))
