"""Recordings that the tests make, with the library that reads them."""

from __future__ import annotations

import io

import numpy as np


def sine(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encode_file(container: str, codec: str, rate: int, channels: np.ndarray) -> bytes:
    """A media file. channels: float32 [c, n]."""
    import av  # not part of a bare GPU machine, which collects these tests too

    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(channels)]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channels), format="fltp", layout=layout)
        frame.sample_rate = rate
        converter = av.AudioResampler(format=stream.codec_context.format, layout=layout, rate=rate)
        for part in [*converter.resample(frame), *converter.resample(None), None]:
            for packet in stream.encode(part):
                output.mux(packet)
    return buffer.getvalue()
