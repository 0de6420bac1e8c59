"""The whole recipe at a small size: from a text to a checkpoint that an engine speaks with, and to its evaluation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.clients.recipe import run_command

from tools.voice.backups import restore
from tools.voice.dataset import RATE
from tools.voice.lease import Run, start_folder
from tools.voice.schedule import Command, Lease, Phase
from tools.voice.voices import VOICES

pytestmark = pytest.mark.timeout(1800)
TEXTS = ("A cat sat.", "Do you like it?", "We will see.", "It rained again.")


class InProcess:
    """Starts commands of a lease in this process, which has imported PyTorch already. Each has ended when it returns.

    stop: a phase before which the lease is interrupted once
    """

    def __init__(self, stop: str | None = None) -> None:
        self.stop = stop
        self.output: dict[str, str] = {}  # of each phase

    def __call__(self, phase: Phase, command: Command) -> InProcess:
        if phase.name == self.stop:
            raise KeyboardInterrupt
        self.output[phase.name] = run_command(*command.arguments)
        return self

    def poll(self) -> int:
        return 0

    def kill(self) -> None:
        raise AssertionError("it has ended")


def spoken_lines(build: Path, texts: tuple[str, ...]) -> None:
    build.mkdir()
    (build / "text.txt").write_text("\n".join(texts) + "\n")
    run_command("phonemes", build / "text.txt", build / "lines.jsonl")


def test_a_text_becomes_a_checkpoint_that_speaks_and_is_judged_and_is_continued(tmp_path: Path) -> None:
    """A first lease is interrupted and goes on. Others continue from its backup at the interruption."""
    spoken_lines(tmp_path / "build", TEXTS)
    (tmp_path / "few.txt").write_text("It rained in the night.\n")
    run_command("phonemes", tmp_path / "few.txt", tmp_path / "build/held_out.jsonl", "--every-voice")
    lease = Lease(seconds=12, gpus=1, build=tmp_path / "build", teachers=1, toy=True)
    begun, rest = InProcess(stop="predict-1"), InProcess()
    with pytest.raises(KeyboardInterrupt):
        Run(lease, tmp_path / "backups", begun)()
    shutil.copytree(tmp_path / "backups", tmp_path / "lost")
    assert Run(lease, tmp_path / "backups", rest)()
    assert list(begun.output) == ["teach", "recordings", "codec", "encode", "model", "decoder-1"]
    assert list(rest.output) == ["predict-1", "decoder-2", "predict-2", "decoder-3"]
    lines = [line.split(" s  ", 1)[1] for line in (tmp_path / "backups/lease.log").read_text().splitlines()]
    for name in (*begun.output, *rest.output):
        ended = next(at for at, line in enumerate(lines) if line.startswith(f"{name}: "))
        assert name in ("teach", "recordings") or lines[ended + 1].startswith("backup "), name
    speaks(tmp_path / "build/checkpoint")
    is_judged(tmp_path / "build/held_out", tmp_path / "build/checkpoint", tmp_path)
    is_continued(tmp_path / "lost", tmp_path)
    has_its_decoder_trained_alone(tmp_path / "later/start", tmp_path)


def is_continued(backups: Path, tmp_path: Path) -> None:
    """Another lease begins with the codec and the model of backups, and its encoder does not change."""
    build = tmp_path / "later"
    spoken_lines(build, ("They went home.", "Is it late?", "One more, please."))
    start = start_folder(backups, build)
    assert start is not None
    lease, commands = Lease(seconds=4, gpus=1, build=build, start=start, teachers=1, toy=True), InProcess()
    assert Run(lease, tmp_path / "later-backups", commands)()
    assert "codec" not in commands.output
    assert "at the start" in commands.output["model"] and "without noise" in commands.output["decoder-1"]
    assert {"reader", "discriminators"} == set(torch.load(start / "helpers.pt", weights_only=True))
    restore(tmp_path / "later-backups", tmp_path / "restored")
    only_the_decoder_changed(start, tmp_path / "restored")
    before, after = (load_file(folder / "model.safetensors") for folder in (start, tmp_path / "restored"))
    for name, weight in before.items():  # there was time for a few steps
        torch.testing.assert_close(after[name], weight, rtol=0.02, atol=1e-3)
    speaks(tmp_path / "restored")


def has_its_decoder_trained_alone(start: Path, tmp_path: Path) -> None:
    """The backups hold all of the checkpoint but the model's weights."""
    build, whole = tmp_path / "alone", tmp_path / "whole"
    spoken_lines(build, ("Come in, please.", "Where is it?", "He told me so."))
    lease = Lease(seconds=4, gpus=1, build=build, start=start, teachers=1, decoder_only=True, toy=True)
    commands = InProcess()
    assert Run(lease, tmp_path / "alone-backups", commands)()
    assert list(commands.output) == ["teach", "encode", "predict-2", "decoder-3"]
    shutil.copytree(start, whole)
    (whole / "audiovae.safetensors").unlink()
    restore(tmp_path / "alone-backups", tmp_path / "backup")
    assert not (tmp_path / "backup/model.safetensors").exists()
    restore(tmp_path / "alone-backups", whole)
    only_the_decoder_changed(start, whole)
    speaks(whole)


def only_the_decoder_changed(start: Path, later: Path) -> None:
    before, after = (load_file(folder / "audiovae.safetensors") for folder in (start, later))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(name.startswith("decoder.") for name in changed)


def is_judged(held_out: Path, checkpoint: Path, tmp_path: Path) -> None:
    run_command("presets", held_out, checkpoint)
    assert len(json.loads((checkpoint / "presets/presets.json").read_text())) == len(VOICES)
    run_command("ceiling", held_out, checkpoint, tmp_path / "said")
    page = run_command(
        "evaluate",
        held_out,
        tmp_path / "said",
        "--modes",
        "codec",
        "--processes",
        1,
        "--out",
        tmp_path / "result",
    )
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [(row["mode"], row["voice"]) for row in rows] == [
        (mode, voice.name) for mode in ("teacher", "codec") for voice in VOICES
    ]
    assert all(1 <= row["naturalness"] <= 5 for row in rows) and "naturalness" in page


def speaks(checkpoint: Path) -> None:
    """An engine loads the checkpoint, and its audio has the rate of the recipe."""
    from voxcpm_grpc.engine.load import load_engine
    from voxcpm_grpc.events import AudioChunk
    from voxcpm_grpc.request import Request, Sampling
    from voxcpm_grpc.settings.engine import EngineSettings

    engine = load_engine(checkpoint, "toy", EngineSettings(device="cpu"))
    assert engine.info.output_sample_rate == RATE
    engine.add(Request(id="one", text="Hello.", sampling=Sampling(max_steps=4)))
    audio = []
    while engine.busy:
        audio += [event.samples for _, event in engine.step() if isinstance(event, AudioChunk)]
    assert audio and all(len(samples) == engine.info.samples_per_step for samples in audio)
    assert np.isfinite(np.concatenate(audio)).all()
