"""Speed and volume of a stream, by the filters of FFmpeg through PyAV."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxcpm_grpc.audio.codecs import check, load_av
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason

SPEEDS = 0.5, 2.0
GAINS_DB = -30.0, 20.0
SPEED_RATES = 8000, 192000
"""Least and highest sample rate in Hz at which the speed can change."""
LIMIT_DB = -1.0
"""Highest peak of speech that is made louder, in dB of full scale; a codec or a resampler may add a part of a dB."""
SLICE_SECONDS = 0.01  # `atempo` returns its output in parts as long as its input, so small ones are not held back
LOOKAHEAD_SECONDS = 0.115
"""Most speech that the filters keep back, at any rate and speed: 80 ms at 48 kHz, and 110 at 16 kHz, at speed 2."""
TAIL_SECONDS = 0.25  # seconds of silence after a signal; `atempo` alone drops up to 20 ms of the end


def _check_range(name: str, value: float, bounds: tuple[float, float]) -> None:
    if not bounds[0] <= value <= bounds[1]:  # nan is in no range
        raise InvalidRequest(f"{name} is {value:g}; it must be {bounds[0]:g} to {bounds[1]:g}", field=name)


@dataclass(frozen=True, slots=True)
class Effects:
    """Changes of the model's audio.

    speed: 0.5 to 2, with the same pitch; 1 changes nothing
    gain_db: change of the volume in dB, -30 to 20; 0 changes nothing

    Raises InvalidRequest for values out of range.
    """

    speed: float = 1.0
    gain_db: float = 0.0

    def __post_init__(self) -> None:
        _check_range("speed", self.speed, SPEEDS)
        _check_range("volume_gain_db", self.gain_db, GAINS_DB)

    def check(self, rate: int) -> None:
        """Raise FailedPrecondition if audio of a rate in Hz cannot have these effects, or if PyAV is missing."""
        if self.speed != 1 and not SPEED_RATES[0] <= rate <= SPEED_RATES[1]:
            raise FailedPrecondition(
                f"speed is {self.speed:g} and the model's output rate is {rate} Hz; other speeds than 1 need a rate of "
                f"{SPEED_RATES[0]} to {SPEED_RATES[1]} Hz, remove the speed",
                field="speed",
                reason=Reason.SPEED_NOT_SUPPORTED,
                sample_rate_hz=rate,
            )
        if self.is_filtered:
            check("change the speed or raise the volume of audio")

    @property
    def is_filtered(self) -> bool:
        """True if they need filters, which keep some samples back."""
        return self.speed != 1 or self.gain_db > 0

    def length(self, samples: int) -> int:
        """The samples of a signal of that many samples with these effects."""
        return samples if self.speed == 1 else int(samples / self.speed + 0.5)


NO_EFFECTS = Effects()


class StreamEffects:
    """Applies effects to a signal chunk by chunk. `rate` is its sample rate in Hz.

    The speed is changed by `atempo`, which repeats or leaves out parts of 43 to 64 ms where they fit best. A volume
    that is raised goes through the limiter `alimiter`, which looks 5 ms ahead. Until `flush`, both keep up to 115 ms of
    the pushed samples. For a volume that is lowered, no filter runs.
    """

    def __init__(self, rate: int, effects: Effects) -> None:
        self._rate = rate
        self._effects = effects
        self._factor = np.float32(10 ** (effects.gain_db / 20))
        self.reset()

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Add float32 samples [n], and return those that are ready."""
        samples = samples * self._factor
        if not self._effects.is_filtered or not len(samples):
            return samples
        self._given += len(samples)
        made = self._filters.push(samples)
        self._made += len(made)
        return made

    def flush(self) -> np.ndarray:
        """Return the samples that are still held. The next `push` starts a new signal."""
        if not self._given:
            return np.zeros(0, np.float32)
        missing = self._effects.length(self._given) - self._made
        made = self._filters.finish()[:missing]
        self.reset()
        return np.pad(made, (0, missing - len(made)))

    def reset(self) -> None:
        """Drop the samples that are still held, and start a new signal."""
        self._given = self._made = 0
        self._built: _Filters | None = None

    @property
    def _filters(self) -> _Filters:
        if self._built is None:
            self._built = _Filters(self._rate, self._effects)
        return self._built


class _Filters:
    """The filters of one signal."""

    def __init__(self, rate: int, effects: Effects) -> None:
        av = load_av()
        self._av = av
        self._rate = rate
        self._slice = max(1, int(SLICE_SECONDS * rate))
        self._given = 0
        self._graph = av.filter.Graph()
        source = {"format": "flt", "layout": "mono", "time_base": f"1/{rate}"}
        last = self._source = self._graph.add_abuffer(sample_rate=rate, **source)
        for name, options in _chain(effects):
            following = self._graph.add(name, options)
            last.link_to(following)
            last = following
        self._sink = self._graph.add("abuffersink")
        last.link_to(self._sink)
        self._graph.configure()

    def push(self, samples: np.ndarray) -> np.ndarray:
        parts: list[np.ndarray] = []
        for start in range(0, len(samples), self._slice):
            part = np.ascontiguousarray(samples[None, start : start + self._slice], np.float32)
            frame = self._av.AudioFrame.from_ndarray(part, format="flt", layout="mono")
            frame.sample_rate, frame.pts = self._rate, self._given
            self._given += part.shape[1]
            self._source.push(frame)
            parts += self._ready()
        return _joined(parts)

    def finish(self) -> np.ndarray:
        rest = self.push(np.zeros(int(TAIL_SECONDS * self._rate), np.float32))
        self._source.push(None)
        return _joined([rest, *self._ready()])

    def _ready(self) -> list[np.ndarray]:
        parts: list[np.ndarray] = []
        while True:
            try:
                parts.append(self._sink.pull().to_ndarray().reshape(-1))
            except (self._av.error.BlockingIOError, self._av.error.EOFError):
                return parts


def _chain(effects: Effects) -> list[tuple[str, str]]:
    """The filters, with their options."""
    chain: list[tuple[str, str]] = []
    if effects.speed != 1:
        chain.append(("atempo", f"tempo={effects.speed!r}"))
    if effects.gain_db > 0:
        limit = 10 ** (LIMIT_DB / 20)
        chain.append(("alimiter", f"limit={limit:.6f}:level=0:attack=5:release=50:latency=1"))
    return [*chain, ("aformat", "sample_fmts=flt")]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
