"""The rule for recordings of voices: they are long enough and not silent."""

from __future__ import annotations

import numpy as np

from voxcpm_grpc.audio.formats import BadAudio

MIN_SECONDS = 0.1
MIN_LEVEL = -60.0  # dB of full scale; quiet speech reaches -40, and the noise of a muted input stays below -70
FLOOR = 1e-10  # gives digital silence a level


def check_voice(samples: np.ndarray, rate: int) -> None:
    """Refuse a recording from which no voice can be taken. Raises BadAudio.

    samples: float32 mono [n] at `rate` Hz
    """
    seconds = len(samples) / rate
    window = round(MIN_SECONDS * rate)
    if len(samples) < window:
        raise BadAudio(f"the audio lasts {seconds:.4f} s and the minimum is {MIN_SECONDS:g} s; send a longer recording")
    level = 20 * np.log10(_loudest(samples, window) + FLOOR)
    if level < MIN_LEVEL:
        raise BadAudio(
            f"the audio is silent: its loudest {1000 * MIN_SECONDS:g} ms reach {level:.0f} dBFS and the minimum is "
            f"{MIN_LEVEL:g} dBFS; send a louder recording"
        )


def _loudest(samples: np.ndarray, window: int) -> float:
    """The largest root mean square of a window, without its constant part."""
    windows = samples[: len(samples) // window * window].reshape(-1, window)
    return float(windows.std(axis=1, dtype=np.float64).max())
