"""Point 6: programs in other languages, the contract, and streamed WAV."""

from __future__ import annotations

import re
import wave
from pathlib import Path

import pytest
from support.clients.newcomer import ROOT

PAGE = (ROOT / "docs/other-languages.md").read_text("utf-8")
SAY = 'voxcpm-grpc say "The train arrived ten minutes late." --voice miles --seed 7'
PROTO = "from importlib.resources import files; print(files('voxcpm_grpc.v1') / 'tts.proto')"


@pytest.fixture(scope="module")
def proto(client) -> Path:
    """The proto file of the installed package, at the path that the documentation gives."""
    assert PROTO in PAGE
    return Path(client.run("python", "-c", PROTO).output.strip())


def test_the_packages_of_go_and_java_claim_no_domain(proto):
    packages = re.findall(r'^option (?:go|java)_package = "(.*)";$', proto.read_text("utf-8"), re.MULTILINE)
    assert packages == ["voxcpm_grpc/v1;voxcpmv1", "voxcpm_grpc.v1"]
    assert '--go_opt="M$FILE=' in PAGE


def test_buf_lint_and_breaking_pass_in_a_checkout(newcomer):
    assert newcomer.shell("buf lint && buf breaking --against protos/published.binpb") == ""


def test_the_node_example_of_the_documentation_speaks(client, server, proto):
    (program,) = re.findall(r"```js\n(.*?)```", PAGE, re.DOTALL)
    assert "defaults: true" in program
    (client.checkout / "hello.js").write_text(program, "utf-8")
    (client.checkout / "protos").symlink_to(proto.parents[2])
    assert "voice miles at 24000 Hz" in client.shell("node hello.js")
    with wave.open(str(client.checkout / "hello-node.wav")) as file:
        assert len(file.readframes(10**7)) > 10_000


def test_sox_reads_streamed_wav_to_its_end_without_a_warning(client, server):
    client.shell(f"{SAY} --out said.wav")
    with wave.open(str(client.checkout / "said.wav")) as file:
        expected = file.readframes(file.getnframes())
    client.shell(f"{SAY} --out - | sox -t wav - -t raw sox.raw 2> sox.err")
    assert (client.checkout / "sox.err").read_text() == ""
    assert (client.checkout / "sox.raw").stat().st_size == len(expected) > 10_000


def test_ffmpeg_reads_streamed_wav_to_its_end(client, server):
    client.shell(f"{SAY} --out said.wav; {SAY} --out - | ffmpeg -v warning -i - -f s16le ffmpeg.raw 2> ffmpeg.err")
    said = (client.checkout / "ffmpeg.err").read_text()
    assert "Ignoring maximum wav data size" not in said
    assert "rror" not in said
    assert (client.checkout / "ffmpeg.raw").stat().st_size == (client.checkout / "said.wav").stat().st_size - 44
