"""Draw the waveform and the spectrogram of a recording.

    voxcpm-grpc demo --out demo.wav
    python tools/draw_speech.py demo.wav docs/demo.png

Needs matplotlib, which the `bench` extra installs.
"""

import argparse
import wave
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

INK = "#1f6f8b"
WINDOW, HOP = 0.025, 0.005  # seconds
DEPTH = 60  # dB below the loudest point that are visible


def read(path: Path) -> tuple[np.ndarray, int]:
    """The samples, with a full scale of 1, and their rate. Raises ValueError for a file that is not 16-bit mono."""
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth()) != (1, 2):
            raise ValueError(f"{path} is not a 16-bit mono WAV file")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768, file.getframerate()


def draw(samples: np.ndarray, rate: int, path: Path) -> None:
    seconds = len(samples) / rate
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 4), layout="constrained", sharex=True, height_ratios=(1, 2)
    )
    above.plot(np.arange(len(samples)) / rate, samples, color=INK, linewidth=0.4)
    above.set_ylim(-1.05 * np.abs(samples).max(), 1.05 * np.abs(samples).max())
    above.set_yticks([])
    window, hop = round(WINDOW * rate), round(HOP * rate)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(samples, window // 2), window)[::hop]
    power = np.abs(np.fft.rfft(frames * np.hanning(window), 4 * window)) ** 2
    decibels = 10 * np.log10(power / power.max() + 1e-12)
    extent = (0, seconds, 0, rate / 2000)
    below.imshow(decibels.T, extent=extent, origin="lower", aspect="auto", cmap="magma", vmin=-DEPTH, vmax=0)
    below.set_xlabel("seconds")
    below.set_ylabel("kHz")
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(
        path, dpi=80, metadata={"Software": None}
    )  # without the version, so that a recording always gives the same file
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, help="16-bit mono WAV file")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    args = parser.parse_args()
    draw(*read(args.recording), args.picture)


if __name__ == "__main__":
    main()
