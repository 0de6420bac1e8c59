"""The interface of streaming encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Encoded:
    """A part of an encoded stream.

    samples: samples that can be decoded with this part and not before. padding: samples that a decoder makes after the
    last sample of the stream; only the last part of a stream has them
    """

    data: bytes
    samples: int
    padding: int = 0


class Encoder(Protocol):
    """Encodes the samples of one stream, which has one signal after the other."""

    @property
    def delay(self) -> int:
        """Samples before the first one that a decoder makes and does not remove."""
        ...

    @property
    def position(self) -> int:
        """Position in the decoded stream, after the delay, of the next sample that is pushed."""
        ...

    @property
    def slow(self) -> bool:
        """True if a push takes long enough to be run in a thread."""
        ...

    def push(self, samples: np.ndarray) -> Encoded:
        """Encode float32 samples [n] in -1..1."""
        ...

    def end_signal(self) -> Encoded:
        """Encode the samples that the encoder still holds. Silence may follow them, which counts as samples."""
        ...

    def discard(self) -> None:
        """Drop the samples that the encoder still holds. A new signal may follow."""
        ...

    def flush(self) -> Encoded:
        """End the stream, and return its last bytes."""
        ...


class PcmEncoder:
    """Encodes each sample on its own. The first bytes follow the header, if there is one."""

    delay: int = 0
    slow: bool = False

    def __init__(self, convert: Callable[[np.ndarray], bytes], header: bytes = b"") -> None:
        self._convert = convert
        self._header = header
        self.position = 0

    def push(self, samples: np.ndarray) -> Encoded:
        if not len(samples):
            return Encoded(b"", 0)
        self.position += len(samples)
        header, self._header = self._header, b""
        return Encoded(header + self._convert(samples), len(samples))

    def end_signal(self) -> Encoded:
        return Encoded(b"", 0)

    def discard(self) -> None:
        """Nothing is held."""

    def flush(self) -> Encoded:
        """The header if there was no audio, so that an empty stream is a valid file."""
        return Encoded(self._header, 0)
