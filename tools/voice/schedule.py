"""The phases of a training within a lease of GPUs: their commands, on which GPU they run, and when they end.

A first training has the phase `codec`. Afterwards the encoder stays as it is, and a training that continues a
checkpoint begins with its encoder. The decoder is trained three times in one folder, with one learning rate that falls
until its end: on the latents of the encoder, then also on those that the model predicts after half of its time, and on
those of the finished model. A lease for the decoder alone has only the last of these, on what the model of its
checkpoint predicts. Phases that need each other wait for each other; all others run at the same time.
"""

from dataclasses import dataclass
from pathlib import Path

from tools.voice.export import TEMPERATURE

WHOLE = 1600  # seconds of a lease to which ENDS refer
STYLES, TEACHERS = Path("kokoro-js/voices"), 4  # defaults of a Lease
RECORDINGS = ("held_out", "presets")  # lines that the teacher speaks for the evaluation, if their files are there


@dataclass(frozen=True, slots=True)
class Ends:
    """The seconds of a lease of WHOLE seconds at which phases end. Another lease has the same shares."""

    teach: int
    codec: int  # of a first training
    halfway: int  # of the model's time: the model predicts
    model: int
    decoder: int  # the rest is for the last backup


FIRST = Ends(teach=185, codec=490, halfway=900, model=1290, decoder=1575)
LATER = Ends(teach=185, codec=185, halfway=720, model=1290, decoder=1575)
TEACH_BESIDE = 260  # as `teach`, of the teachers that have a GPU without the codec in a first training
DECODER_RATE = 2.5e-4  # highest learning rate of a decoder that discriminators have trained already
CONTEXT = 6  # latents before a crop of the decoder: alone, the first of its latents would decode to other audio
PREDICTED = {2: 0.5, 3: 0.75}  # share of the crops from predicted latents, of each part of the decoder's training


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease and its training.

    build: folder with lines.jsonl, for everything else. start: checkpoint to continue. styles: the teacher's voices.
    teachers: processes of the teacher on a GPU. decoder_only: train nothing but the decoder of `start`, for its model.
    toy: small networks, for tests.
    """

    seconds: float
    gpus: int  # 1 also for a CPU
    build: Path
    start: Path | None = None
    styles: Path = STYLES
    teachers: int = TEACHERS
    decoder_only: bool = False
    toy: bool = False

    @property
    def encoder(self) -> Path:
        """The codec whose encoder makes the latents."""
        return self.start or self.build / "encoder"

    @property
    def decoder(self) -> Path:
        """The codec whose decoder is trained."""
        return self.build / "codec"

    @property
    def model(self) -> Path:
        """The model that is trained, or that of the checkpoint if none is."""
        return self.start if self.decoder_only and self.start else self.build / "model"


@dataclass(frozen=True, slots=True)
class Command:
    """A tool of this folder with its arguments, and the number of its GPU."""

    arguments: tuple[str, ...]
    gpu: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Commands that run at the same time, after the phases that they need.

    until: Unix time at which the commands end by themselves, if they are limited by time. otherwise: commands for when
    a phase that is needed has failed; without any, this phase is then left out
    """

    name: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...] = ()
    until: float | None = None
    otherwise: tuple[Command, ...] = ()


