"""Train the bundled voice within a lease of GPUs, unattended.

    python -m tools.voice.lease BACKUPS --seconds 1600                        # a first training
    python -m tools.voice.lease BACKUPS --seconds 1600 --start CHECKPOINT     # continues a checkpoint
    python -m tools.voice.lease BACKUPS --seconds 1600 --start CHECKPOINT --decoder-only      # its decoder alone

The build folder has lines.jsonl; tools.voice.schedule has the phases. After each phase, and every few minutes, the
state of the training is written to BACKUPS as a checkpoint in parts of at most 15 MB, so that a machine can be lost at
any time. BACKUPS of one lease can be the --start of the next one. BACKUPS/lease.log has a line for each phase, and the
build folder has their output in `logs` and at the end the checkpoint in `checkpoint`.

With --decoder-only the model stays as it is, and BACKUPS do not hold it: unpack them over a copy of the checkpoint.

The same command goes on after an interruption, which does not count: the seconds are those in which it runs. Phases
that are done are not repeated. If the machine has less time left by then, give fewer --seconds.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.voice import backups
from tools.voice.export import export
from tools.voice.processes import Process, start_process
from tools.voice.quick_codec import CONFIG, WEIGHTS
from tools.voice.schedule import STYLES, TEACHERS, Command, Lease, Phase, Planner
from tools.voice.start import DISCRIMINATORS, HELPERS, READER, save_helpers

MODEL = "model.safetensors"  # a checkpoint's file with the weights of its model
TRIES = 2  # of a command that fails
OVERTIME = 120.0  # seconds after its end at which a phase is stopped: a start and the last save take some
BACKUP_EVERY = 240.0  # seconds at most, while phases run
NOTE_EVERY = 5.0  # seconds between two notes of the time that is spent
POLL = 0.2  # seconds


Start = Callable[[Phase, Command], Process]


@dataclass(frozen=True, slots=True)
class Note:
    """The state of a lease on disk: the seconds that are spent, and the phases that are done."""

    spent: float = 0.0
    done: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Note":
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        return cls(found["spent"], tuple(found["done"]))

    def write(self, path: Path) -> None:
        path.with_suffix(".tmp").write_text(json.dumps({"spent": round(self.spent, 1), "done": self.done}) + "\n")
        path.with_suffix(".tmp").replace(path)


def write_checkpoint(lease: Lease, out: Path) -> bool:
    """Write what is trained so far, and return True if there is something: a codec, and a model if there is one.

    Raises ValueError if a weight is not finite in half precision.
    """
    codecs = [folder for folder in (lease.decoder, lease.encoder) if is_codec(folder)]
    models = [lease.model] if (lease.model / "averaged.safetensors").exists() else []
    if lease.start is not None and (lease.start / MODEL).exists():
        models.append(lease.start)
    if not codecs:
        return False
    out.mkdir(parents=True)
    if models:
        export(codecs[0], models[0], out)
    else:
        for name in (CONFIG, WEIGHTS):
            shutil.copyfile(codecs[0] / name, out / name)
    return True


def is_codec(folder: Path) -> bool:
    """True if a folder has a codec that is complete, or a checkpoint's."""
    return (folder / WEIGHTS).exists() and any((folder / name).exists() for name in (CONFIG, "config.json"))


def back_up(lease: Lease, folder: Path) -> int | None:
    """Write the checkpoint of now to build/checkpoint and to the backups. Returns the number of the backup, if any.

    The backups lack the model's weights if only the decoder is trained.
    """
    new, old, helpers = (lease.build / name for name in ("checkpoint.tmp", "checkpoint", HELPERS))
    shutil.rmtree(new, ignore_errors=True)
    if not write_checkpoint(lease, new):
        return None
    shutil.rmtree(old, ignore_errors=True)
    new.replace(old)
    same = {MODEL} if lease.decoder_only else set[str]()
    files = sorted(path for path in old.iterdir() if path.is_file() and path.name not in same)
    if save_helpers({READER: lease.model, DISCRIMINATORS: lease.decoder}, lease.start, helpers):
        files.append(helpers)
    return backups.save(files, folder)


@dataclass(slots=True)
class Running:
    """A phase that has begun: its commands with their processes, and when it began."""

    phase: Phase
    processes: list[tuple[Command, Process]]
    begun: float

    def kill(self) -> None:
        for _, process in self.processes:
            if process.poll() is None:
                process.kill()


