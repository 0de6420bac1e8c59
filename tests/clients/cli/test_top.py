"""`voxcpm-grpc top` against an admin service with known statistics."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from click.testing import Result
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from support.clients.commands import cli_runner

from voxcpm_client.cli import main
from voxcpm_grpc.text.characters import CONTROL
from voxcpm_grpc.v1 import admin_pb2 as pb
from voxcpm_grpc.v1 import admin_pb2_grpc, tts_pb2_grpc

ONCE = ("--once", "--interval", "0.1")


def duration(seconds: float) -> Duration:
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made


@dataclass
class FakeAdmin(admin_pb2_grpc.VoxCPMAdminServiceServicer):
    """Answers with statistics in which each call is a second later than the last one."""

    target: str = ""
    calls: list[dict[str, str | bytes]] = field(default_factory=list)  # the metadata of each
    name: str = "engine cuda:0"
    lost_after: int | None = None  # calls
    full_remedy: str = ""
    names: tuple[str, ...] = ()  # of several fronts

    def GetStats(self, request: pb.GetStatsRequest, context: grpc.ServicerContext) -> pb.GetStatsResponse:
        self.calls.append(dict(context.invocation_metadata()))
        number = len(self.calls)
        if self.lost_after is not None and number > self.lost_after:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server is \x1b[31mred\x1b[0m")
        engine = pb.EngineStats(
            name=self.name,
            state=pb.ENGINE_STATE_READY,
            device="cuda:0",
            process_id=4321,
            restarts=2,
            slots_used=6,
            slots_total=8,
            requests_waiting=3,
            pages_used=512,
            pages_total=1024,
            prefix_hit_positions=300,
            prefill_positions=100,
            steps=100 * number,
            step_time=duration(2.5 * number),
            audio_made=duration(4.8 * number),
        )
        front = pb.FrontStats(
            process_id=1234,
            streams=9,
            max_streams=256,
            open_calls={"Generate": 9},
            resident_bytes=123_400_000,
            cpu_time=duration(0.25 * number),
            loop_busy=0.97,
            full_remedy=self.full_remedy,
        )
        recent = pb.RecentStats(
            calls=17, first_audio_p50=duration(0.0432), first_audio_p95=duration(0.1), first_audio_p99=duration(1.5)
        )
        stats = pb.ServerStats(
            version="1.2.3",
            start_time=Timestamp(seconds=1_000_000),
            read_time=Timestamp(seconds=1_003_600 + number),
            state=pb.SERVER_STATE_SERVING,
            model="demo",
            front=front,
            fronts=[
                pb.FrontStats(
                    name=name,
                    process_id=1000 + index,
                    cpu_time=duration(0.25 * number),
                    full_remedy=self.full_remedy if index else "",
                )
                for index, name in enumerate(self.names)
            ],
            engines=[engine],
            recent=recent,
        )
        return pb.GetStatsResponse(stats=stats)


@pytest.fixture
def admin() -> Iterator[FakeAdmin]:
    fake = FakeAdmin()
    server = grpc.server(ThreadPoolExecutor(4))
    admin_pb2_grpc.add_VoxCPMAdminServiceServicer_to_server(fake, server)
    fake.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield fake
    server.stop(None)


def run(*arguments: str, **options: Any) -> Result:
    return cli_runner().invoke(main, ["top", *arguments], **options)


def words(text: str) -> str:
    return " ".join(text.split())


def test_one_page_shows_the_statistics_and_the_rates_between_two_of_them(admin):
    result = run("--target", admin.target, *ONCE)
    assert result.exit_code == 0, result.output
    page = words(result.stdout)
    for shown in (
        "1.2.3 ● serving demo",
        "up 01:00:02",
        "9 of 256",
        "4.8 × real time",
        "43 ms median",
        "p95 100 ms",
        "p99 1.5 s",
        "3 waiting",
        "ended 17/min",
        "cuda:0 ● ready",
        " 6/8 ",
        " 512/1,024 ",
        "25 ms 4.8 × 2 75%",
        "4321",
        "cpu 25%",
        "loop 97%",
        "memory 123.4 MB",
        "open Generate 9",
    ):
        assert shown in page, shown
    assert len(admin.calls) == 2


def test_a_front_that_is_full_shows_the_remedy(admin):
    assert "full" not in run("--target", admin.target, *ONCE).stdout
    admin.full_remedy = "start more than 1 with --fronts \x1b[2J"
    page = words(run("--target", admin.target, *ONCE).stdout)
    assert "this front is full: start more than 1 with --fronts \\x1b[2J" in page


def test_each_of_several_fronts_has_its_own_line_and_says_that_it_is_full(admin):
    admin.names = ("front 0", "front 1")
    page = words(run("--target", admin.target, *ONCE).stdout)
    assert "front 0 process 1000" in page and "front 1 process 1001" in page
    assert page.count("cpu 25%") == 2
    assert "full" not in page
    admin.full_remedy = "start more than 2 with --fronts"
    page = words(run("--target", admin.target, *ONCE).stdout)
    assert "front 1 is full: start more than 2 with --fronts" in page


def test_text_of_the_server_does_not_reach_the_terminal_raw(admin):
    admin.name = "engine \x1b[2J\x9b1m[red]evil"
    result = run("--target", admin.target, *ONCE)
    assert result.exit_code == 0, result.output
    assert "\\x1b[2J\\x9b1m[red]evil" in result.stdout
    assert not CONTROL.search(result.stdout.replace("\n", ""))


def test_the_key_of_the_command_is_sent(admin):
    result = run("--target", admin.target, "--api-key", "voxcpm_0_1", *ONCE)
    assert result.exit_code == 0, result.output
    assert admin.calls[0]["authorization"] == "Bearer voxcpm_0_1"


def test_the_target_has_a_variable_of_its_own(admin):
    result = run(*ONCE, env={"VOXCPM_CLIENT_ADMIN_TARGET": admin.target, "VOXCPM_CLIENT_TARGET": "127.0.0.1:1"})
    assert result.exit_code == 0, result.output


def test_a_port_without_the_admin_service_is_an_error():
    server = grpc.server(ThreadPoolExecutor(1))
    tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(tts_pb2_grpc.VoxCPMServiceServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    result = run("--target", f"127.0.0.1:{port}", *ONCE)
    server.stop(None)
    assert result.exit_code == 1
    assert "--admin.listen" in result.stderr


def test_a_server_that_does_not_answer_is_an_error_at_the_start(admin):
    admin.lost_after = 0
    result = run("--target", admin.target, *ONCE)
    assert result.exit_code == 1
    assert "the server is \\x1b[31mred" in result.stderr


def test_output_that_is_no_terminal_needs_once(admin):
    result = run("--target", admin.target)
    assert result.exit_code == 2
    assert "use --once" in result.stderr


def test_the_error_names_the_missing_library(admin, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    result = run("--target", admin.target, *ONCE)
    assert result.exit_code == 1
    assert "pip install 'voxcpm-grpc[top]'" in result.stderr


def test_it_runs_in_a_terminal_until_ctrl_c_and_survives_a_lost_server(admin):
    admin.lost_after = 3
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "voxcpm_client", "top", "--target", admin.target, "--interval", "0.1"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, env=environment)
    os.close(terminal)
    shown = b""
    try:
        while b"no answer" not in shown:
            shown += os.read(controller, 65536)
        process.send_signal(signal.SIGINT)
        with pytest.raises(OSError):  # its end of the terminal is closed
            while True:
                shown += os.read(controller, 65536)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(controller)
    text = shown.decode(errors="replace")  # the signal may have cut off a character
    assert process.returncode == 0, errors
    assert "real time" in text and "cuda:0" in text
    assert "\\x1b[31mred" in text and "\x1b[31mred" not in text
