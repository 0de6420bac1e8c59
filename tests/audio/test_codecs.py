"""Compressed audio, decoded by FFmpeg's libraries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.clients.decoding import decoded

from voxcpm_grpc.audio import AudioFormat, Encoded, Encoding, OutputPipeline, resample
from voxcpm_grpc.audio.formats import BITRATES, COMPRESSION_LEVELS, RATES
from voxcpm_grpc.audio.uploads import decode
from voxcpm_grpc.errors import InvalidRequest

NATIVE = 48000
STEP = 7680  # samples of a step at the native rate
COMPRESSED = (Encoding.MULAW, Encoding.ALAW, Encoding.MP3, Encoding.OGG_OPUS, Encoding.FLAC)
FORMATS = [AudioFormat(encoding, rate) for encoding in COMPRESSED for rate in RATES[encoding] if rate <= NATIVE]
LEVEL = {Encoding.MP3: 0.95}  # LAME lowers the level, so that its output does not clip
LEAST_DB = {  # signal over error
    Encoding.MULAW: 35,
    Encoding.ALAW: 35,
    Encoding.MP3: 30,
    Encoding.OGG_OPUS: 30,
    Encoding.FLAC: 75,
}
SETTLED = 0.05  # seconds after the start of a signal from which it is compared
SETTLED_SAMPLES = 1600  # after an interrupt, until overlapping frames of the old signal have ended


def chirp(seconds: float, low: float, high: float) -> np.ndarray:
    """A tone that rises and swells: float32 [n] at the native rate."""
    time = np.arange(int(seconds * NATIVE)) / NATIVE
    tone = np.sin(2 * np.pi * (low + (high - low) / seconds / 2 * time) * time)
    return (0.4 * tone * np.sin(np.pi * 3 * time) ** 2).astype(np.float32)


def steps(signal: np.ndarray) -> list[np.ndarray]:
    return [signal[at : at + STEP] for at in range(0, len(signal), STEP)]


def stream(format: AudioFormat, mode: str, first: np.ndarray, second: np.ndarray) -> tuple[list[Encoded], int, int]:
    """The parts of a stream of two turns, the position of the second turn, and the codec's delay."""
    pipeline = OutputPipeline(NATIVE, format)
    parts = [pipeline.push(step) for step in steps(first)]
    if mode == "resumed":
        parts.append(pipeline.end_turn())
    elif mode == "interrupted":
        pipeline.discard()
    start = pipeline.position
    if mode != "plain":
        parts += [pipeline.push(step) for step in steps(second)]
    return [*parts, pipeline.flush()], start, pipeline.delay


def distance_db(reference: np.ndarray, samples: np.ndarray) -> float:
    """Signal over error."""
    error = samples - reference
    return float(10 * np.log10(np.dot(reference, reference) / (np.dot(error, error) + 1e-12)))


