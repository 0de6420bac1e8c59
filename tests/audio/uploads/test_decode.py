from __future__ import annotations

import io
import struct
import subprocess
import sys
import tracemalloc
import wave

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voxcpm_grpc.audio import AudioFormat, BadAudio, Encoding, wav_bytes
from voxcpm_grpc.audio.uploads import decode
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest

LIMITS = {"max_seconds": 30.0, "max_bytes": 1 << 24}


def wav_file(
    body: bytes, *, tag: int = 1, channels: int = 1, rate: int = 16000, width: int = 2, **lengths: int
) -> bytes:
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * channels * width, channels * width, 8 * width)
    riff, data = lengths.get("riff", 36 + len(body)), lengths.get("data", len(body))
    return struct.pack("<4sI8sI", b"RIFF", riff, b"WAVEfmt ", 16) + fmt + struct.pack("<4sI", b"data", data) + body


def extensible(body: bytes, subformat: int, width: int) -> bytes:
    tail = bytes.fromhex("000000001000800000aa00389b71")
    fmt = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, 16000, 16000 * width, width, 8 * width, 22, 8 * width, 4, subformat)
    chunks = b"WAVEfmt " + struct.pack("<I", 40) + fmt + tail + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def waveform(data: bytes, rate: int = 16000, format_hint: AudioFormat | None = None) -> np.ndarray:
    return decode(data, target_rate=rate, **LIMITS, format_hint=format_hint).waveform


def refused(data: bytes, message: str, **changes: object) -> None:
    with pytest.raises(BadAudio, match=message) as caught:
        decode(data, **{"target_rate": 16000, **LIMITS, **changes})  # type: ignore[arg-type]
    assert caught.value.field == "audio"


# -- WAV and raw PCM: exact, with numpy only


def test_16_bit_samples_are_divided_by_exactly_32768():
    ints = np.array([-32768, -1, 0, 1, 12345, 32767], "<i2")
    expected = ints.astype(np.float32) / 32768
    np.testing.assert_array_equal(waveform(wav_file(ints.tobytes())), expected)
    np.testing.assert_array_equal(
        waveform(ints.tobytes(), format_hint=AudioFormat(Encoding.PCM_S16LE, 16000)), expected
    )


@pytest.mark.parametrize(
    ("body", "tag", "width"),
    [
        (bytes([0, 64, 128, 192]), 1, 1),
        (np.array([-32768, -16384, 0, 16384], "<i2").tobytes(), 1, 2),
        (b"\x00\x00\x80" + b"\x00\x00\xc0" + b"\x00\x00\x00" + b"\x00\x00\x40", 1, 3),
        ((np.array([-2, -1, 0, 1], "<i4") * 2**30).astype("<i4").tobytes(), 1, 4),
        (np.array([-1, -0.5, 0, 0.5], "<f4").tobytes(), 3, 4),
        (np.array([-1, -0.5, 0, 0.5], "<f8").tobytes(), 3, 8),
    ],
)
def test_every_pcm_width_is_decoded_plain_and_extensible(body, tag, width):
    expected = np.array([-1, -0.5, 0, 0.5], np.float32)
    np.testing.assert_array_equal(waveform(wav_file(body, tag=tag, width=width)), expected)
    np.testing.assert_array_equal(waveform(extensible(body, tag, width)), expected)


def test_channels_are_averaged():
    frames = np.array([[0.5, -0.25, 0.0], [1.0, 0.25, 0.25]], "<f4")
    np.testing.assert_allclose(
        waveform(wav_file(frames.tobytes(), tag=3, channels=3, width=4)), [1 / 12, 0.5], atol=1e-7
    )


@pytest.mark.parametrize(
    "lengths", [{"riff": 2**32 - 1, "data": 2**32 - 1}, {"riff": 0, "data": 0}, {"riff": 36, "data": 0}]
)
def test_open_lengths_stand_for_the_rest_of_the_file(lengths):
    ints = np.arange(100, dtype="<i2")
    np.testing.assert_array_equal(waveform(wav_file(ints.tobytes(), **lengths)) * 32768, ints)


def test_a_closed_file_without_samples_is_empty_even_with_chunks_after_it():
    listed = b"LIST" + struct.pack("<I", 100) + bytes(100)
    refused(wav_file(b"", riff=36 + len(listed)) + listed, "no samples")
    refused(wav_file(b""), "no samples")


def test_a_truncated_wav_is_decoded_up_to_its_end():
    whole = wav_file(np.arange(100, dtype="<i2").tobytes())
    np.testing.assert_array_equal(waveform(whole[:-3]) * 32768, np.arange(98))
    refused(whole[:40], "no data chunk")
    refused(whole[:44], "no samples")


