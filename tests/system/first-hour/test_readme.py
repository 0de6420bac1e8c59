"""The commands of the README, as written."""

import wave
from pathlib import Path

import pytest
from support.clients.newcomer import readme


def seconds_of(path: Path) -> float:
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()


def test_install_serve_and_say(newcomer, server):
    assert 1 < seconds_of(newcomer.checkout / "snow.wav") < 10


def test_grpcurl(newcomer, server):
    assert '"audio"' in newcomer.shell(readme("", "grpcurl"))


@pytest.mark.parametrize("time", ["first", "second"])
def test_python(newcomer, server, time):
    """The program runs as often as one likes."""
    (newcomer.checkout / "program.py").write_text(readme("python", "Client"))
    chunks = newcomer.shell("python program.py").splitlines()
    assert len(chunks) > 3
    assert chunks[0].startswith("0 (")  # offset, shape of the samples, rate


def test_the_client_installs_from_the_wheel_without_pytorch(client, server):
    client.shell('voxcpm-grpc say "Hello." --out client.wav')
    assert 0.3 < seconds_of(client.checkout / "client.wav") < 5
    assert client.run("python", "-c", "import torch").code == 1
