"""A picture of a recording: drawn from what is in it, the same every time."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from voxcpm_grpc.audio import wav_bytes

TOOL = Path(__file__).parents[3] / "tools" / "draw_speech.py"


def draw(folder: Path, name: str, samples: np.ndarray) -> bytes:
    (folder / "speech.wav").write_bytes(wav_bytes(samples.astype(np.float32), 16000))
    command = [sys.executable, TOOL, folder / "speech.wav", folder / name]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return (folder / name).read_bytes()


def test_the_same_recording_gives_the_same_picture_and_another_one_another(tmp_path):
    tone = 0.3 * np.sin(2 * np.pi * 220 * np.arange(8000) / 16000)
    pictures = [draw(tmp_path, f"{number}.png", samples) for number, samples in enumerate((tone, tone, 0.5 * tone**2))]
    assert pictures[0].startswith(b"\x89PNG") and pictures[0] == pictures[1] != pictures[2]
