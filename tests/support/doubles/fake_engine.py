"""An engine without a model, whose audio is a count of its chunks. It tests the way of a call to an engine and back."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from support.servers.waiting import NEVER_SECONDS, wait_until

from voxcpm_grpc import lora_files
from voxcpm_grpc.abilities import LatentShape
from voxcpm_grpc.engine.scheduling.adapters import Adapters, Lora
from voxcpm_grpc.errors import (
    Exhausted,
    Internal,
    InvalidRequest,
    StartupError,
    Unavailable,
    VoxCPMError,
)
from voxcpm_grpc.events import Admitted, AudioChunk, CodecChunk, Event, Finished, FinishReason, History
from voxcpm_grpc.ipc.messages import CallEvent, Report
from voxcpm_grpc.models.voxcpm.config.abilities import ENDS, abilities, sampling_options
from voxcpm_grpc.request import Adapter, Conditioning, ModelInfo, Request, Role, Sampling, Stats

INFO = ModelInfo(
    name="fake",
    architecture="fake",
    fingerprint="0" * 32,
    input_sample_rate=16000,
    output_sample_rate=48000,
    samples_per_step=960,
    input_samples_per_step=320,
    max_model_len=1024,
    max_slots=64,
    options=sampling_options((4, 10)),
    ends=ENDS,
    abilities=abilities(references=True, styles=True),
    latents=LatentShape(frames=4, dim=8),
    tracks=("latents",),
    device="cpu",
    dtype="float32",
    codec_dtype="float32",
)


BANKS = 16  # for adapters


def request(id: str, steps: int, text: str = "Hello.", adapter: Adapter | None = None) -> Request:
    """All samples of chunk i of its audio are i, plus the number of its LoRA adapter."""
    sampling = Sampling(max_steps=steps, min_steps=0)
    return Request(id=id, text=text, sampling=sampling, conditioning=Conditioning(adapter=adapter))


def write_lora(directory: Path, number: float = 1000.0, then: str = "") -> Path:
    """Write the files of an adapter for fake engines, which add `number` to all samples; returns the directory.

    `then`: "after PATH" lets the engine read until that file exists, with PATH.reading meanwhile; "fault" lets it fail.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / lora_files.CONFIG).write_text(then)
    (directory / lora_files.WEIGHTS).write_text(f"{number}")
    return directory


def carries(report: Report, kind: type) -> bool:
    """True if a report is an event of this kind."""
    return isinstance(report, CallEvent) and isinstance(report.body, kind)


@dataclass
class _Stream:
    request: Request
    limit: int
    lora: Lora | None = None
    made: int = 0
    admitted: bool = False

    @property
    def paused(self) -> bool:
        return self.made >= self.limit

    @property
    def runnable(self) -> bool:
        return (self.lora is None or self.lora.is_read) and not (self.admitted and self.paused)


