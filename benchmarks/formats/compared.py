"""Decoded streams, compared with the same speech as PCM."""

from __future__ import annotations

import io

import numpy as np

from benchmarks.formats.calls import Stream
from voxcpm_grpc.audio import AudioFormat, Encoding

EDGE_SECONDS = 0.05  # not compared at both ends of a turn, where frames overlap the one before


def decoded(data: bytes, format: AudioFormat) -> tuple[np.ndarray, int]:
    """All samples that FFmpeg's decoder makes of a stream, float32 [n], and their rate."""
    import av

    match format.encoding:
        case Encoding.PCM_F32LE:
            return np.frombuffer(data, "<f4"), format.sample_rate
        case Encoding.PCM_S16LE:
            return np.frombuffer(data, "<i2") / np.float32(32768), format.sample_rate
        case Encoding.MULAW | Encoding.ALAW as encoding:
            name, options = str(encoding), {"sample_rate": str(format.sample_rate)}
        case _:
            name, options = None, {}
    parts: list[np.ndarray] = []
    with av.open(io.BytesIO(data), "r", format=name, options=options) as container:
        track = container.streams.audio[0]
        for frame in container.decode(track):
            samples = frame.to_ndarray().reshape(-1)
            scale = 1.0 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.dtype.itemsize - 1)
            parts.append((samples / scale).astype(np.float32))
        return np.concatenate(parts), track.codec_context.sample_rate


def signal(stream: Stream, format: AudioFormat) -> tuple[np.ndarray, int]:
    """The samples of a stream at its rate without the codec's delay, and the samples that its length is off.

    Decoders of Opus return 48 kHz: every sixth sample of them is one of a stream of 8 kHz.
    """
    samples, rate = decoded(stream.data, format)
    scale = rate // format.sample_rate
    stated = (stream.delay + stream.total + stream.padding) * scale
    return samples[::scale][stream.delay :], len(samples) - stated


def distance_db(stream: Stream, samples: np.ndarray, reference: Stream, wanted: np.ndarray, rate: int) -> float:
    """Signal over error in dB of the worse turn, at the best level. reference: the same text as PCM, of `wanted`."""
    edge = int(EDGE_SECONDS * rate)
    turns = [(0, 0, min(stream.cut, reference.cut))]
    if stream.second_turn is not None and reference.second_turn is not None:
        begin, other = stream.second_turn, reference.second_turn
        turns.append((begin, other, min(len(samples) - begin, len(wanted) - other)))
    return min(
        _ratio_db(samples[at + edge : at + length - edge], wanted[other + edge : other + length - edge])
        for at, other, length in turns
    )


def _ratio_db(found: np.ndarray, wanted: np.ndarray) -> float:
    found, wanted = found[: len(wanted)].astype(np.float64), wanted[: len(found)].astype(np.float64)
    level = np.dot(found, wanted) / max(np.dot(found, found), 1e-12)  # LAME lowers it
    error = level * found - wanted
    return float(10 * np.log10(np.dot(wanted, wanted) / max(np.dot(error, error), 1e-12)))