class Run:
    """A lease that runs. start: starts a command. folder: of the backups."""

    def __init__(self, lease: Lease, folder: Path, start: Start) -> None:
        self.lease, self.folder, self.start = lease, folder, start
        folder.mkdir(parents=True, exist_ok=True)
        self.path = lease.build / "lease.json"
        note = Note.read(self.path)
        self.zero = time.time() - note.spent
        self.done, self.failed = list(note.done), list[str]()
        phases = Planner(lease, self.zero).phases()
        self.waiting = [phase for phase in phases if phase.name not in self.done]
        self.running: list[Running] = []
        self.tries = Counter[Command]()
        self.noted = self.backed_up = time.time()

    @property
    def spent(self) -> float:
        return time.time() - self.zero

    def log(self, line: str) -> None:
        line = f"{self.spent:5.0f} s  {line}"
        print(line, flush=True)
        with (self.folder / "lease.log").open("a") as file:
            file.write(line + "\n")

    def __call__(self) -> bool:
        """Run all phases that are not done. Returns True if none failed."""
        self.log(f"begins after {len(self.done)} phases: {', '.join(phase.name for phase in self.waiting)}")
        try:
            while self.waiting or self.running:
                self.begin()
                for each in list(self.running):
                    self.look(each)
                if time.time() - self.backed_up > BACKUP_EVERY:
                    self.back_up()
                if time.time() - self.noted > NOTE_EVERY:
                    self.note()
                time.sleep(POLL)
        finally:
            for each in self.running:
                each.kill()
            self.note()
        self.log(f"ends; failed: {', '.join(self.failed) or 'none'}")
        return not self.failed

    def begin(self) -> None:
        """Begin the phases that have what they need. Those that need one that failed do without it or are left out."""
        for phase in list(self.waiting):
            lost = sorted(set(phase.needs) & set(self.failed))
            if lost and not phase.otherwise:
                self.waiting.remove(phase)
                self.failed.append(phase.name)
                self.log(f"{phase.name} is left out, because it needs {', '.join(lost)}")
            elif set(phase.needs) <= {*self.done, *self.failed}:
                self.waiting.remove(phase)
                each = Running(phase, [], time.time())
                self.running.append(each)
                if lost:
                    self.log(f"{phase.name} does without {', '.join(lost)}")
                for command in phase.otherwise if lost else phase.commands:
                    self.try_command(each, command)

    def try_command(self, each: Running, command: Command) -> None:
        self.tries[command] += 1
        each.processes.append((command, self.start(each.phase, command)))

    def look(self, each: Running) -> None:
        """End a phase whose commands have ended, or which is late. A command that failed is tried again."""
        name, until = each.phase.name, each.phase.until
        if until is not None and time.time() > max(until, each.begun) + OVERTIME:
            return self.fail(each, f"is {OVERTIME:.0f} s late")
        for entry in list(each.processes):
            command, status = entry[0], entry[1].poll()
            if status is None or status == 0:
                continue
            if self.tries[command] == TRIES:
                return self.fail(each, f"failed with status {status}")
            self.log(f"{name}: a command failed with status {status}, and is tried again")
            each.processes.remove(entry)
            self.try_command(each, command)
        if all(process.poll() == 0 for _, process in each.processes):
            self.running.remove(each)
            self.done.append(name)
            self.log(f"{name}: {time.time() - each.begun:.0f} s")
            self.note()
            self.back_up()
        return None

    def fail(self, each: Running, reason: str) -> None:
        each.kill()
        self.running.remove(each)
        self.failed.append(each.phase.name)
        self.log(f"{each.phase.name} {reason}; see {self.lease.build / 'logs' / each.phase.name}.log")

    def note(self) -> None:
        self.noted = time.time()
        Note(self.spent, tuple(self.done)).write(self.path)

    def back_up(self) -> None:
        self.backed_up = time.time()
        try:
            number = back_up(self.lease, self.folder)
        except (OSError, ValueError) as error:
            self.log(f"no backup: {error}")
        else:
            if number is not None:
                self.log(f"backup {number}")


def start_folder(given: Path | None, build: Path) -> Path | None:
    """The checkpoint to start with. A folder of backups is unpacked into build/start first."""
    if given is None or not backups.holds_parts(given):
        return given
    out = build / "start"
    if not out.exists():
        temporary = build / "start.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        backups.restore(given, temporary)
        temporary.replace(out)
    return out


def gpus_there() -> int:
    """The GPUs of this machine; 1 if it has none."""
    import torch

    return max(1, torch.cuda.device_count())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backups", type=Path, help="folder for the backups and the log")
    parser.add_argument("--seconds", type=float, default=1600, help="length of the lease")
    parser.add_argument("--build", type=Path, default=Path("build/voice"), help="folder with lines.jsonl")
    parser.add_argument("--start", type=Path, help="checkpoint, or backups, to continue")
    parser.add_argument("--decoder-only", action="store_true", help="with --start, train nothing but its decoder")
    parser.add_argument("--styles", type=Path, default=STYLES, help="folder of the teacher's voices")
    parser.add_argument("--gpus", type=int, help="default: all")
    parser.add_argument("--teachers", type=int, default=TEACHERS, help="processes of the teacher on each GPU")
    parser.add_argument("--toy", action="store_true", help="small networks, for tests")
    args = parser.parse_args()
    if not (args.build / "lines.jsonl").exists():
        parser.error(f"{args.build / 'lines.jsonl'} is missing; write it with tools.voice.phonemes")
    start_at = start_folder(args.start, args.build)
    if args.decoder_only and not (start_at and (start_at / MODEL).exists()):
        parser.error(f"--decoder-only needs a --start with {MODEL}")
    lease = Lease(
        seconds=args.seconds, gpus=args.gpus or gpus_there(), build=args.build, start=start_at, styles=args.styles,
        teachers=args.teachers, decoder_only=args.decoder_only, toy=args.toy,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # ends the commands, too
    (args.build / "logs").mkdir(exist_ok=True)

    def start(phase: Phase, command: Command) -> Process:
        return start_process(command.arguments, command.gpu, args.build / "logs" / f"{phase.name}.log")

    return int(not Run(lease, args.backups, start)())


if __name__ == "__main__":
    sys.exit(main())