def test_a_wav_of_which_little_is_left_is_refused_with_the_figures():
    whole = wav_file(bytes(2 * 16000))
    assert decode(whole[: 44 + 8000], target_rate=16000, **LIMITS).seconds == 0.25
    refused(whole[: 44 + 7998], r"0\.25 s of the 1\.00 s that the file declares could be decoded, and at least 25%")
    for length in (2**31 - 1, 2**31 - 44, 2**32 - 1, 2**32 - 100):  # of programs that stream
        assert len(waveform(wav_file(bytes(3200), riff=length, data=length))) == 1600


def test_chunks_before_the_samples_are_skipped():
    plain = wav_file(np.arange(10, dtype="<i2").tobytes())
    padded = plain[:36] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + plain[36:]
    np.testing.assert_array_equal(waveform(padded) * 32768, np.arange(10))


def test_wav_and_raw_pcm_need_neither_pyav_nor_soxr():
    program = """
import sys
sys.modules["av"] = sys.modules["soxr"] = None  # importing them fails
from voxcpm_grpc.audio import AudioFormat, Encoding, wav_bytes
from voxcpm_grpc.audio.uploads import decode
from voxcpm_grpc.errors import FailedPrecondition
import numpy as np
limits = dict(max_seconds=1, max_bytes=10**6)
wav = wav_bytes(np.zeros(160, np.float32), 16000)
assert len(decode(wav, target_rate=16000, **limits).waveform) == 160
hint = AudioFormat(Encoding.PCM_S16LE, 16000)
assert len(decode(bytes(320), format_hint=hint, target_rate=16000, **limits).waveform) == 160
for data, rate, package in [(b"fLaC" + bytes(100), 16000, "PyAV"), (wav, 24000, "soxr")]:
    try:
        decode(data, target_rate=rate, **limits)
    except FailedPrecondition as error:
        assert package in error.message and "voxcpm-grpc[server]" in error.message, error.message
    else:
        raise AssertionError(package)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_importing_the_package_loads_no_codecs():
    program = "import sys, voxcpm_grpc.audio; assert not {'av', 'soxr', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


# -- all other formats, with PyAV

FILES = {
    "mp3": ("mp3", "libmp3lame", 44100),
    "flac": ("flac", "flac", 24000),
    "opus": ("ogg", "libopus", 48000),
    "webm": ("webm", "libopus", 48000),
    "m4a": ("ipod", "aac", 44100),
    "aac": ("adts", "aac", 22050),
    "mulaw": ("wav", "pcm_mulaw", 8000),
    "wav24": ("wav", "pcm_s24le", 48000),
    "aiff": ("aiff", "pcm_s16be", 32000),
}


@pytest.fixture(scope="module")
def files(make_file, make_sine):
    return {name: make_file(*spec, make_sine(1.0, spec[2])[None]) for name, spec in FILES.items()}


@pytest.mark.parametrize("name", FILES)
def test_the_tone_is_decoded_from_every_container_and_codec(files, name, make_sine):
    decoded = decode(files[name], target_rate=16000, **LIMITS)
    assert decoded.source_rate == FILES[name][2]
    assert decoded.seconds == pytest.approx(1.0, abs=0.1)  # some codecs pad
    assert decoded.waveform.dtype == np.float32
    middle = decoded.waveform[4000:12000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * 16000 / len(middle) == pytest.approx(440, abs=2)
    assert np.sqrt(2 * np.mean(middle**2)) == pytest.approx(0.5, rel=0.05)


def test_stereo_flac_is_lossless_and_averaged(make_file, make_sine):
    left, right = make_sine(0.5, 16000), make_sine(0.5, 16000, 700.0)
    mono = waveform(make_file("flac", "flac", 16000, np.stack([left, right])))
    np.testing.assert_allclose(mono, (left + right) / 2, atol=2 / 32768)


def test_six_channels_in_wav_equal_those_in_flac(make_file, make_sine):
    channels = np.stack([make_sine(0.2, 48000, 200.0 * (1 + i)) for i in range(6)])
    flac, plain = (make_file(kind, codec, 48000, channels) for kind, codec in [("flac", "flac"), ("wav", "pcm_s16le")])
    np.testing.assert_allclose(waveform(flac), waveform(plain), atol=2e-7)


# -- invalid audio


def test_errors_name_the_limit_and_the_value():
    refused(b"", "0 bytes")
    refused(bytes(101), "101 bytes and the limit is 100", max_bytes=100)
    long = wav_bytes(np.zeros(16000 * 3, np.float32), 16000)
    refused(long, r"3\.0 s .*limit is 2 s", max_seconds=2.0)
    refused(bytes(3), "3 bytes", format_hint=AudioFormat(Encoding.PCM_S16LE, 16000))
    refused(bytes(64000), r"2\.0 s", format_hint=AudioFormat(Encoding.PCM_S16LE, 16000), max_seconds=1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_samples_that_are_not_finite_are_refused(bad):
    refused(wav_file(np.array([0, bad, 0], "<f8").tobytes(), tag=3, width=8), "not finite")


def test_float_samples_far_above_full_scale_are_refused():
    refused(wav_file(np.array([0, 20000], "<f4").tobytes(), tag=3, width=4), "2e[+]04")


@pytest.mark.parametrize(("rate", "channels"), [(0, 1), (100, 1), (4_000_000_000, 1), (16000, 0), (16000, 33)])
def test_impossible_rates_and_channel_counts_are_refused(rate, channels):
    data = wav_file(bytes(6600), channels=channels, rate=rate) if rate < 2**30 else wav_file(bytes(6600))
    if rate >= 2**30:
        data = data[:24] + struct.pack("<I", rate) + data[28:]
    refused(data, "rate|channels")


def test_a_file_without_an_audio_stream_is_refused(make_file):
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        stream = output.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame(32, 32, "yuv420p")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    refused(buffer.getvalue(), "no audio stream")


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
        b"hello",
        bytes(10000),
    ],
)
def test_playlists_and_random_bytes_are_refused(data):
    refused(data, "could not be decoded")


def test_decoding_stops_at_the_limit(make_file):
    bomb = make_file("flac", "flac", 8000, np.zeros((1, 8000 * 3600), np.float32))
    assert len(bomb) < 1_000_000  # an hour: 115 MB as float32
    tracemalloc.start()
    try:
        refused(bomb, r"5\.\d s or more and the limit is 5 s", max_seconds=5.0)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_rate_that_changes_within_a_file_is_refused(make_file, make_sine):
    chained = b"".join(make_file("mp3", "libmp3lame", rate, make_sine(1.0, rate)[None]) for rate in (44100, 32000))
    refused(chained, "changes from (44100 to 32000|32000 to 44100)")


def test_errors_describe_the_audio_only(files):
    for data in (b"fLaC" + bytes(50), files["m4a"][:200], files["opus"][:40]):
        with pytest.raises(BadAudio) as caught:
            waveform(data)
        assert "Errno" not in caught.value.message and "/" not in caught.value.message


# -- any bytes give audio or InvalidRequest


def decodes_or_refuses(data: bytes, **hint: AudioFormat) -> None:
    try:
        decoded = decode(data, target_rate=16000, max_seconds=5.0, max_bytes=1 << 20, **hint)
    except InvalidRequest as error:
        assert not isinstance(error, FailedPrecondition)
    else:
        assert len(decoded.waveform) > 0 and np.isfinite(decoded.waveform).all()


@settings(max_examples=150)
@given(
    data=st.binary(max_size=400),
    magic=st.sampled_from([b"", b"RIFF\0\0\0\0WAVE", b"fLaC", b"OggS", b"ID3", b"\xff\xfb"]),
)
def test_arbitrary_bytes_are_decoded_or_refused(data, magic):
    decodes_or_refuses(magic + data)
    decodes_or_refuses(data, format_hint=AudioFormat(Encoding.PCM_F32LE, 8000))


@settings(
    max_examples=150, suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(sorted(FILES)), data=st.data())
def test_truncated_and_damaged_files_are_decoded_or_refused(files, name, data):
    valid = bytearray(files[name])
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, min(len(valid), 2000) - 1))
        valid[at] = data.draw(st.integers(0, 255))
    decodes_or_refuses(bytes(valid[: data.draw(st.integers(0, len(valid)))]))


@pytest.mark.parametrize("name", sorted(set(FILES) - {"m4a"}))  # an m4a file has its index at the end
def test_half_a_file_gives_half_the_audio(name, make_file, make_sine):
    whole = make_file(*FILES[name], make_sine(6.0, FILES[name][2])[None])
    assert 2 < decode(whole[: len(whole) // 2], target_rate=16000, **LIMITS).seconds < 4


def test_the_standard_library_reads_a_written_file():
    with wave.open(io.BytesIO(wav_bytes(np.zeros(10, np.float32), 24000))) as reader:
        assert (reader.getnframes(), reader.getframerate(), reader.getnchannels()) == (10, 24000, 1)
