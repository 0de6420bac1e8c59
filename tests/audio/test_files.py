"""Files as recorders, editors and broken uploads leave them: channels, tracks, tags, levels and missing ends."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest

av = pytest.importorskip("av")

from av.stream import Disposition  # noqa: E402

from voxcpm_grpc.audio import BadAudio  # noqa: E402
from voxcpm_grpc.audio.uploads import Decoded, FlawKind, check_voice, decode  # noqa: E402
from voxcpm_grpc.audio.uploads.voice_check import flaws  # noqa: E402

RATE = 48000
SECONDS = 4
TIMES = np.arange(SECONDS * RATE) / RATE


def speech(frequency: float = 220.0, level: float = 0.3) -> np.ndarray:
    """Sound that comes and goes, float32 [n]."""
    tone = np.sin(2 * np.pi * frequency * TIMES) * (1 + np.sin(2 * np.pi * 3 * TIMES)) / 2
    return (level * tone + 0.001 * np.random.default_rng(1).normal(size=len(TIMES))).astype(np.float32)


SPEECH = speech()
SILENT = np.zeros_like(SPEECH)


def file_of(
    *tracks: np.ndarray,
    form: str,
    codec: str,
    default: int | None = None,
    bit_rate: int = 0,
    options: dict[str, str] | None = None,
) -> bytes:
    """A file with one audio track for each of these, float32 [channels, n]; `default` is the one that is marked."""
    buffer = io.BytesIO()
    layouts = {1: "mono", 2: "stereo", 6: "5.1"}
    with av.open(buffer, "w", format=form, options=options or {}) as container:
        streams = []
        for number, track in enumerate(tracks):
            stream: Any = container.add_stream(codec, rate=RATE)
            stream.layout = layouts[len(track)]
            if bit_rate:
                stream.bit_rate = bit_rate
            stream.disposition = Disposition.default if number == default else Disposition(0)
            streams.append(stream)
        for stream, track in zip(streams, tracks, strict=True):
            context = stream.codec_context
            resampler = av.AudioResampler(
                format=context.format or "flt", layout=stream.layout, rate=RATE, frame_size=context.frame_size or 1024
            )
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(track), "fltp", layout=stream.layout.name)
            frame.sample_rate, frame.pts = RATE, 0
            for part in (*resampler.resample(frame), *resampler.resample(None), None):
                for packet in stream.encode(part):
                    container.mux(packet)
    return buffer.getvalue()


def wav(*channels: np.ndarray) -> bytes:
    """A WAV file of these channels, as float samples."""
    body = np.stack(channels, axis=1).astype("<f4").tobytes()
    fmt = struct.pack("<HHIIHH", 3, len(channels), RATE, RATE * 4 * len(channels), 4 * len(channels), 32)
    chunks = b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def decoded(data: bytes) -> Decoded:
    return decode(data, target_rate=RATE, max_seconds=60, max_bytes=1 << 25)


def kinds(found: Decoded) -> list[FlawKind]:
    return [flaw.kind for flaw in found.flaws]


def level(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples))))


# ---- channels


@pytest.mark.parametrize("form", ["wav", "flac"])
def test_channels_that_cancel_each_other_are_not_mixed(form):
    stereo = np.stack([SPEECH, -SPEECH])
    data = wav(*stereo) if form == "wav" else file_of(stereo, form="flac", codec="flac")
    found = decoded(data)
    np.testing.assert_allclose(found.waveform, SPEECH, atol=1e-4)
    [flaw] = found.flaws
    assert flaw.kind is FlawKind.CHANNELS
    assert "has 2 channels that cancel each other: their mix is" in flaw.text
    assert "dB quieter; channel 1 alone is used" in flaw.text


def test_the_louder_one_of_channels_that_nearly_cancel_is_used():
    found = decoded(wav(-0.8 * SPEECH, SPEECH))
    np.testing.assert_allclose(found.waveform, SPEECH, atol=1e-6)
    assert kinds(found) == [FlawKind.CHANNELS] and "channel 2 alone" in found.flaws[0].text


def test_channels_that_cancel_in_a_part_of_the_recording_are_not_mixed():
    turned = np.where(TIMES < SECONDS / 3, -SPEECH, SPEECH)
    found = decoded(wav(SPEECH, turned))
    np.testing.assert_allclose(found.waveform, SPEECH, atol=1e-6)
    assert kinds(found) == [FlawKind.CHANNELS]


@pytest.mark.parametrize(
    "channels",
    [
        (SPEECH, SPEECH),
        (SPEECH, SILENT),
        (SPEECH, speech(333.0)),
        (SPEECH, np.roll(SPEECH, 5)),
        (SPEECH, 0.1 * SPEECH),
        (SPEECH, -0.1 * SPEECH),
    ],
    ids=["equal", "one silent", "two speakers", "delayed", "crosstalk", "inverted crosstalk"],
)
def test_the_mix_of_other_channels_is_their_mean(channels):
    found = decoded(wav(*channels))
    np.testing.assert_allclose(found.waveform, np.mean(channels, axis=0), atol=1e-6)
    assert found.flaws == ()


def test_surround_sound_with_speech_in_its_centre_keeps_its_level():
    front = 0.001 * speech(500.0)
    found = decoded(file_of(np.stack([front, front, SPEECH, SILENT, front, front]), form="flac", codec="flac"))
    assert level(found.waveform) == pytest.approx(level(SPEECH), rel=0.01)
    assert found.flaws == ()


def test_a_channel_with_samples_that_are_not_finite_is_refused():
    broken = SPEECH.copy()
    broken[100] = np.nan
    for channels in ((SPEECH, broken), (broken,), (broken, -broken)):
        with pytest.raises(BadAudio, match="not finite"):
            decoded(wav(*channels))


def test_no_samples_are_refused_with_any_number_of_channels():
    for count in (1, 2, 6):
        with pytest.raises(BadAudio, match="no samples"):
            decoded(wav(*[np.zeros(0)] * count))


# ---- tracks


@pytest.mark.parametrize(("form", "codec"), [("matroska", "flac"), ("matroska", "libopus"), ("mp4", "aac")])
@pytest.mark.parametrize("default", [0, 1])
def test_the_default_track_is_used(form, codec, default):
    tracks = (speech(220.0)[None], speech(1000.0)[None])
    found = decoded(file_of(*tracks, form=form, codec=codec, default=default))
    spectrum = np.abs(np.fft.rfft(found.waveform))
    strongest = float(spectrum.argmax() * RATE / len(found.waveform))
    assert strongest == pytest.approx((220.0, 1000.0)[default], abs=5)
    assert found.seconds == pytest.approx(SECONDS, abs=0.1)


# ---- ends


FORMATS = [
    ("wav", "pcm_s16le"),
    ("wav", "pcm_s24le"),
    ("wav", "pcm_alaw"),
    ("wav", "adpcm_ms"),
    ("mp3", "mp3"),
    ("flac", "flac"),
    ("webm", "libopus"),
    ("mp4", "aac"),
    ("aiff", "pcm_s16be"),
    ("au", "pcm_s16be"),
    ("caf", "pcm_s16be"),
]


@pytest.mark.parametrize(("form", "codec"), FORMATS)
def test_a_truncated_file_has_a_warning_with_its_share(form, codec):
    options = {"movflags": "frag_keyframe+empty_moov"} if form == "mp4" else {}
    whole = file_of(SPEECH[None], form=form, codec=codec, bit_rate=64_000, options=options)
    assert decoded(whole).flaws == ()
    found = decoded(whole[: len(whole) * 6 // 10])
    [flaw] = found.flaws
    share = round(100 * found.seconds / SECONDS)
    assert flaw.kind is FlawKind.TRUNCATED and 50 <= share <= 62
    assert f"{found.seconds:.1f} s of the 4.0 s that its file declares ({share}%) could be decoded" in flaw.text


@pytest.mark.parametrize("codec", ["libopus", "flac"])
def test_an_ogg_file_without_its_end_has_a_warning(codec):
    whole = file_of(SPEECH[None], form="ogg", codec=codec, bit_rate=64_000, options={"page_duration": "200000"})
    assert decoded(whole).flaws == ()
    for end in (len(whole) * 6 // 10, len(whole) - 1, whole.rindex(b"OggS")):
        [flaw] = decoded(whole[:end]).flaws
        assert flaw.kind is FlawKind.TRUNCATED and "its file has no end after the " in flaw.text


def test_a_file_of_unknown_length_has_no_warning():
    for form, codec, options in (("mp3", "mp3", {"write_xing": "0"}), ("adts", "aac", {})):
        whole = file_of(SPEECH[None], form=form, codec=codec, options=options)
        assert decoded(whole).flaws == decoded(whole[: len(whole) * 6 // 10]).flaws == ()


def test_an_mp4_file_without_its_index_says_so():
    whole = file_of(SPEECH[None], form="mp4", codec="aac")
    with pytest.raises(BadAudio, match=r"cut off: the file ends before its index \(moov\).* upload the whole file"):
        decoded(whole[: len(whole) * 6 // 10])


# ---- tags


def tag(size: int, footer: bool = False) -> bytes:
    """An ID3v2.4 tag with a picture of so many bytes."""
    content = b"APIC" + bytes([0, 0, size >> 7, size & 127, 0, 0]) + b"RIFF" + bytes(size - 4)
    length = [len(content) >> shift & 127 for shift in (21, 14, 7, 0)]
    head = bytes([4, 0, 0x10 if footer else 0, *length])
    return b"ID3" + head + content + (b"3DI" + head if footer else b"")


@pytest.mark.parametrize(
    ("form", "codec"), [("wav", "pcm_s16le"), ("flac", "flac"), ("ogg", "libopus"), ("mp4", "aac"), ("mp3", "mp3")]
)
def test_tags_before_a_file_are_skipped(form, codec):
    whole = file_of(SPEECH[None], form=form, codec=codec)
    expected = decoded(whole).waveform
    for tags in (tag(300), tag(5000, footer=True), tag(200) + tag(300)):
        found = decoded(tags + whole)
        np.testing.assert_array_equal(found.waveform, expected)
        assert found.flaws == ()


@pytest.mark.parametrize("data", [tag(300), tag(300)[:200], b"ID3", b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + bytes(99)])
def test_tags_without_a_file_are_refused(data):
    with pytest.raises(BadAudio):
        decoded(data)


# ---- levels


def opus(samples: np.ndarray, decibels: float) -> bytes:
    """An Ogg file of Opus with this output gain."""
    data = bytearray(file_of(samples[None], form="ogg", codec="libopus", bit_rate=64_000))
    at = data.index(b"OpusHead") + 16
    data[at : at + 2] = struct.pack("<h", round(256 * decibels))
    page_end = 28 + data[27]
    data[22:26] = bytes(4)
    data[22:26] = struct.pack("<I", ogg_checksum(bytes(data[:page_end])))
    return bytes(data)


def ogg_checksum(page: bytes) -> int:
    found = 0
    for byte in page:
        found ^= byte << 24
        for _ in range(8):
            found = (found << 1 ^ (0x04C11DB7 if found & 0x80000000 else 0)) & 0xFFFFFFFF
    return found


def doubts(data: bytes) -> list[str]:
    found = decoded(data)
    check_voice(found.waveform, RATE, found.gain)
    sound = flaws(found.waveform, RATE, found.full_scale, found.gain)
    return [flaw.text for flaw in (*found.flaws, *sound)]


def test_the_gain_of_an_opus_header_explains_a_wrong_level():
    assert doubts(opus(SPEECH, 0.0)) == doubts(opus(SPEECH, -6.0)) == []
    [clipped] = doubts(opus(SPEECH, 24.0))
    assert "is clipped: " in clipped and "changes the level by +24.0 dB (output gain): set that to 0" in clipped
    [quiet] = doubts(opus(SPEECH, -40.0))
    assert "is quiet: " in quiet and "changes the level by -40.0 dB (output gain): set that to 0" in quiet
    with pytest.raises(BadAudio, match=r"is silent: .* changes the level by -70\.0 dB \(output gain\): set that to 0"):
        doubts(opus(SPEECH, -70.0))


def test_a_clipped_or_silent_recording_without_a_gain_has_the_usual_remedy():
    assert "record it again at a lower level" in doubts(wav(np.clip(9 * SPEECH, -1, 1)))[0]
    with pytest.raises(BadAudio, match="send a louder recording"):
        doubts(opus(SPEECH * 1e-5, 6.0))


def test_a_constant_offset_has_a_warning():
    [offset] = doubts(wav(SPEECH + 0.2))
    assert "has a constant offset: its mean is 20% of full scale and the limit is 5%" in offset
    assert doubts(wav(SPEECH + 0.01)) == []
