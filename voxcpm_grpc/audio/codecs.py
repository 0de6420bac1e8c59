"""Streaming encoders of compressed audio, by PyAV."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from voxcpm_grpc.audio import pcm
from voxcpm_grpc.audio.containers import RATE, OpusPages
from voxcpm_grpc.audio.encoder import Encoded
from voxcpm_grpc.errors import FailedPrecondition, Reason

FLAC_HEADER = b"fLaC\x80\0\0\x22"  # STREAMINFO, which has 34 bytes, is the last metadata block


@dataclass(frozen=True, slots=True)
class Codec:
    """An encoder of FFmpeg at a rate in Hz.

    sample_format: FFmpeg's name. lookahead: samples by which the decoded signal is late. options: FFmpeg's.
    """

    name: str
    rate: int
    sample_format: str
    lookahead: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


class Output(Protocol):
    """Makes a stream of bytes from packets."""

    removes_lookahead: bool
    """True if decoders of the stream remove the samples of the encoder's lookahead."""

    def open(self, codec: Codec) -> Any:
        """Begin the stream. Returns the first codec context."""
        ...

    def write(self, packets: Iterable[Any]) -> None:
        """Add packets of PyAV."""
        ...

    def close(self, packets: Sequence[Any], end: int) -> None:
        """Add the last packets, and end the stream. end: length of the signal in samples."""
        ...

    def take(self) -> bytes:
        """The bytes since the last call."""
        ...


class FrameEncoder:
    """Encodes a stream in frames of a fixed size.

    The codec is given whole frames only, so that samples which it has not seen can be dropped. Positions count samples
    after the lookahead. `_packets` are samples of all packets so far, of which the first `lookahead` are no speech.
    """

    slow = True

    def __init__(self, codec: Codec, output: Output) -> None:
        check()
        self._codec = codec
        self._output = output
        self._rest = np.zeros(0, np.float32)  # samples of less than a frame
        self._start = 0  # the first sample of the present context has this position
        self._given = 0  # samples that the present context was given
        self._packets = 0
        self._counted = 0  # samples that were returned
        self._ended = 0  # the latest end of a signal has this position

    @cached_property
    # The first use makes it, because it loads PyAV, and only the steps of the encoder run in a thread.
    def _context(self) -> Any:
        return self._output.open(self._codec)

    @property
    def delay(self) -> int:
        return 0 if self._output.removes_lookahead else self._codec.lookahead

    @property
    def position(self) -> int:
        return self._start + self._given + len(self._rest)

    def push(self, samples: np.ndarray) -> Encoded:
        size: int = self._context.frame_size
        samples = np.concatenate([self._rest, samples])
        whole = len(samples) - len(samples) % size
        self._rest = samples[whole:]
        for start in range(0, whole, size):
            self._give(samples[start : start + size])
        return self._encoded(self._packets - self._codec.lookahead)

    def end_signal(self) -> Encoded:
        end = self.position
        if end == self._ended:  # nothing was pushed since
            return Encoded(b"", 0)
        encoded = self.push(np.zeros(0, np.float32))
        while self._packets - self._codec.lookahead < end:
            more = self.push(np.zeros(self._context.frame_size - len(self._rest), np.float32))
            encoded = Encoded(encoded.data + more.data, encoded.samples + more.samples)
        self._ended = self.position
        return encoded

    def discard(self) -> None:
        self._rest = self._rest[:0]
        if self._codec.lookahead and self._given:  # a new context has no lookahead
            self._start, self._given = self._packets, 0
            self._context = context(self._codec)
            # A frame of silence resets what a decoder predicts from earlier frames, which the new context cannot know.
            self._give(np.zeros(self._context.frame_size, np.float32))
        self._ended = self.position

    def flush(self) -> Encoded:
        end = self.position
        packets = [*(self._context.encode(self._frame(self._rest)) if len(self._rest) else ())]
        packets += self._context.encode(None) if end else ()
        self._packets += len(packets) * self._context.frame_size
        self._output.close(packets, end)
        padding = max(0, self._packets - self._codec.lookahead - end) if self.delay else 0
        encoded = self._encoded(end)
        return Encoded(encoded.data, encoded.samples, padding)

    def _give(self, samples: np.ndarray) -> None:
        packets = self._context.encode(self._frame(samples))
        self._packets += len(packets) * self._context.frame_size
        self._output.write(packets)
        self._given += len(samples)

    def _frame(self, samples: np.ndarray) -> Any:
        made = frame(samples, self._codec)
        made.pts = self._start + self._given
        return made

    def _encoded(self, end: int) -> Encoded:
        samples = max(0, end - self._counted)
        self._counted += samples
        return Encoded(self._output.take(), samples)


