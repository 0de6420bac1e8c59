"""Recordings of equal loudness, without the silence at both ends. Samples are int16."""

import numpy as np

MARGIN = 0.08  # seconds kept before the first and after the last sound
QUIET = 0.01  # least amplitude of sound, over that of the loudest frame
FRAME = 0.005  # seconds
LEVEL = 0.1  # root mean square of an utterance with its margins; full scale is 1
PEAK = 0.95


def sounding(samples: np.ndarray, rate: int) -> slice:
    """The part with at most MARGIN seconds of silence at both ends. Raises ValueError if all samples are silent.

    rate: samples per second
    """
    frame = round(FRAME * rate)
    frames = samples[: len(samples) // frame * frame].reshape(-1, frame).astype(np.float32)
    loud = np.sqrt((frames**2).mean(1))
    if not loud.size or not loud.max():
        raise ValueError(f"the {len(samples)} samples are silent")
    sound = np.flatnonzero(loud > QUIET * loud.max())
    margin = round(MARGIN * rate)
    return slice(max(0, int(sound[0]) * frame - margin), min(len(samples), (int(sound[-1]) + 1) * frame + margin))


def trim(samples: np.ndarray, rate: int) -> np.ndarray:
    """The part of the samples that `sounding` gives."""
    return samples[sounding(samples, rate)]


def level(samples: np.ndarray) -> np.ndarray:
    """The samples scaled to LEVEL, or less if a peak would exceed PEAK."""
    x = samples.astype(np.float32)
    gain = min(LEVEL * 32768 / np.sqrt((x**2).mean()), PEAK * 32767 / np.abs(x).max())
    return np.rint(x * gain).astype(np.int16)
