"""The whole recipe at a small size: from a text to a checkpoint that an engine speaks with, and to its evaluation."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tools.voice.dataset import RATE
from tools.voice.voices import VOICES

pytestmark = pytest.mark.timeout(1800)
ROOT = Path(__file__).parents[3]
TEXTS = ("A cat sat.", "Do you like it?", "We will see.", "It rained again.")


def step(*command: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_text_becomes_a_checkpoint_that_speaks_and_is_judged(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "few.txt").write_text("It rained in the night.\n")
    step("tools.voice.phonemes", tmp_path / "text.txt", tmp_path / "lines.jsonl")
    step("tools.voice.speak", tmp_path / "lines.jsonl", tmp_path / "speech", "--toy")
    step(
        "tools.voice.train_vae",
        tmp_path / "speech",
        tmp_path / "codec",
        "--toy",
        "--seconds",
        4,
        "--batch",
        2,
        "--crop",
        0.5,
    )
    step("tools.voice.encode", tmp_path / "speech", tmp_path / "codec", tmp_path / "latents")
    step(
        "tools.voice.train_model", tmp_path / "latents", tmp_path / "model", "--toy", "--seconds", 1,
        "--positions", 3840, "--processes", 1,
    )  # fmt: skip
    step("tools.voice.export", tmp_path / "codec", tmp_path / "model", tmp_path / "checkpoint")
    speaks(tmp_path / "checkpoint")

    step("tools.voice.phonemes", tmp_path / "few.txt", tmp_path / "few.jsonl", "--every-voice")
    step("tools.voice.speak", tmp_path / "few.jsonl", tmp_path / "held_out", "--toy")
    step("tools.voice.presets", tmp_path / "held_out", tmp_path / "checkpoint")
    assert len(json.loads((tmp_path / "checkpoint/presets/presets.json").read_text())) == len(VOICES)
    step("tools.voice.ceiling", tmp_path / "held_out", tmp_path / "checkpoint", tmp_path / "said")
    page = step(
        "tools.voice.evaluate", tmp_path / "held_out", tmp_path / "said", "--modes", "codec", "--processes", 1,
        "--out", tmp_path / "result",
    )  # fmt: skip
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [(row["mode"], row["voice"]) for row in rows] == [
        (mode, voice.name) for mode in ("teacher", "codec") for voice in VOICES
    ]
    assert all(1 <= row["naturalness"] <= 5 for row in rows) and "naturalness" in page


def speaks(checkpoint: Path) -> None:
    """An engine loads the checkpoint, and its audio has the rate of the recipe."""
    from voxcpm_grpc.engine.load import load_engine
    from voxcpm_grpc.request import AudioChunk, Request, Sampling
    from voxcpm_grpc.settings.engine import EngineSettings

    engine = load_engine(checkpoint, "toy", EngineSettings(device="cpu"))
    assert engine.info.output_sample_rate == RATE
    engine.add(Request(id="one", text="Hello.", sampling=Sampling(max_steps=4)))
    audio = []
    while engine.busy:
        audio += [event.samples for _, event in engine.step() if isinstance(event, AudioChunk)]
    assert audio and all(len(samples) == engine.info.samples_per_step for samples in audio)
    assert np.isfinite(np.concatenate(audio)).all()
