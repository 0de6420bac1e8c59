"""A server with two fronts whose engines are killed and drained in the middle of streams of all kinds.

Each stream is the one that it is without that: its audio, its positions, its segments and its summary.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from support.clients.unread_streams import CLOSE, SMALL_WINDOW
from support.engines import goldens
from support.engines.checkpoints import TINY
from support.servers import uploads
from support.servers.running import ADMIN, Server, serving
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc, tts_pb2_grpc
from voxcpm_grpc.v1 import tts_pb2 as pb

ROUNDS = 3
TOLERANCE = 1e-4
STEPS = 30
ADAPTER = goldens.GOLDENS / "lora_attention" / "adapter"
F32 = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE)
RECORDING = pb.EncodedAudio(data=uploads.recording())
PROMPT = pb.Conditioning(inline_prompt=pb.InlinePrompt(audio=RECORDING, transcript="Words. "))
REFERENCE = pb.Conditioning(inline_reference=pb.InlineReference(audio=RECORDING))
CARRY = pb.Segmentation(continuity=pb.CONTINUITY_MODE_CARRY)
INDEPENDENT = pb.Segmentation(continuity=pb.CONTINUITY_MODE_INDEPENDENT)
TEXT = "One sentence is spoken. Another one follows it. And this is the last of them."


def config(steps: int = STEPS, lora: str = "", **fields: Any) -> pb.GenerateRequest:
    sampling = pb.Sampling(seed=7, inference_timesteps=4, min_steps=steps, max_steps=steps)
    turn = pb.TurnConfig(sampling=sampling, lora=lora)
    return pb.GenerateRequest(config=pb.GenerateConfig(turn=turn, output=F32, **fields))


def said(*texts: str) -> list[pb.GenerateRequest]:
    return [pb.GenerateRequest(text=text) for text in texts]


PAUSED = [*said("Before."), pb.GenerateRequest(pause=pb.Pause(milliseconds=300)), *said("After.")]
KINDS = {
    "plain": [config(), *said(TEXT)],
    "prompt": [config(conditioning=PROMPT), *said("Words after a recording.")],
    "reference": [config(conditioning=REFERENCE), *said(TEXT)],
    "adapter": [config(lora="anna"), *said("With an adapter.")],
    "carry": [config(12, segmentation=CARRY), *said(TEXT)],
    "carried prompt": [config(12, segmentation=CARRY, conditioning=PROMPT), *said(TEXT)],
    "independent": [config(segmentation=INDEPENDENT), *said(TEXT)],
    "close": [config(segmentation=CARRY, pacing=CLOSE), *said("A short lead. And a pause of the reader.")],
    "batch": [config(priority=pb.PRIORITY_BATCH), *said(TEXT)],
    "pause": [config(), *PAUSED],
}


@dataclass
class Speech:
    """All that a stream gives."""

    audio: list[np.ndarray] = field(default_factory=list)
    events: list[tuple[int, int, int, int]] = field(default_factory=list)
    summary: pb.StreamSummary = field(default_factory=pb.StreamSummary)

    def add(self, message: pb.AudioChunk) -> None:
        assert message.offset_samples == sum(map(len, self.audio))
        self.audio.append(np.frombuffer(message.audio, "<f4"))
        for event in message.segment_events:
            self.events.append((event.kind, event.turn_index, event.segment_index, event.at_samples))
        if message.HasField("summary"):
            self.summary = message.summary

    def check(self, expected: Speech) -> None:
        np.testing.assert_allclose(np.concatenate(self.audio), np.concatenate(expected.audio), atol=TOLERANCE, rtol=0)
        assert self.events == expected.events
        for name in ("finish_reason", "total_samples", "turns", "segments", "input_chars", "generated_steps"):
            assert getattr(self.summary, name) == getattr(expected.summary, name), name


@dataclass
class Run:
    """The server, what it says undisturbed, and its admin service."""

    server: Server
    admin: Any
    expected: dict[str, Speech] = field(default_factory=dict)

    def engine(self, name: str) -> psutil.Process:
        """The process of an engine that is ready."""

        def ready() -> bool:
            return all(one.state == admin_pb2.ENGINE_STATE_READY for one in self.states())

        wait_until(ready, HANG_SECONDS)
        [pid] = [one.process_id for one in self.states() if one.name == name]
        return psutil.Process(pid)

    def states(self) -> Any:
        """The engines, as a front knows them; another front if the first one is lost."""
        while True:
            try:
                return self.admin.GetStats(admin_pb2.GetStatsRequest(), wait_for_ready=True).stats.engines
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise

    @contextlib.contextmanager
    def stub(self) -> Iterator[Any]:
        """A connection of its own, to one of the fronts."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), *SMALL_WINDOW]
        with grpc.insecure_channel(self.server.address, options) as channel:
            yield tts_pb2_grpc.VoxCPMServiceStub(channel)

    def requests(self) -> dict[str, int]:
        """The requests of each engine."""
        return {one.name: one.requests_running + one.requests_waiting + one.requests_resting for one in self.states()}

    def speak(self, kind: str, started: list[str], rest: Callable[[], object] = lambda: None) -> Speech:
        """A whole stream, whose reader rests after the first audio."""
        speech = Speech()
        with self.stub() as stub:
            for message in stub.Generate(iter(KINDS[kind]), timeout=HANG_SECONDS):
                if message.audio and not any(map(len, speech.audio)):
                    started.append(kind)
                    rest()
                speech.add(message)
        return speech


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    flags = ("--devices", "cpu:2", "--fronts", "2", "--admin.listen", "127.0.0.1:0", "--lora", f"anna={ADAPTER}")
    restarts = ("--supervision.restart-seconds", "0.5", "--limits.max-queue-seconds", f"{HANG_SECONDS:g}")
    folder: Path = tmp_path_factory.mktemp("voices")
    with serving(folder, *flags, *restarts, model=TINY) as server:
        found = re.search(ADMIN, server.log)
        assert found
        with grpc.insecure_channel(found[1]) as channel:
            run = Run(server, admin_pb2_grpc.VoxCPMAdminServiceStub(channel))
            for kind in KINDS:
                run.expected[kind] = run.speak(kind, [])
            yield run
        assert "code=INTERNAL" not in server.log and "code=ABORTED" not in server.log


