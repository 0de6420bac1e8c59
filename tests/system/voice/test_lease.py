"""A lease runs its phases in order and within their times, goes on after an interruption, and survives failures."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.voice import backups, lease
from tools.voice.lease import Note, Run
from tools.voice.processes import start_process
from tools.voice.schedule import TEACH_BESIDE, Command, Lease, Phase, Planner

ROOT = Path(lease.__file__).parents[2]
Status = Callable[[Phase, int], int | None]


class Commands:
    """Stands for commands that end at once with a status, which may depend on the phase and the try."""

    def __init__(self, status: Status = lambda phase, attempt: 0) -> None:
        self.status = status
        self.begun: list[tuple[str, Command]] = []
        self.killed: list[str] = []

    def __call__(self, phase: Phase, command: Command) -> "Ended":
        attempt = sum(before == command for _, before in self.begun)
        self.begun.append((phase.name, command))
        return Ended(self.status(phase, attempt), lambda: self.killed.append(phase.name))

    @property
    def names(self) -> list[str]:
        """The phases in the order in which they begin."""
        return list(dict.fromkeys(name for name, _ in self.begun))


class Ended:
    def __init__(self, status: int | None, kill: Callable[[], None]) -> None:
        self.status, self.kill = status, kill

    def poll(self) -> int | None:
        return self.status


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "POLL", 0.0)


def a_lease(
    tmp_path: Path, seconds: float = 1600, gpus: int = 2, start: Path | None = None, decoder_only: bool = False
) -> Lease:
    (tmp_path / "build").mkdir(exist_ok=True)
    return Lease(seconds, gpus, tmp_path / "build", start, decoder_only=decoder_only)


def option(command: Command, name: str) -> str | None:
    arguments = command.arguments
    return arguments[arguments.index(name) + 1] if name in arguments else None


# ----------------------------------------------------------------- the plan


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_every_gpu_teaches_and_predicts_its_share(tmp_path: Path, gpus: int) -> None:
    phases = {phase.name: phase for phase in Planner(a_lease(tmp_path, gpus=gpus, start=tmp_path), 0).phases()}
    assert "codec" not in phases
    for name, each in (("teach", 4), ("predict-1", 1), ("predict-2", 1)):
        shares = {option(command, "--share") for command in phases[name].commands}
        assert shares == {f"{number + 1}/{each * gpus}" for number in range(each * gpus)}
        used = [command.gpu for command in phases[name].commands]
        assert all(used.count(gpu) == each for gpu in range(gpus)) and len(used) == each * gpus
    assert [phases[name].commands[0].gpu for name in ("model", "decoder-1", "decoder-3")] == [0, gpus - 1, gpus - 1]


def test_the_teacher_speaks_on_beside_the_codec_of_a_first_training(tmp_path: Path) -> None:
    phases = {phase.name: phase for phase in Planner(a_lease(tmp_path, seconds=800), 1000).phases()}
    assert {command.gpu for command in phases["teach"].commands} == {0}
    assert {command.gpu for command in phases["teach-beside"].commands} == {1}
    shares = {option(one, "--share") for name in ("teach", "teach-beside") for one in phases[name].commands}
    assert shares == {f"{number}/8" for number in range(1, 9)}
    assert phases["codec"].needs == ("teach",) and set(phases["encode"].needs) == {"teach", "teach-beside", "codec"}
    assert phases["teach-beside"].until == 1000 + TEACH_BESIDE / 2  # half of the seconds


def test_the_decoder_has_one_learning_rate_over_its_phases(tmp_path: Path) -> None:
    phases = [one for one in Planner(a_lease(tmp_path, start=tmp_path), 0).phases() if one.name.startswith("decoder")]
    commands = [phase.commands[0] for phase in phases]
    assert len({(one.arguments[1:3], option(one, "--until"), option(one, "--rate")) for one in commands}) == 1
    end = float(option(commands[0], "--until") or 0)
    halfway, model = (float(option(one, "--pause") or 0) for one in commands[:2])
    assert halfway < model < end < 1600 and option(commands[2], "--pause") is None
    assert [option(one, "--predicted") for one in commands] == [
        None, str(tmp_path / "build/predicted-1"), str(tmp_path / "build/predicted-2")
    ]  # fmt: skip


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_decoder_alone_is_trained_for_the_model_of_its_checkpoint(tmp_path: Path, gpus: int) -> None:
    own = a_lease(tmp_path, gpus=gpus, start=tmp_path / "start", decoder_only=True)
    phases = {phase.name: phase for phase in Planner(own, 0).phases()}
    assert list(phases) == ["teach", "encode", "predict-2", "decoder-3"]
    predict, (decoder,) = phases["predict-2"].commands, phases["decoder-3"].commands
    assert [one.gpu for one in predict] == list(range(gpus))
    assert {one.arguments[2] for one in predict} == {str(tmp_path / "start")}
    assert option(decoder, "--predicted") == predict[0].arguments[3] and option(decoder, "--pause") is None
    assert float(option(decoder, "--predicted-share") or 0) > 0.5
    (plain,) = phases["decoder-3"].otherwise
    assert option(plain, "--predicted") is None and option(plain, "--start") == str(tmp_path / "start")


# ------------------------------------------------------------------ the run


def test_phases_begin_after_those_that_they_need(tmp_path: Path) -> None:
    commands = Commands()
    assert Run(a_lease(tmp_path), tmp_path / "out", commands)()
    assert commands.names == [
        "teach", "teach-beside", "codec", "encode", "model", "decoder-1", "predict-1", "decoder-2", "predict-2",
        "decoder-3",
    ]  # fmt: skip
    log = (tmp_path / "out/lease.log").read_text()
    assert all(f"{name}: 0 s" in log for name in commands.names)


def test_an_interrupted_lease_goes_on_and_its_clock_too(tmp_path: Path) -> None:
    def interrupted(phase: Phase, attempt: int) -> int:
        if phase.name == "decoder-1":
            raise KeyboardInterrupt
        return 0

    own, first, second = a_lease(tmp_path), Commands(interrupted), Commands()
    Note(spent=300.0, done=("teach", "teach-beside")).write(own.build / "lease.json")
    with pytest.raises(KeyboardInterrupt):
        Run(own, tmp_path / "out", first)()
    assert first.names == ["codec", "encode", "model", "decoder-1"]
    assert Run(own, tmp_path / "out", second)()
    assert second.names == ["encode", "model", "decoder-1", "predict-1", "decoder-2", "predict-2", "decoder-3"]
    ends = float(option(second.begun[1][1], "--until") or 0) - time.time()
    assert 900 < ends < 1000  # 1290 s less 300 s, on the clock


def test_commands_end_with_their_lease(tmp_path: Path) -> None:
    def interrupted(phase: Phase, attempt: int) -> int | None:
        if phase.name == "codec":
            raise KeyboardInterrupt
        return None if phase.name == "teach-beside" else 0

    commands = Commands(interrupted)
    with pytest.raises(KeyboardInterrupt):
        Run(a_lease(tmp_path), tmp_path / "out", commands)()
    assert set(commands.killed) == {"teach-beside"}


def test_a_command_that_fails_is_tried_once_more(tmp_path: Path) -> None:
    once = Commands(lambda phase, attempt: int(phase.name == "predict-1" and attempt == 0))
    assert Run(a_lease(tmp_path), tmp_path / "out", once)()
    assert [name for name, _ in once.begun].count("predict-1") == 4  # two shares, each twice

    (tmp_path / "build/lease.json").unlink()
    always = Commands(lambda phase, attempt: int(phase.name == "encode"))
    assert not Run(a_lease(tmp_path), tmp_path / "other", always)()
    assert always.names == ["teach", "teach-beside", "codec", "encode", "model", "decoder-1", "decoder-2", "decoder-3"]
    log = (tmp_path / "other/lease.log").read_text()
    assert "encode failed with status 1" in log and "decoder-2 does without predict-1" in log
    assert "predict-1 is left out, because it needs encode" in log


def test_a_decoder_without_predicted_latents_is_trained_to_its_end_on_others(tmp_path: Path) -> None:
    commands = Commands(lambda phase, attempt: int(phase.name == "predict-1"))
    assert not Run(a_lease(tmp_path), tmp_path / "out", commands)()
    begun = dict(commands.begun)
    assert option(begun["decoder-2"], "--predicted") is None
    assert option(begun["decoder-3"], "--predicted") == str(tmp_path / "build/predicted-2")
    assert "decoder-2 does without predict-1" in (tmp_path / "out/lease.log").read_text()


def test_a_phase_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "OVERTIME", 0.05)
    stuck = Commands(lambda phase, attempt: None if phase.name == "model" else 0)
    assert not Run(a_lease(tmp_path, seconds=0.1), tmp_path / "out", stuck)()
    assert stuck.killed == ["model"] and "decoder-3" in stuck.names and "predict-2" not in stuck.names


def test_a_process_writes_its_log_and_fails_with_its_status(tmp_path: Path) -> None:
    for arguments, status in ((("phonemes", "--help"), 0), (("phonemes", "text", "out", "--unknown"), 2)):
        assert start_process(arguments, 0, tmp_path / "log").wait(60) == status
    log = (tmp_path / "log").read_text()
    assert "--every-voice" in log and "--unknown" in log


def test_a_process_ends_with_its_parent_on_its_gpu(tmp_path: Path) -> None:
    """The parent is killed, so that it cannot end its commands."""
    os.mkfifo(tmp_path / "text")  # the command waits for its text
    code = "import sys, time\nfrom pathlib import Path\nfrom tools.voice.processes import start_process\n"
    code += (
        "process = start_process(sys.argv[2:], 3, Path(sys.argv[1]))\nprint(process.pid, flush=True)\nprocess.wait()"
    )
    arguments = (tmp_path / "log", "phonemes", tmp_path / "text", tmp_path / "lines.jsonl")
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "4,5,6,7"},
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        own = Path("/proc", parent.stdout.readline().strip())
        wait_for(lambda: b"phonemes" in (own / "cmdline").read_bytes())
        assert b"CUDA_VISIBLE_DEVICES=7\0" in (own / "environ").read_bytes()
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not own.exists() or "State:\tZ" in (own / "status").read_text())


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# -------------------------------------------------------------- the backups


def test_a_backup_has_parts_of_limited_size_and_the_newest_complete_one_wins(tmp_path: Path) -> None:
    folder, file = tmp_path / "backups", tmp_path / "weights"
    for number, content in ((1, b"one" * 9000), (2, b"two" * 9000)):
        file.write_bytes(content)
        assert backups.save([file], folder, part=10_000) == number
    parts = sorted(folder.iterdir())
    assert [path.name for path in parts] == [f"checkpoint-002.tar.{part}-of-{len(parts)}" for part in (1, 2, 3, 4)]
    assert max(path.stat().st_size for path in parts) <= 10_000
    (folder / "checkpoint-003.tar.1-of-2").write_bytes(b"the machine was lost here")
    assert backups.restore(folder, tmp_path / "restored") == 2
    assert (tmp_path / "restored/weights").read_bytes() == b"two" * 9000
    parts[1].unlink()
    with pytest.raises(ValueError, match="no complete"):
        backups.restore(folder, tmp_path / "restored")
