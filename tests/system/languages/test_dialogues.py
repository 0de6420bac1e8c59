"""A dialogue with the stubs of each generator: text in pieces, drawn seeds, an interrupt, and the details of errors.

The folder dialogues has a program for each, which prints what it got.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruff.__main__ import find_ruff_bin
from support.clients.client_programs import BUILD_SECONDS, ROOT, SOURCES, Program
from support.engines.tolerances import ALONE
from support.servers.running import Server
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import Client

DIALOGUES = Path(__file__).parent / "dialogues"
PROTOS = ("voxcpm_grpc/v1/tts.proto", "google/rpc/error_details.proto", "google/rpc/status.proto")
PIECES = ("It ra", "ined to", "day.")
LARGEST = str(2**63 - 1)  # seed that a caller may choose
LARGEST_NUMBER = str(2**53 - 1)  # of JavaScript
NUMBERS = "ts-proto"  # with default options, it holds 64 bits in a number of JavaScript
NOT_FOUND = 5


Run = Callable[..., str]  # with the arguments of a program: its output


@dataclass(frozen=True)
class Outcome:
    """The samples that a program got, and the values that it printed."""

    client: str
    samples: np.ndarray
    printed: dict[str, Any]


def run(*command: str | Path, folder: Path, seconds: float = BUILD_SECONDS, **variables: str) -> str:
    env = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def generate(folder: Path, *options: str, path: str = os.environ["PATH"]) -> None:
    """Write stubs to the folder gen."""
    (folder / "gen").mkdir()
    run("protoc", f"-I{ROOT / 'protos'}", f"-I{SOURCES}", *options, *PROTOS, folder=folder, PATH=path)


def copied(name: str) -> Callable[[Path, Callable[[str], Program]], Run]:
    """A program that takes the place of that of `clients`, with its stubs."""

    def prepare(folder: Path, build: Callable[[str], Program]) -> Run:
        (source,) = (DIALOGUES / name).iterdir()
        program = build(name).with_source(source, "dialogue")

        def call(*arguments: str) -> str:
            status, said = program.run(*arguments, out=folder / "printed")
            assert status == 0, said
            return (folder / "printed").read_text("utf-8")

        return call

    return prepare


def typescript(name: str, *options: str, kind: str = "module", largest: str = LARGEST) -> Callable[..., Run]:
    """A program in TypeScript, with stubs of another generator than that of `clients`."""

    def prepare(folder: Path, build: object) -> Run:
        shutil.copy(DIALOGUES / name / "speak.ts", folder)
        shutil.copy(SOURCES / "typescript/tsconfig.json", folder)
        (folder / "package.json").write_text(json.dumps({"type": kind}))
        (folder / "node_modules").symlink_to(Path(os.environ["VIRTUAL_ENV"]) / "node_modules")
        generate(folder, *options)
        run("tsc", folder=folder)
        return lambda *arguments: run(
            "node", "out/speak.js", *arguments, folder=folder, seconds=HANG_SECONDS, LARGEST_SEED=largest
        )

    return prepare


def betterproto2(folder: Path, build: object) -> Run:
    shutil.copy(DIALOGUES / "betterproto2/speak.py", folder)
    path = f"{os.environ['PATH']}{os.pathsep}{Path(find_ruff_bin()).parent}"  # it formats its stubs
    generate(folder, "--python_betterproto2_out=gen", "--python_betterproto2_opt=client_generation=async", path=path)
    return lambda *arguments: run("python", "speak.py", *arguments, folder=folder, seconds=HANG_SECONDS)


def ts_proto(*options: str, largest: str = LARGEST) -> Callable[..., Run]:
    listed = ",".join(("outputServices=grpc-js", "esModuleInterop=true", "importSuffix=.js", *options))
    return typescript("ts-proto", "--ts_proto_out=gen", f"--ts_proto_opt={listed}", largest=largest)


CLIENTS: dict[str, Callable[..., Run]] = {
    **{name: copied(name) for name in ("go", "java", "ruby", "cpp", "typescript")},
    NUMBERS: ts_proto(largest=LARGEST_NUMBER),
    **{f"ts-proto-{kind}": ts_proto(f"forceLong={kind}") for kind in ("long", "string", "bigint")},
    "protobuf-ts": typescript("protobuf-ts", "--ts_out=gen", "--ts_opt=ts_nocheck", kind="commonjs"),
    "betterproto2": betterproto2,
}


@pytest.fixture(scope="session", params=CLIENTS)
def outcome(request, build, server: Server, call, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp(request.param)
    program = CLIENTS[request.param](folder, build)
    printed = program(server.address, call.voice, str(folder / "audio"), *PIECES)
    return Outcome(request.param, np.fromfile(folder / "audio", "<i2"), json.loads(printed))


def test_audio_is_complete(outcome):
    assert outcome.printed["samples"] == len(outcome.samples) > 0


def test_a_seed_that_the_server_draws_is_read_as_other_clients_read_it(outcome, server, call):
    with Client(server.address) as client:
        expected = client.say("".join(PIECES), voice=call.voice, seed=int(outcome.printed["seed"])).samples
    assert len(outcome.samples) == len(expected)
    assert np.abs(outcome.samples.astype(int) - expected).max() <= ALONE


def test_the_largest_seed_of_a_caller_comes_back(outcome):
    assert outcome.printed["largest_seed"] == (LARGEST_NUMBER if outcome.client == NUMBERS else LARGEST)


def test_an_interrupt_is_answered_and_the_stream_goes_on(outcome):
    assert (outcome.printed["tag"], outcome.printed["turns"]) == ("stop", 2)


def test_details_of_errors_are_decoded(outcome):
    assert (outcome.printed["code"], outcome.printed["request_id"]) == (NOT_FOUND, "dialogue")
    assert outcome.printed["field"] == "config.turn.sampling.cfg_value"
