"""The programs of the folder `clients`, exactly as users see them, against the bundled voice."""

from __future__ import annotations

import io
import re
import subprocess
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme
from support.clients.client_programs import BUILD_SECONDS, LANGUAGES, SOURCES, Program
from support.clients.connect_proxy import connect_proxy
from support.engines.tolerances import ALONE
from support.servers.running import FEW_TIMESTEPS, Server, serving
from support.servers.waiting import HANG_SECONDS, wait_until

from tools.voice import judge
from voxcpm_client import Client
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.auth.keys import create

SCREEN = 80  # lines
NO_SUCH_VOICE = {"grpcurl": 64 + 5, "buf": 8 * 5}  # exit statuses; the others end with 1
SEED = 7  # of the programs
RATE = 24000  # of the bundled voice


def samples(path: Path, rate: int = RATE) -> np.ndarray:
    """int16 samples of a WAV file whose length is not in its header."""
    with wave.open(io.BytesIO(path.read_bytes())) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, rate)
        return np.frombuffer(file.readframes(60 * rate), "<i2")


def test_a_program_fits_a_screen():
    sources = {name: SOURCES / name / language.source for name, language in LANGUAGES.items()}
    lengths = {name: len(source.read_text("utf-8").splitlines()) for name, source in sources.items()}
    assert {name: length for name, length in lengths.items() if length > SCREEN} == {}


@pytest.mark.models
def test_a_program_speaks_as_the_python_client(program, server, call, tmp_path):
    with Client(server.address) as client:
        expected = client.say(call.text + "\n", voice=call.voice, seed=SEED)
    status, said = program.run(server.address, call.voice, text=call.text, out=tmp_path / "speech.wav")
    assert status == 0, said
    spoken = samples(tmp_path / "speech.wav", expected.sample_rate)
    assert len(spoken) == len(expected.samples) > 0
    assert np.abs(spoken.astype(int) - expected.samples).max() <= ALONE


def test_text_is_spoken_as_it_arrives_and_the_end_of_the_input_ends_the_stream(program, server, call, tmp_path):
    out = tmp_path / "speech.wav"
    with program.start(server.address, call.voice, out=out) as process:
        assert process.stdin is not None
        process.stdin.write(f"{call.text}\n".encode())
        process.stdin.flush()
        wait_until(lambda: out.stat().st_size > RATE or process.poll() is not None)  # half a second of audio
        assert process.poll() is None  # it waits for more text
        _, said = process.communicate(b"It was dark and cold.\n", timeout=HANG_SECONDS)
    assert process.returncode == 0, said.decode()
    heard = judge.Recognizer().transcribe(judge.heard(samples(out), RATE))
    assert judge.word_errors(f"{call.text} It was dark and cold.", heard).rate <= 0.3, heard


def test_an_error_is_shown_with_its_details(program, server, tmp_path):
    status, said = program.run(server.address, "nobody", text="Hello.", out=tmp_path / "speech.wav")
    assert status == NO_SUCH_VOICE.get(program.name, 1), said
    assert "there is no voice 'nobody'" in said
    assert "RequestInfo" in said
    assert (tmp_path / "speech.wav").read_bytes() == b""
    assert re.search(r"method=Generate code=NOT_FOUND ", server.log)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, Path]]:
    """A server with TLS and API keys, a key, and the file of the authority."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    made.private_key_pem.write_to_path(folder / "key.pem")
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    key = create("tester", folder / "keys.toml")
    flags = ("--tls.cert", folder / "cert.pem", "--tls.key", folder / "key.pem", "--auth.keys", folder / "keys.toml")
    with serving(folder / "voices", *map(str, flags), model="demo", family=FEW_TIMESTEPS) as running:
        yield running, key, folder / "ca.pem"


def test_a_program_sends_its_key_encrypted(program, guarded, call, tmp_path):
    server, key, ca = guarded
    address = f"localhost:{server.address.rsplit(':', 1)[1]}"
    variables = {"VOXCPM_CLIENT_CA": str(ca), "VOXCPM_CLIENT_API_KEY": key}
    status, said = program.run(address, call.voice, text=call.text, out=tmp_path / "speech.wav", **variables)
    assert status == 0, said
    assert len(samples(tmp_path / "speech.wav")) > RATE
    del variables["VOXCPM_CLIENT_API_KEY"]
    status, said = program.run(address, call.voice, text=call.text, out=tmp_path / "refused.wav", **variables)
    assert status != 0
    assert "has no credential" in said


def test_the_program_in_javascript_reaches_this_host_past_a_proxy_of_the_environment(copies, server, call, tmp_path):
    node = Program("node", copies / "clients" / "node")
    with connect_proxy() as proxy:
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), proxy.url)
        status, said = node.run(server.address, call.voice, text=call.text, out=tmp_path / "speech.wav", **proxies)
    assert status == 0, said
    assert not proxy.asked


def test_types_for_typescript_are_made(copies):
    done = subprocess.run(
        ("npm", "run", "types"), cwd=copies / "clients/node", capture_output=True, timeout=BUILD_SECONDS
    )
    assert done.returncode == 0, done.stderr
    made = (copies / "clients/node/types/voxcpm_grpc/v1/AudioChunk.ts").read_text("utf-8")
    assert "'audio': (Buffer);" in made


def test_a_client_that_cannot_half_close_ends_its_stream_with_finish(server, call):
    """The reply ends although the requests never do; other languages have the same message."""
    opened: list[grpc.Call] = []

    def requests() -> Iterator[pb.GenerateRequest]:
        yield pb.GenerateRequest(config=pb.GenerateConfig(conditioning=pb.Conditioning(voice=call.voice)))
        yield pb.GenerateRequest(text=call.text)
        yield pb.GenerateRequest(finish=pb.Finish())
        wait_until(lambda: not opened[0].is_active())

    with grpc.insecure_channel(server.address) as channel:
        stream: Callable = tts_pb2_grpc.VoxCPMServiceStub(channel).Generate
        opened.append(replies := stream(requests(), timeout=HANG_SECONDS))
        chunks = list(replies)
    assert chunks[-1].HasField("summary") and sum(chunk.sample_count for chunk in chunks) > RATE
