"""Predicted naturalness of a recording: the P.808 score of DNSMOS, from 1 to 5.

The network is a file in the package speechmos (Microsoft, MIT), whose own module would need librosa. Needs onnxruntime,
and speechmos (`pip install --no-deps`). Recordings are int16 mono samples at 16 kHz.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from tools.voice.judge import RATE

SECONDS = 9.01  # of one window; a shorter recording is repeated
WINDOW, HOP, BANDS = 321, 160, 120  # samples, samples, mel bands
DYNAMIC = 80.0  # dB below the loudest value that are kept


class P808:
    """The network. Raises ModuleNotFoundError without speechmos."""

    def __init__(self) -> None:
        import onnxruntime  # not part of every installation

        spec = importlib.util.find_spec("speechmos")
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError("the package speechmos is missing: pip install --no-deps speechmos")
        path = Path(spec.submodule_search_locations[0], "dnsmos_models", "model_v8.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._network: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, samples: np.ndarray) -> float:
        """The mean score of the windows of a recording, one a second."""
        audio, size = samples.astype(np.float32) / 32768, int(SECONDS * RATE)
        while len(audio) < size:
            audio = np.concatenate((audio, audio))
        windows = int(len(audio) // RATE - SECONDS) + 1  # as DNSMOS counts them, which leaves the rest out
        starts = [second * RATE for second in range(windows)]
        inputs = np.stack([features(audio[start : start + size - HOP]) for start in starts])
        return float(np.mean(self._network.run(None, {self._network.get_inputs()[0].name: inputs})[0]))


def features(audio: np.ndarray) -> np.ndarray:
    """The log mel spectrogram that the network reads: [frames, BANDS]."""
    padded = np.pad(audio, WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * window)) ** 2 @ _filters().T
    decibels = 10 * np.log10(np.maximum(power, 1e-10) / max(1e-10, float(power.max())))
    return ((np.maximum(decibels, decibels.max() - DYNAMIC) + 40) / 40).astype(np.float32)


def _filters() -> np.ndarray:
    """Triangular filters of equal area on Slaney's mel scale, 0 Hz to half the rate: [BANDS, WINDOW // 2 + 1]."""
    top = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)  # the scale is linear up to 1 kHz, which is 15
    mels = np.linspace(0, top, BANDS + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
    at = np.fft.rfftfreq(WINDOW, 1 / RATE)
    left, middle, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rise, fall = (at - left) / (middle - left), (right - at) / (right - middle)
    return np.clip(np.minimum(rise, fall), 0, None) * 2 / (right - left)
