"""Point 1: the Python client, from its wheel, forgives nothing silently."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from support.clients.newcomer import SECONDS, Served
from support.servers.ports import free_port

LIMIT = 4300  # characters of a stream that wait to be spoken
BOOK = "The old man went down to the sea. " * 135
SAVED = """
import io
from pathlib import Path
import voxcpm_client
from voxcpm_client import Client

assert voxcpm_client.__version__[0].isdigit()
assert Path(voxcpm_client.__file__).with_name("py.typed").exists()
with Client("{target}") as client:
    speech = client.say("The children played in the snow until dark.", voice="miles")
    memory = io.BytesIO()
    speech.save(memory)
    speech.save(Path("path.wav"))
    with open("file.wav", "wb") as file:
        speech.save(file)
    assert memory.getvalue() == Path("path.wav").read_bytes() == Path("file.wav").read_bytes()
    floats = speech.samples.astype("float32") / 32768
    voice = client.add_reference((floats, speech.sample_rate))
    print(len(client.say("Hello.", voice=voice.id).samples))
"""
RESTART = """
import sys
from voxcpm_client import Client

with Client("{target}", retry_seconds=300) as client:
    client.model_info()
    print("ready", flush=True)
    sys.stdin.readline()
    print(len(client.say("Hello.").samples))
"""
SHUTDOWN = """
import sys
from voxcpm_client import Client, SpeechError

with Client("{target}") as client:
    try:
        for chunk in client.speak("The old man went down to the sea. " * 100, timeout=None):
            if chunk.sequence == 1:
                print("speaking", flush=True)
    except SpeechError as error:
        print(error.code, error.message.replace("\\n", " "))
"""


def type_error(client, server, call: str) -> str:
    program = f"from voxcpm_client import Client\nwith Client('{server}') as client: client.{call}"
    done = client.run("python", "-c", program)
    assert done.code == 1
    last = done.errors.splitlines()[-1]
    assert last.startswith("TypeError: "), done.errors
    return last


def test_an_unknown_option_is_an_error_with_the_nearest_name(client, server):
    assert "did you mean 'voice'" in type_error(client, server, "say('Hello.', vioce='miles')")


@pytest.mark.parametrize("call", ["say(None)", "speak(None)"])
def test_none_is_no_text(client, server, call):
    assert "None" in type_error(client, server, call)


def test_recordings_are_arrays_and_results_are_saved_anywhere(client, server):
    done = client.run("python", "-c", SAVED.format(target=server))
    assert done.code == 0, done.errors
    assert int(done.output) > 1000


def test_type_checkers_accept_the_client(client, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("from voxcpm_client import Client, Speech\n\nspeech: Speech = Client('a:1').say('Hello.')\n")
    python = client.venv / "bin/python"
    for checker in (("mypy", "--strict", "--python-executable", python), ("pyright", "--pythonpath", python)):
        command = [sys.executable, "-m", *checker, program]
        done = subprocess.run(command, cwd=tmp_path, env=client.env, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def small(serve) -> Iterator[Served]:
    """A server with small limits that ends without waiting for its streams."""
    limits = (f"--limits.max-text-chars={LIMIT}", "--limits.max-segment-chars=100")
    with serve(*limits, "--drain-seconds=0", "--drain-delay-seconds=0") as served:
        yield served


def test_a_book_is_spoken_from_a_pipe(client, small):
    """It is longer than the server lets wait. Of every sentence only the beginning is spoken, with few timesteps."""
    assert len(BOOK) > LIMIT + 200
    command = ("voxcpm-grpc", "say", "--target", small.address, "--max-steps=2", "--timesteps=4")
    done = client.run(*command, "--out=book.wav", "--json", text=BOOK)
    assert done.code == 0, done.errors
    assert json.loads(done.output)["summary"]["input_chars"] == len(BOOK)


def test_a_call_is_retried_until_the_server_is_back(client, serve):
    port = free_port()
    with serve(port=port) as first:
        program = RESTART.format(target=first.address)
        command = [client.venv / "bin/python", "-c", program]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=client.env, **pipes) as caller:
            assert caller.stdout and caller.stdout.readline() == "ready\n"
            first.stop()
            with serve(port=port, wait=False):
                output, _ = caller.communicate("\n", SECONDS)
    assert int(output) > 1000


def test_a_server_that_shuts_down_in_mid_stream_says_so(client, small):
    """The last test of this server."""
    command = [client.venv / "bin/python", "-c", SHUTDOWN.format(target=small.address)]
    with subprocess.Popen(command, env=client.env, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout and caller.stdout.readline() == "speaking\n"
        small.process.terminate()
        error = caller.communicate(timeout=SECONDS)[0]
    assert re.match(r"UNAVAILABLE|ABORTED", error)
    assert "shutting down" in error
    assert "no server answers" not in error


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """The address of a server with TLS, and the certificate of another authority than its own."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("server", "other"):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / f"{name}.key"]
        names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost", "-out", folder / f"{name}.pem"]
        subprocess.run(["openssl", "req", "-x509", *key, *names], check=True, capture_output=True)
    pair = ((folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes())
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    yield f"localhost:{port}", folder / "other.pem"
    server.stop(0).wait(SECONDS)


WRONG = {
    "scheme": ("--target http://{server}", "leave out http://, write {server}"),
    "port": ("--target 127.0.0.1", "the port is missing, write 127.0.0.1:50051"),
    "TLS on this side only": ("--target {server} --tls", "TLS"),
    "TLS on that side only": ("--target {encrypted}", "TLS"),
    "CA": ("--target {encrypted} --ca {other}", "the certificate of {encrypted} is not trusted"),
    "nobody there": ("--target 127.0.0.1:{free}", "no server answers at 127.0.0.1:{free}"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_connection_says_in_one_line_what_is_wrong(client, server, encrypted, case):
    places = {"server": server, "encrypted": encrypted[0], "other": encrypted[1], "free": free_port()}
    flags, message = (text.format(**places) for text in WRONG[case])
    done = client.run("voxcpm-grpc", "say", "Hello.", *flags.split())
    assert done.code == 1
    assert message in done.errors
    assert done.errors.count("\n") == 1, done.errors