@pytest.mark.parametrize("mode", ["plain", "resumed", "interrupted"])
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: f"{format.encoding}-{format.sample_rate}")
def test_decoded_audio_is_the_signal_with_the_stated_lengths(format, mode):
    first, second = chirp(1.03, 150, 1500), chirp(0.71, 1200, 300)
    parts, start, delay = stream(format, mode, first, second)
    total = sum(part.samples for part in parts)
    signal, rate = decoded(b"".join(part.data for part in parts), format)
    scale = rate // format.sample_rate  # Opus is always decoded at 48 kHz
    assert len(signal) == (delay + total + parts[-1].padding) * scale
    assert (delay > 0) == (format.encoding is Encoding.MP3)
    turns = [(0, first)] if mode == "plain" else [(0, first), (start, second)]
    for at, speech in turns:
        reference = resample(speech, NATIVE, rate)[: int(0.6 * rate)] * LEVEL.get(format.encoding, 1)
        begin, skip = (at + delay) * scale, int(SETTLED * rate)
        found = signal[begin : begin + len(reference)]
        assert distance_db(reference[skip:], found[skip:]) > LEAST_DB[format.encoding]


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: f"{format.encoding}-{format.sample_rate}")
def test_a_turn_is_complete_when_it_ends(format):
    """The decoded parts up to the end of a turn have all of its speech."""
    first, second = chirp(1.03, 150, 1500), chirp(0.71, 1200, 300)
    pipeline = OutputPipeline(NATIVE, format)
    parts = [*map(pipeline.push, steps(first)), pipeline.end_turn()]
    length = round(len(first) * format.sample_rate / NATIVE)
    assert length <= sum(part.samples for part in parts) <= length + 0.1 * format.sample_rate
    after = [*map(pipeline.push, steps(second)), pipeline.end_turn(), pipeline.flush()]
    whole, rate = decoded(b"".join(part.data for part in parts + after), format)
    alone, _ = decoded(b"".join(part.data for part in parts), format, truncated=True)
    count = (sum(part.samples for part in parts) + pipeline.delay) * rate // format.sample_rate
    assert len(alone) >= count - rate // 1000  # the decoder may hold its last millisecond
    np.testing.assert_allclose(alone[: count - rate // 1000], whole[: count - rate // 1000], atol=1e-3)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: f"{format.encoding}-{format.sample_rate}")
def test_no_audio_of_a_discarded_turn_follows(format):
    loud = chirp(0.5, 400, 500)
    pipeline = OutputPipeline(NATIVE, format)
    parts = [pipeline.push(step) for step in steps(loud)]
    sent = sum(part.samples for part in parts)
    pipeline.discard()
    assert pipeline.position >= sent
    parts += [pipeline.push(np.zeros(NATIVE // 2, np.float32)), pipeline.flush()]
    signal, rate = decoded(b"".join(part.data for part in parts), format)
    after = signal[
        (sent + pipeline.delay) * rate // format.sample_rate + SETTLED_SAMPLES * rate // format.sample_rate :
    ]
    assert len(after) > 0.25 * rate and np.abs(after).max() < 0.01


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: f"{format.encoding}-{format.sample_rate}")
def test_the_first_bytes_come_within_a_step_of_the_first_audio(format):
    pipeline = OutputPipeline(NATIVE, format)
    parts = [pipeline.push(step) for step in steps(chirp(0.33, 200, 300))]
    assert parts[0].data or parts[1].data
    assert parts[0].samples or parts[1].samples
    late = STEP * 2 * format.sample_rate / NATIVE - parts[0].samples - parts[1].samples
    assert late < 0.33 * format.sample_rate


@pytest.mark.parametrize("encoding", COMPRESSED)
def test_an_empty_stream_is_decodable_or_empty(encoding):
    pipeline = OutputPipeline(NATIVE, AudioFormat(encoding, RATES[encoding][0]))
    last = pipeline.flush()
    assert last.samples == 0
    assert (last.data[:4] in (b"OggS", b"fLaC")) == (encoding in (Encoding.OGG_OPUS, Encoding.FLAC))


def test_a_higher_bitrate_and_level_have_an_effect():
    signal = chirp(1.0, 200, 3000) + np.random.default_rng(1).normal(0, 0.02, NATIVE).astype(np.float32)

    def size(encoding: Encoding, **options: int) -> int:
        pipeline = OutputPipeline(NATIVE, AudioFormat(encoding, 48000, **options))
        return len(pipeline.push(signal).data + pipeline.flush().data)

    for encoding in BITRATES:
        assert 1.5 * size(encoding, bitrate=48_000) < size(encoding, bitrate=160_000)
    assert size(Encoding.FLAC, compression_level=0) > size(Encoding.FLAC, compression_level=8)
    for encoding, level in COMPRESSION_LEVELS.items():
        assert size(encoding, compression_level=level)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"encoding": Encoding.OGG_OPUS, "sample_rate": 44100}, "sample_rate"),
        ({"encoding": Encoding.MULAW, "sample_rate": 48000}, "sample_rate"),
        ({"encoding": Encoding.MP3, "sample_rate": 96000}, "sample_rate"),
        ({"encoding": Encoding.MP3, "sample_rate": 48000, "bitrate": 1000}, "bitrate"),
        ({"encoding": Encoding.FLAC, "sample_rate": 48000, "bitrate": 64000}, "bitrate"),
        ({"encoding": Encoding.PCM_S16LE, "sample_rate": 48000, "compression_level": 1}, "compression_level"),
        ({"encoding": Encoding.OGG_OPUS, "sample_rate": 48000, "compression_level": 11}, "compression_level"),
    ],
)
def test_values_that_an_encoding_does_not_have_are_refused(options, field):
    with pytest.raises(InvalidRequest) as raised:
        AudioFormat(**options)
    assert raised.value.field == field


@pytest.mark.parametrize("encoding", [Encoding.MULAW, Encoding.ALAW])
def test_g711_recordings_are_read(encoding):
    format = AudioFormat(encoding, 8000)
    signal = chirp(1.0, 200, 1000)
    pipeline = OutputPipeline(NATIVE, format)
    data = pipeline.push(signal).data + pipeline.flush().data
    read = decode(data, format_hint=format, target_rate=8000, max_seconds=10, max_bytes=1 << 20)
    assert distance_db(resample(signal, NATIVE, 8000), read.waveform) > LEAST_DB[encoding]


def test_parts_of_any_size_give_the_same_audio():
    signal, sizes = chirp(0.8, 200, 900), itertools.cycle([1, 700, 0, 5000, 33])
    pipeline = OutputPipeline(NATIVE, AudioFormat(Encoding.FLAC, 24000))
    parts, at = [], 0
    while at < len(signal):
        size = next(sizes)
        parts.append(pipeline.push(signal[at : at + size]))
        at += size
    data = b"".join(part.data for part in [*parts, pipeline.flush()])
    other = OutputPipeline(NATIVE, AudioFormat(Encoding.FLAC, 24000))
    whole = other.push(signal).data + other.flush().data
    np.testing.assert_array_equal(
        decoded(data, AudioFormat(Encoding.FLAC, 24000))[0], decoded(whole, AudioFormat(Encoding.FLAC, 24000))[0]
    )
