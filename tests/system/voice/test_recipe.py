"""The whole recipe at a small size: from a text to a checkpoint that an engine speaks with, and to its evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.clients.recipe import run_command

from tools.voice.dataset import RATE
from tools.voice.voices import VOICES

pytestmark = pytest.mark.timeout(1800)
TEXTS = ("A cat sat.", "Do you like it?", "We will see.", "It rained again.")


def test_a_text_becomes_a_checkpoint_that_speaks_and_is_judged(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "few.txt").write_text("It rained in the night.\n")
    run_command("phonemes", tmp_path / "text.txt", tmp_path / "lines.jsonl")
    run_command("speak", tmp_path / "lines.jsonl", tmp_path / "speech", "--toy")
    codec = ("--toy", "--seconds", 4, "--batch", 2, "--crop", 0.5)
    run_command("train_vae", tmp_path / "speech", tmp_path / "codec", *codec)
    run_command("encode", tmp_path / "speech", tmp_path / "codec", tmp_path / "latents")
    run_command(
        "train_model", tmp_path / "latents", tmp_path / "model", "--toy", "--seconds", 1,
        "--positions", 3840, "--processes", 1,
    )  # fmt: skip
    run_command(
        "predict", tmp_path / "latents", tmp_path / "model", tmp_path / "predicted", "--positions", 3840,
        "--timesteps", 4,
    )  # fmt: skip
    run_command(
        "train_vae", tmp_path / "speech", tmp_path / "decoder", *codec, "--seconds", 1, "--start", tmp_path / "codec",
        "--predicted", tmp_path / "predicted", "--latents", tmp_path / "latents",
    )  # fmt: skip
    run_command("export", tmp_path / "decoder", tmp_path / "model", tmp_path / "checkpoint")
    speaks(tmp_path / "checkpoint")

    run_command("phonemes", tmp_path / "few.txt", tmp_path / "few.jsonl", "--every-voice")
    run_command("speak", tmp_path / "few.jsonl", tmp_path / "held_out", "--toy")
    run_command("presets", tmp_path / "held_out", tmp_path / "checkpoint")
    assert len(json.loads((tmp_path / "checkpoint/presets/presets.json").read_text())) == len(VOICES)
    run_command("ceiling", tmp_path / "held_out", tmp_path / "checkpoint", tmp_path / "said")
    page = run_command(
        "evaluate", tmp_path / "held_out", tmp_path / "said", "--modes", "codec", "--processes", 1,
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