@dataclass
class FakeEngine:
    """An engine whose requests fail in the way that their text names.

    The texts: "refuse" and "fault" raise in `add`; "fail" and "elsewhere" end with Internal and Unavailable; "crash"
    raises in a step; "exit" ends the process, and "exit-at N" does with chunk N; "hang" never ends a step; "linger"
    takes 2.5 s for a step; "after PATH" makes no audio until that file exists; "then PATH" creates the file with its
    last audio. Codec jobs stop after one piece until the file `pieces_after` exists. Adapters have the files of
    `write_lora`; it takes none if `loras_taken` is false.
    """

    info: ModelInfo = INFO
    step_seconds: float = 0.0005
    slowest_step: float = 0.0
    pieces_after: Path | None = None
    loras_taken: bool = True
    adapters: Adapters = field(init=False)
    streams: dict[str, _Stream] = field(default_factory=dict)
    jobs: dict[str, list[np.ndarray]] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)  # codec jobs
    steps: int = 0
    chunks: int = 0
    cancelled: int = 0
    busy_checks: int = 0  # by the loop of the process

    def __post_init__(self) -> None:
        self.adapters = Adapters(BANKS, self._read_lora)

    @property
    def busy(self) -> bool:
        self.busy_checks += 1
        return bool(self.jobs) or self.adapters.pending or any(stream.runnable for stream in self.streams.values())

    def warm_up(self) -> float:
        return self.slowest_step

    def add(self, request: Request, limit: int, history: History | None = None) -> None:
        if request.text == "refuse":
            raise Exhausted("the queue is full", retry_after=2.5)
        adapter = request.conditioning.adapter
        lora, made = adapter and self.adapters.want(request.id, adapter), 0 if history is None else history.chunks
        self.streams[request.id] = _Stream(request, limit, lora, made)
        if request.text == "fault":
            raise RuntimeError("a secret of the implementation")

    def check(self, request: Request) -> None:
        if request.text == "refuse":
            raise InvalidRequest("the text is refused")

    def allow(self, id: str, limit: int) -> None:
        if stream := self.streams.get(id):
            stream.limit = max(stream.limit, limit)

    def append(self, id: str, text: str, *, last: bool) -> None:
        if stream := self.streams.get(id):
            stream.request = replace(stream.request, text=stream.request.text + text)

    def paused(self, id: str) -> bool:
        return id in self.streams and self.streams[id].paused

    def needs_text(self, id: str) -> bool:
        return False

    def cancel(self, id: str) -> None:
        self.jobs.pop(id, None)
        self.adapters.cancel(id)
        self.cancelled += id in self.streams
        self._end(id)

    def encode(self, id: str, waveform: np.ndarray, role: Role) -> None:
        per_patch = self.info.input_samples_per_step
        missing = -len(waveform) % per_patch
        padded = np.pad(waveform, (missing, 0) if role is Role.PROMPT else (0, missing))
        means = padded.reshape(-1, 4, per_patch // 4).mean(axis=2, keepdims=True)
        self.jobs[id] = np.array_split(np.repeat(means, 8, axis=2).astype(np.float32), 3)

    def decode(self, id: str, content: Mapping[str, np.ndarray]) -> None:
        self.jobs[id] = [np.full(self.info.samples_per_step, patch.mean(), np.float32) for patch in content["latents"]]

    def _end(self, id: str) -> None:
        stream = self.streams.pop(id, None)
        if stream and stream.lora:
            self.adapters.done(id, stream.lora)

    def _read_lora(self, files: Path) -> float:
        if not self.loras_taken:
            raise InvalidRequest("it does not fit this model")
        match (files / lora_files.CONFIG).read_text().split(" ", 1):
            case ["fault"]:
                raise RuntimeError("a secret of the implementation")
            case ["after", path]:
                Path(f"{path}.reading").touch()
                while not Path(path).exists():
                    time.sleep(0.005)
        return float((files / lora_files.WEIGHTS).read_text())

    def collect(self) -> None:
        pass

    def step(self) -> list[tuple[str, Event | CodecChunk | VoxCPMError]]:
        time.sleep(self.step_seconds)
        self.steps += 1
        results: list[tuple[str, Event | CodecChunk | VoxCPMError]] = []
        for id, error in self.adapters.collect():
            results.append((id, error or CodecChunk(np.zeros(0, np.float32), last=True)))
            self._end(id)
        for id, pieces in list(self.jobs.items()):
            if id in self.started and self.pieces_after and not self.pieces_after.exists():
                continue
            self.started.add(id)
            if pieces:
                results.append((id, CodecChunk(pieces.pop(0), last=False, name="latents")))
            else:
                results.append((id, CodecChunk(np.zeros(0, np.float32), last=True)))
                del self.jobs[id]
        for id, stream in list(self.streams.items()):
            if not stream.runnable:
                continue
            if not stream.admitted:
                active = sum(other.admitted and not other.paused for other in self.streams.values())
                if active >= self.info.max_slots:
                    continue
                stream.admitted = True
                results.append((id, Admitted(queue_seconds=0.0, prompt_tokens=3, cached_tokens=0)))
            elif not stream.paused:
                results += self._speak(id, stream)
        return results

    def stats(self) -> Stats:
        return Stats(
            running=len(self.streams),
            slots_used=len(self.streams),
            slots_total=self.info.max_slots,
            pages_total=64,
            page_size=64,
            steps=self.steps,
            chunks=self.chunks,
            cancelled=self.cancelled,
        )

    def _speak(self, id: str, stream: _Stream) -> list[tuple[str, Event | CodecChunk | VoxCPMError]]:
        match stream.request.text.split(" ", 1):
            case ["crash"]:
                raise RuntimeError("a kernel failed")
            case ["exit"]:
                os._exit(3)
            case ["exit-at", chunk] if stream.made == int(chunk):
                os._exit(3)
            case ["hang"]:
                time.sleep(NEVER_SECONDS)
            case ["linger"] if not stream.made:
                time.sleep(2.5)
            case ["after", path] if not Path(path).exists():
                return []
            case ["then", path] if stream.made + 1 == stream.request.sampling.max_steps:
                Path(path).touch()
            case ["elsewhere"]:
                self._end(id)
                return [(id, Unavailable("not here"))]
            case ["fail"]:
                self._end(id)
                return [(id, Internal())]
        added = stream.lora.weights if stream.lora else 0.0
        samples = np.full(self.info.samples_per_step, stream.made + added, np.float32)
        stream.made += 1
        self.chunks += 1
        results: list[tuple[str, Event | CodecChunk | VoxCPMError]] = [
            (id, AudioChunk(index=stream.made - 1, samples=samples, steps=stream.made.to_bytes(4)))
        ]
        if stream.made == stream.request.sampling.max_steps:
            self._end(id)
            reason = FinishReason.MAX_STEPS
            results.append((id, Finished(reason=reason, steps=stream.made, engine_seconds=0.1)))
        return results


@dataclass(frozen=True)
class MakeFake:
    """Makes a fake engine; picklable, as EngineProcess requires."""

    step_seconds: float = 0.0005
    slowest_step: float = 0.0
    name: str = INFO.name
    fingerprint: str = INFO.fingerprint
    device: str = INFO.device
    slots: int = INFO.max_slots
    queue: int | None = None
    pieces_after: Path | None = None
    before: Callable[[], object] | None = None
    loras_taken: bool = True
    loras: tuple[str, ...] = ()  # of the settings

    def __call__(self) -> FakeEngine:
        logging.getLogger(__name__).debug("made in process %d", os.getpid())
        if self.before:
            self.before()
        info = replace(
            INFO,
            name=self.name,
            fingerprint=self.fingerprint,
            device=self.device,
            max_slots=self.slots,
            max_queue=self.queue,
        )
        engine = FakeEngine(info, self.step_seconds, self.slowest_step, self.pieces_after, self.loras_taken)
        for adapter in lora_files.adapters_of(self.loras):
            engine.adapters.read_now(adapter)
        return engine


def refuse_to_start() -> None:
    raise StartupError("model.safetensors is missing; download the checkpoint again")


def start_with_a_bug() -> None:
    raise ZeroDivisionError("division by zero")


def die_early() -> None:
    os._exit(7)


@dataclass(frozen=True)
class NotePid:
    """Creates a file in a folder, named after the id of this process."""

    folder: Path

    def __call__(self) -> None:
        (self.folder / str(os.getpid())).touch()


@dataclass(frozen=True)
class TerminateInThread:
    """Starts a thread that sends itself a SIGTERM as soon as the file exists."""

    file: Path

    def __call__(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        wait_until(self.file.exists)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


@dataclass(frozen=True)
class LoadForever(NotePid):
    """As NotePid, and never becomes ready."""

    def __call__(self) -> None:
        super().__call__()
        time.sleep(NEVER_SECONDS)


@dataclass(frozen=True)
class CompileForever(LoadForever):
    """As LoadForever, with a thread and a process that compile. The id of that process is the name of a file, too."""

    def __call__(self) -> None:
        ThreadPoolExecutor().submit(time.sleep, NEVER_SECONDS)
        compiler = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({NEVER_SECONDS})"])
        (self.folder / str(compiler.pid)).touch()
        super().__call__()
