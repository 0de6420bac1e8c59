"""A real server, with an engine in a process of its own and two fronts, serves a family that is unlike VoxCPM."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.engines.toy import checkpoint
from support.engines.toy_engines import TEXT, toy_engine
from support.engines.toy_family import RATE, expected
from support.servers.running import Server, serving
from support.servers.waiting import wait_until

from voxcpm_client import Client, FailedPrecondition, InvalidArgument
from voxcpm_grpc.request import Request, Sampling

TESTS = Path(__file__).parents[1]
PLAIN: dict[str, Any] = {"format": "pcm_f32le", "trim_leading_silence": 0, "segmentation": "manual"}
FRONTS = {"front 0", "front 1"}


@contextmanager
def toy_server(folder: Path, *, fronts: int = 2) -> Iterator[Server]:
    """A server whose processes know the family, with its voices in a folder."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text("from support.engines.toy import register\nregister()\n")
    (folder / "model").mkdir(exist_ok=True)
    path = os.pathsep.join([str(folder / "site"), str(TESTS), os.environ.get("PYTHONPATH", "")])
    flags = ("--fronts", str(fronts), "--devices", "cpu")
    model, environment = checkpoint(folder / "model"), {"PYTHONPATH": path}
    with serving(folder / "voices", *flags, model=model, family=(), environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with toy_server(folder) as started:
        yield started


def spoken(server: Server, **options: Any) -> np.ndarray:
    """The speech on a new connection, which the system assigns to a front."""
    with Client(server.address, timeout=300) as client:
        given: Any = {**PLAIN, "seed": 4, **options}
        return client.say(TEXT, **given).samples


def wanted(**sampling: Any) -> np.ndarray:
    info = toy_engine(slots=1).info
    return expected(Request(id="a", text=TEXT, sampling=Sampling(**{"seed": 4, **sampling})), info.completed).audio


def test_both_fronts_give_what_plain_python_gives(server):
    given = {"timesteps": 2, "temperature": 0.5, "min_steps": 20}
    audio = wanted(inference_timesteps=2, temperature=0.5, min_steps=20)

    def both() -> bool:
        assert np.array_equal(spoken(server, **given), audio)
        return set(re.findall(r" (front \d) \S+ rpc id=\S+ method=Generate code=OK", server.log)) == FRONTS

    wait_until(both)
    assert np.array_equal(spoken(server), wanted())


def test_text_is_spoken_while_it_arrives(server):
    heard: list[np.ndarray] = []

    def words() -> Iterator[str]:
        for count, word in enumerate(TEXT.split()):
            if count > 2:
                wait_until(lambda: heard)  # speech of the first two words
            yield word + " "

    with Client(server.address, timeout=300) as client:
        given: Any = {**PLAIN, "seed": 4, "segmentation": "tokens", "min_steps": 20}
        for chunk in client.speak(words(), **given):
            heard.append(chunk.samples)
    assert np.array_equal(np.concatenate(heard), wanted(min_steps=20))


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"style": "sad"}, FailedPrecondition, "has no style; leave it out"),
        (
            {"cfg_value": 2.0},
            FailedPrecondition,
            "no cfg_value; its sampling options are inference_timesteps, temperature",
        ),
        ({"timesteps": 3}, FailedPrecondition, "inference_timesteps is 3 and this server runs 1, 2"),
        ({"temperature": 2.5}, InvalidArgument, "temperature is 2.5; it must be from 0 to 2"),
    ],
)
def test_fronts_refuse_by_the_data_of_the_model(server, options, kind, said):
    with pytest.raises(kind, match=said):
        spoken(server, **options)


def test_another_server_speaks_with_the_stored_voices(server, folder):
    recording = (np.arange(8 * 400) % 97 / 100).astype(np.float32), RATE
    with Client(server.address, timeout=300) as client:
        voice = client.add_prompt(recording, "one two three").id
    audio = spoken(server, voice=voice, min_steps=20)
    assert not np.array_equal(audio, wanted(min_steps=20))
    with toy_server(folder, fronts=1) as other:
        assert np.array_equal(spoken(other, voice=voice, min_steps=20), audio)
        assert not other.fault()


def test_an_engine_that_is_lost_is_replaced_by_one_that_speaks_alike(server):
    assert not server.fault()
    [engine] = [
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "engine" in " ".join(child.cmdline()) or "engine" in child.name()
    ]
    engine.send_signal(signal.SIGKILL)
    assert np.array_equal(spoken(server, max_queue_time=300), wanted())