class Planner:
    """Makes the phases of a lease. zero: Unix time of its first second."""

    def __init__(self, lease: Lease, zero: float) -> None:
        self.lease, self.zero = lease, zero
        self.ends = FIRST if lease.start is None else LATER
        self.last = lease.gpus - 1

    def at(self, second: int) -> float:
        """The Unix time of a second of a lease of WHOLE seconds."""
        return self.zero + second * self.lease.seconds / WHOLE

    def command(self, gpu: int, tool: str, *arguments: object, toy: tuple[object, ...] = ()) -> Command:
        """toy: more arguments of small networks."""
        more = toy if self.lease.toy else ()
        return Command((tool, *map(str, (*arguments, *more))), gpu)

    def phases(self) -> tuple[Phase, ...]:
        """All phases, in the order of their beginnings."""
        phases = [*self.teaching(), *self.recordings()]
        spoken = tuple(phase.name for phase in phases if phase.name.startswith("teach"))
        if self.lease.start is None:
            phases.append(self.codec())
        encoded = spoken if self.lease.start else (*spoken, "codec")
        latents = self.lease.build / "latents"
        encode = self.command(0, "encode", self.lease.build / "speech", self.lease.encoder, latents)
        phases.append(Phase("encode", (encode,), encoded))
        if self.lease.decoder_only:
            return (
                *phases,
                self.predicting(2, ("encode",), every=1),
                self.decoding(3, ("encode", "predict-2"), self.ends.decoder),
            )
        phases += [
            self.model(encoded),
            self.decoding(1, encoded, self.ends.halfway),
            self.predicting(1, ("encode", "decoder-1"), every=2),
            self.decoding(2, ("decoder-1", "predict-1"), self.ends.model),
            self.predicting(2, ("encode", "model", "decoder-2"), every=1),
            self.decoding(3, ("decoder-2", "predict-2"), self.ends.decoder),
        ]
        return tuple(phases)

    def teaching(self) -> list[Phase]:
        """The teacher's phases: on the GPU that the codec needs next, and longer on the others."""
        lease, count = self.lease, self.lease.teachers * self.lease.gpus
        beside = self.ends.teach if lease.start else TEACH_BESIDE
        groups: dict[tuple[str, float], list[Command]] = {}
        for number in range(1, count + 1):
            gpu = (number - 1) % lease.gpus
            name, until = ("teach", self.ends.teach) if gpu == 0 or lease.start else ("teach-beside", beside)
            command = self.command(
                gpu, "speak", lease.build / "lines.jsonl", lease.build / "speech", "--styles", lease.styles,
                "--share", f"{number}/{count}", "--until", self.at(until), toy=("--toy",),
            )  # fmt: skip
            groups.setdefault((name, self.at(until)), []).append(command)
        return [Phase(name, tuple(commands), until=until) for (name, until), commands in groups.items()]

    def recordings(self) -> list[Phase]:
        """The lines for the evaluation, after the others."""
        lease = self.lease
        commands = [
            self.command(
                self.last, "speak", lease.build / f"{name}.jsonl", lease.build / name, "--styles", lease.styles,
                toy=("--toy",),
            )
            for name in RECORDINGS
            if (lease.build / f"{name}.jsonl").exists()
        ]  # fmt: skip
        return [Phase("recordings", tuple(commands), ("teach",))] if commands else []

    def codec(self) -> Phase:
        until = self.at(self.ends.codec)
        command = self.command(
            0, "train_vae", self.lease.build / "speech", self.lease.encoder, "--until", until,
            "--alone", 1, "--crop", 0.52, toy=("--toy", "--batch", 2),
        )  # fmt: skip
        return Phase("codec", (command,), ("teach",), until)

    def model(self, needs: tuple[str, ...]) -> Phase:
        """The model compiles while the speech is encoded."""
        until, start = self.at(self.ends.model), self.lease.start
        known = start is not None and (start / "model.safetensors").exists()
        command = self.command(
            0, "train_model", self.lease.build / "latents", self.lease.model, "--until", until, "--wait",
            *(("--start", start) if known else ()), toy=("--toy", "--positions", 3840, "--processes", 0),
        )  # fmt: skip
        return Phase("model", (command,), needs, until)

    def decoding(self, number: int, needs: tuple[str, ...], end: int) -> Phase:
        """A phase of the decoder. The first one has no predicted latents, and the others do without if need be.

        The last one ends the training.
        """
        lease = self.lease
        fresh = ("--alone", 0.03) if lease.start is None else ("--alone", 0, "--rate", DECODER_RATE)
        pause = ("--pause", self.at(end)) if end < self.ends.decoder else ()

        def command(*rows: object) -> Command:
            return self.command(
                self.last, "train_vae", lease.build / "speech", lease.decoder, "--start", lease.encoder,
                "--until", self.at(self.ends.decoder), *pause, "--crop", 0.4, "--context", CONTEXT, *fresh, *rows,
                toy=("--toy", "--batch", 2, "--lead", 1),
            )  # fmt: skip

        plain = command("--batch", 16)
        if number == 1:
            return Phase(f"decoder-{number}", (plain,), needs, self.at(end))
        taught = command(
            "--batch", 20, "--predicted", self.predicted(number - 1), "--predicted-share", PREDICTED[number],
            "--latents", lease.build / "latents",
        )  # fmt: skip
        return Phase(f"decoder-{number}", (taught,), needs, self.at(end), otherwise=(plain,))

    def predicting(self, number: int, needs: tuple[str, ...], every: int) -> Phase:
        """every: predict one utterance of so many."""
        lease = self.lease
        commands = [
            self.command(
                gpu, "predict", lease.build / "latents", lease.model, self.predicted(number), "--every", every,
                "--temperature", TEMPERATURE, "--share", f"{gpu + 1}/{lease.gpus}",
                toy=("--positions", 3840, "--timesteps", 4),
            )
            for gpu in range(lease.gpus)
        ]  # fmt: skip
        return Phase(f"predict-{number}", tuple(commands), needs)

    def predicted(self, number: int) -> Path:
        return self.lease.build / f"predicted-{number}"
