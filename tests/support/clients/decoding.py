"""FFmpeg's decoders, as a client would use them."""

from __future__ import annotations

import io

import av
import numpy as np
from av.error import FFmpegError

from voxcpm_grpc.audio import AudioFormat, Encoding


def decoded(data: bytes, format: AudioFormat, *, truncated: bool = False) -> tuple[np.ndarray, int]:
    """The samples of an encoded stream, float32 [n], and their rate. truncated: the stream may lack its end."""
    raw = format.encoding in (Encoding.MULAW, Encoding.ALAW)
    options = {"sample_rate": str(format.sample_rate)} if raw else {}
    parts: list[np.ndarray] = []
    with av.open(io.BytesIO(data), "r", format=str(format.encoding) if raw else None, options=options) as container:
        stream = container.streams.audio[0]
        try:
            for frame in container.decode(stream):
                samples = frame.to_ndarray().reshape(-1)
                scale = 1.0 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.dtype.itemsize - 1)
                parts.append(samples.astype(np.float32) / np.float32(scale))
        except FFmpegError:
            if not truncated:
                raise
        return np.concatenate(parts), stream.codec_context.sample_rate