class BarePackets:
    """Packets that follow each other, as MP3 has them."""

    removes_lookahead = False

    def __init__(self) -> None:
        self._data = bytearray()

    def open(self, codec: Codec) -> Any:
        return context(codec)

    def write(self, packets: Iterable[Any]) -> None:
        for packet in packets:
            self._data += bytes(packet)

    def close(self, packets: Sequence[Any], end: int) -> None:
        self.write(packets)

    def take(self) -> bytes:
        data, self._data = bytes(self._data), bytearray()
        return data


class OggOpus(BarePackets):
    """Opus packets in pages of their own."""

    removes_lookahead = True

    def __init__(self) -> None:
        super().__init__()
        self._end = 0  # the last packet ends here, at 48 kHz

    def open(self, codec: Codec) -> Any:
        opened = super().open(codec)
        self._lookahead, self._scale = codec.lookahead, RATE // codec.rate
        self._packet = opened.frame_size * self._scale
        self._pages = OpusPages(bytes(opened.extradata))
        self._data += self._pages.header()
        return opened

    def write(self, packets: Iterable[Any]) -> None:
        for packet in packets:
            self._end += self._packet
            self._data += self._pages.page(bytes(packet), self._end)

    def close(self, packets: Sequence[Any], end: int) -> None:
        if packets:  # the last position cuts the audio to its length
            self.write(packets[:-1])
            length = (end + self._lookahead) * self._scale
            self._data += self._pages.page(bytes(packets[-1]), length, last=True)


class Flac(BarePackets):
    """FLAC frames after a header whose length is left open."""

    removes_lookahead = True  # a codec without lookahead has none to remove

    def open(self, codec: Codec) -> Any:
        opened = super().open(codec)
        self._data += FLAC_HEADER + bytes(opened.extradata)
        return opened


class G711:
    """Converts each sample to a byte. name: FFmpeg's, pcm_mulaw or pcm_alaw."""

    def __init__(self, name: str, rate: int) -> None:
        check()
        self._codec = Codec(name, rate, "s16")

    @cached_property
    def _context(self) -> Any:
        return context(self._codec)

    def __call__(self, samples: np.ndarray) -> bytes:
        return b"".join(map(bytes, self._context.encode(frame(samples, self._codec))))


def decode_g711(data: bytes, name: str) -> np.ndarray:
    """The samples of a recording, a byte each: float32 [n]. name: FFmpeg's, pcm_mulaw or pcm_alaw."""
    check()
    decoder = load_av().CodecContext.create(name, "r")
    decoder.sample_rate, decoder.layout = 8000, "mono"
    frames = decoder.decode(load_av().Packet(data))
    return pcm.to_float(np.concatenate([one.to_ndarray().reshape(-1) for one in frames]))


def context(codec: Codec) -> Any:
    """A new codec context."""
    made = load_av().CodecContext.create(codec.name, "w")
    made.sample_rate, made.layout, made.format = codec.rate, "mono", codec.sample_format
    made.options = dict(codec.options)
    made.open()
    return made


def frame(samples: np.ndarray, codec: Codec) -> Any:
    """A frame of float32 samples [n]."""
    convert: Callable[[np.ndarray], np.ndarray] = pcm.s16 if codec.sample_format == "s16" else _floats
    made = load_av().AudioFrame.from_ndarray(convert(samples)[None], format=codec.sample_format, layout="mono")
    made.sample_rate = codec.rate
    return made


def preload() -> None:
    """Load PyAV if it is installed, so that the first compressed stream does not wait for it."""
    with suppress(ImportError):
        load_av()


def check(work: str = "compress audio") -> None:
    """Raise FailedPrecondition if PyAV is missing, which does the work. Does not load it."""
    if importlib.util.find_spec("av") is None:
        raise FailedPrecondition(
            f"this server cannot {work}, because PyAV is missing: pip install 'voxcpm-grpc[server]'",
            reason=Reason.PACKAGE_MISSING,
            extra="server",
        )


def _floats(samples: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(samples, np.float32)


def load_av() -> Any:
    """The package av. The first call takes a tenth of a second."""
    import av

    return av
