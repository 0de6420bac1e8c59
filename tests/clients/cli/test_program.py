"""The program as a process: its imports, and its behaviour with signals, pipes and terminals."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
import wave

import numpy as np
import pytest
from support.servers.waiting import HANG_SECONDS, wait_until

PROGRAM = [sys.executable, "-m", "voxcpm_client"]
FORBIDDEN = {"torch", "pydantic", "msgspec", "zmq", "av", "soxr", "huggingface_hub", "voxcpm_server", "sounddevice"}


@pytest.fixture
def start(server, tmp_path):
    """Starts the program against the server, and kills it at the end of the test."""
    started = []

    def start(*arguments, **options):
        environment = {**os.environ, "VOXCPM_CLIENT_TARGET": server.target, "PYTHONUNBUFFERED": ""}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        child = subprocess.Popen([*PROGRAM, *arguments], cwd=tmp_path, env=environment, **{**pipes, **options})
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait(HANG_SECONDS)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


SCRIPT = """
print("imported")
from voxcpm_client.cli import main

if __name__ == "__main__":
    try:
        main(["--help"], standalone_mode=%s)
    except SystemExit:
        pass
    from voxcpm_grpc.helper_process import SPAWN

    process = SPAWN.Process(target=print, args=("started",))
    process.start()
    process.join()