def end(run: Run, how: str, name: str, process: psutil.Process) -> None:
    match how:
        case "kill":
            process.kill()
        case "signal":
            process.send_signal(signal.SIGUSR1)
        case "drain":
            run.admin.DrainEngine(admin_pb2.DrainEngineRequest(engine=name), timeout=HANG_SECONDS)
            run.admin.StartEngine(admin_pb2.StartEngineRequest(engine=name))


@pytest.mark.parametrize("number", range(ROUNDS))
def test_streams_of_all_kinds_go_on(running: Run, number: int) -> None:
    """The engine that ends has a stream that is not read until then, so that at least one goes on."""
    how, ended = ("kill", "drain", "signal")[number % 3], Event()
    wait_until(lambda: not any(running.requests().values()))
    processes = {name: running.engine(name) for name in running.requests()}
    started: list[str] = []
    with ThreadPoolExecutor(len(KINDS)) as threads, contextlib.ExitStack() as stack:
        stack.callback(ended.set)
        speeches = {"close": threads.submit(running.speak, "close", started, lambda: ended.wait(NEVER_SECONDS))}
        wait_until(lambda: any(running.requests().values()))
        [name] = [name for name, count in running.requests().items() if count]
        for index, kind in enumerate(KINDS):
            if kind not in speeches:
                speeches[kind] = threads.submit(running.speak, kind, started, partial(time.sleep, 0.2 * (index % 3)))
        wait_until(lambda: len(started) > 1 + number % (len(KINDS) - 1))
        end(running, how, name, processes[name])
        ended.set()
        for kind, speech in speeches.items():
            speech.result().check(running.expected[kind])
    assert sum(speech.result().summary.continuations for speech in speeches.values()) > 0


def test_an_interrupt_arrives_while_no_engine_is_ready(running: Run) -> None:
    def speak(lose: bool) -> np.ndarray:
        """The audio of the turn after an interrupt."""
        later: list[np.ndarray] = []
        lost: list[bool] = []

        def messages() -> Iterator[pb.GenerateRequest]:
            yield from (config(400, conditioning=REFERENCE), *said("This goes on until somebody interrupts it."))
            wait_until(lambda: bool(lost), HANG_SECONDS)
            yield pb.GenerateRequest(interrupt=pb.Interrupt(tag="now"))
            yield from said("This is what follows.")

        with running.stub() as stub:
            for message in stub.Generate(messages(), timeout=HANG_SECONDS):
                if message.audio and not lost:
                    if lose:
                        for name in ("engine cpu:0", "engine cpu:1"):
                            running.engine(name)
                        for one in running.states():
                            psutil.Process(one.process_id).kill()
                    lost.append(True)
                if message.turn_index == 1 and message.audio:
                    later.append(np.frombuffer(message.audio, "<f4"))
        return np.concatenate(later)

    np.testing.assert_allclose(speak(lose=True)[: 5 * 7680], speak(lose=False)[: 5 * 7680], atol=TOLERANCE, rtol=0)


def test_a_front_that_dies_loses_its_own_streams_alone(running: Run) -> None:
    """Its requests leave the engines, and those that have gone on from another one do, too.

    `test_lost_fronts.py` judges that without the timeout of a silent front.
    """
    for name in ("engine cpu:0", "engine cpu:1"):
        running.engine(name)
    fronts = [
        child
        for child in psutil.Process(running.server.process.pid).children()
        if child.cmdline()[0].startswith("voxcpm-grpc front 0")
    ]
    with contextlib.ExitStack() as stack:
        calls = []
        for _ in range(8):
            stub = stack.enter_context(running.stub())
            calls.append(stub.Generate(iter([config(400, pacing=CLOSE), *said(TEXT)]), timeout=HANG_SECONDS))
            for message in calls[-1]:
                if message.audio:
                    break
        running.engine("engine cpu:0").kill()
        wait_until(lambda: all(one.state == admin_pb2.ENGINE_STATE_READY for one in running.states()), HANG_SECONDS)
        [front] = fronts
        front.kill()
        codes = []
        for call in calls:
            with contextlib.suppress(grpc.RpcError):
                for _ in range(20):
                    next(call)
            codes.append(call.code() if call.done() else None)
            call.cancel()
        assert set(codes) <= {None, grpc.StatusCode.UNAVAILABLE} and None in codes

        wait_until(lambda: not any(running.requests().values()), HANG_SECONDS)