"""


@pytest.mark.parametrize(("standalone", "imports"), [(True, 1), (False, 2)])
def test_the_processes_of_its_script_do_not_import_it(tmp_path, standalone, imports):
    """Another program that calls the command line keeps the usual way of multiprocessing."""
    script = tmp_path / "voxcpm-grpc"
    script.write_text(SCRIPT % standalone)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    lines = done.stdout.splitlines()
    assert (lines.count("imported"), lines.count("started")) == (imports, 1)


LOADED = "import sys, json; {0}; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"


@pytest.mark.parametrize(
    "code",
    [
        "import voxcpm_client",
        "import voxcpm_client.cli as c; c.main(['--help'], standalone_mode=False)",
        "import voxcpm_client.cli as c; c.main(['say', 'Hi.', '--out', 'x.wav'], standalone_mode=False)",
    ],
    ids=["import", "help", "say"],
)
def test_the_client_loads_nothing_of_the_server(server, tmp_path, code):
    environment = {**os.environ, "VOXCPM_CLIENT_TARGET": server.target}
    command = [sys.executable, "-c", LOADED.format(code)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "voxcpm_client" in loaded
    assert not loaded & FORBIDDEN


def test_text_is_spoken_while_it_is_still_being_written(start, server, tmp_path):
    child = start("say", "--out", "-", "--raw")
    for piece in ("One. ", "Zwei ä. "):
        child.stdin.write(piece.encode())
        child.stdin.flush()
        expected = server.samples(piece).tobytes()
        assert child.stdout.read(len(expected)) == expected  # before stdin ends
    child.stdin.write("ü".encode()[:1])  # a character cut in two
    child.stdin.flush()
    time.sleep(0.2)  # so that the program can read it alone
    child.stdin.write("ü".encode()[1:])
    output, errors = child.communicate(timeout=HANG_SECONDS)
    assert output == server.samples("ü").tobytes()
    assert child.returncode == 0
    assert errors.startswith(b"stdout: ")


def test_ctrl_c_cancels_the_call_and_closes_the_file(start, server, tmp_path):
    child = start("say", "--out", "hello.wav")
    child.stdin.write(b"Hello.")
    child.stdin.flush()
    assert server.wait_for_text("Hello.")
    file = tmp_path / "hello.wav"
    wait_until(lambda: file.exists() and file.stat().st_size > 44)
    child.send_signal(signal.SIGINT)
    assert child.wait(HANG_SECONDS) == 130
    assert server.streams[-1].cancelled.wait(HANG_SECONDS)
    assert child.stderr.read() == b""
    with wave.open(str(file)) as wav:
        assert np.array_equal(np.frombuffer(wav.readframes(wav.getnframes()), "<i2"), server.samples("Hello."))


def test_ctrl_c_works_before_the_first_audio(start, server):
    server.hold.clear()
    child = start("say", "Hello.", "--out", "hello.wav")
    assert server.wait_for_calls(1)
    child.send_signal(signal.SIGINT)
    assert child.wait(HANG_SECONDS) == 130
    assert server.streams[-1].cancelled.wait(HANG_SECONDS)


def test_a_closed_output_pipe_ends_the_program_without_a_traceback(start, server):
    child = start("say", "--out", "-")
    child.stdout.close()
    child.stdin.write(b"Hello. " * 2000)
    child.stdin.close()
    assert child.wait(HANG_SECONDS) == 1
    assert b"Traceback" not in child.stderr.read()


def test_progress_is_one_line_on_a_terminal_that_is_removed_at_the_end(start, server):
    terminal, theirs = pty.openpty()
    child = start("say", "Hello.", "--out", "hello.wav", stderr=theirs)
    os.close(theirs)
    assert child.wait(HANG_SECONDS) == 0
    shown = os.read(terminal, 4096).decode()
    os.close(terminal)
    assert "s of audio, the first after" in shown
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")


def test_say_without_text_on_a_terminal_is_wrong_usage(start, server):
    terminal, theirs = pty.openpty()
    child = start("say", stdin=theirs)
    os.close(theirs)
    assert child.wait(HANG_SECONDS) == 2
    os.close(terminal)
    assert b"there is no text" in child.stderr.read()


@pytest.mark.parametrize("command", [("say", "Hello."), ("demo",)])
def test_audio_is_never_written_to_a_terminal(start, server, command):
    terminal, theirs = pty.openpty()
    child = start(*command, "--out", "-", stdout=theirs)
    os.close(theirs)
    assert child.wait(HANG_SECONDS) == 2
    assert b"write a file with --out FILE.wav, or pipe it to a player" in child.stderr.read()
    with pytest.raises(OSError):  # the end of what the program has written
        os.read(terminal, 1)
    os.close(terminal)
    assert not server.calls


@pytest.fixture(scope="module")
def completing(tmp_path_factory):
    """A folder with the program, which records the packages that it imports, and with its script for bash."""
    folder = tmp_path_factory.mktemp("completing")
    program = folder / "voxcpm-grpc"
    program.write_text(
        f"#!{sys.executable}\n"
        "import atexit, json, os, pathlib, sys\n"
        "names = lambda: sorted({name.partition('.')[0] for name in sys.modules})\n"
        "atexit.register(lambda: pathlib.Path(os.environ['LOADED']).write_text(json.dumps(names())))\n"
        "from voxcpm_client.cli import main\n"
        "main(prog_name='voxcpm-grpc')\n"
    )
    program.chmod(0o755)
    made = subprocess.run(
        [program],
        env={**os.environ, "_VOXCPM_GRPC_COMPLETE": "bash_source", "LOADED": str(folder / "loaded.json")},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    (folder / "completion.bash").write_text(made.stdout)
    return folder


@pytest.fixture
def complete(completing, tmp_path):
    """Completes words with bash as a user does, and returns the suggestions and the packages that were imported."""
    loaded = tmp_path / "loaded.json"
    script = (
        'source completion.bash; COMP_WORDS=(voxcpm-grpc "$@"); COMP_CWORD=$#; '
        '_voxcpm_grpc_completion voxcpm-grpc; printf "%s\\n" "${COMPREPLY[@]}"'
    )

    def run(*words: str) -> tuple[list[str], set[str]]:
        done = subprocess.run(
            ["bash", "-c", script, "bash", *words],
            cwd=completing,
            env={**os.environ, "PATH": f"{completing}:{os.environ['PATH']}", "LOADED": str(loaded)},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=True,
        )
        return done.stdout.split(), set(json.loads(loaded.read_text()))

    return run


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s"], {"say", "serve"}),
        (["say", "--cont"], {"--continuity"}),
        (["serve", "--engine.max-s"], {"--engine.max-slots"}),
        (["serve", "--print"], {"--print-config"}),
        (["serve", "--model", "demo", "--log-level", ""], {"debug", "info", "warning", "error"}),
        (["serve", "--engine.graphs", "--pool", "r"], {"ray"}),
        (["serve", "--engine.graphs", "f"], {"false"}),
    ],
)
def test_bash_completes_commands_and_flags_without_the_engine(complete, words, expected):
    found, loaded = complete(*words)
    assert set(found) == expected
    assert not loaded & {"torch", "voxcpm_server", "av", "zmq"}
