"""Programs that fork with a client: multiprocessing, threads that fork, DataLoader, gunicorn --preload."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clients.forking import AFTER, BEFORE, WAYS
from support.servers.ports import free_address
from support.servers.waiting import HANG_SECONDS

PROGRAM = Path(__file__).parents[2] / "support/clients/forking.py"
REFUSED = "UnusableClient: gRPC does not work in this process, because it was forked"
SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
NO_CLIENT = ("nothing", "other library")


def expected(before: str, after: str, support: str) -> str:
    """The beginning of what the child says."""
    if after == "close":
        return "None"
    if "used" in before or (before == "other library" and support == "0"):
        return REFUSED
    if after == "inherited" and "closed" in before:
        return "UnusableClient: the client is closed"
    return "True"


@pytest.mark.parametrize("support", ["", "0", "1"])
@pytest.mark.parametrize("way", WAYS)
def test_no_child_hangs_or_crashes(site, support, way):
    pairs = [pair for pair in itertools.product(BEFORE, AFTER) if pair[0] not in NO_CLIENT or "new" in pair[1]]
    started = ["", "0", "1"].index(support) + 3 * WAYS.index(way)  # each combination gets a part of the pairs
    for before, after in pairs[started::10]:
        variables = {**os.environ, SUPPORT: support} if support else os.environ
        command = [sys.executable, PROGRAM, site.server.address, before, after, way]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=HANG_SECONDS)
        said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
        assert said["child"].startswith(expected(before, after, support)), (before, after, done.stderr)
        assert said["status"] == "0", (before, after, done.stderr)
        assert said.get("parent", "True") == "True", (before, after)


def test_the_processes_of_a_fork_server_have_clients(site):
    command = [sys.executable, PROGRAM, site.server.address, "used", "new", "fork server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stdout.splitlines() == ["child: True", "status: 0", "parent: True"], done.stderr


LOADER = """
import sys
from torch.utils.data import DataLoader, Dataset
from voxcpm_client import Client, UnusableClient

client = Client(sys.argv[1])

class Spoken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return client.say(f"Number {index}.").sample_count

def counts(**options):
    return [int(count) for batch in DataLoader(Spoken(), batch_size=1, num_workers=2, **options) for count in batch]

if __name__ == "__main__":
    print(all(counts(multiprocessing_context="fork")))
    client.health()
    try:
        counts(multiprocessing_context="fork")
    except UnusableClient as error:
        print("UnusableClient" in repr(error))
    print(all(counts(multiprocessing_context="spawn")))
"""


def test_workers_of_a_data_loader_have_clients_or_say_what_to_do(site, tmp_path):
    program = tmp_path / "loader.py"
    program.write_text(LOADER)
    command = [sys.executable, program, site.server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stdout.split() == ["True"] * 3, done.stderr


APP = """
import os
from voxcpm_client import Client, SpeechError

client = Client(os.environ["TTS"])
if os.environ.get("USED"):
    client.health()

def app(environ, start_response):
    try:
        answer = str(client.say("Hello.").sample_count)
    except SpeechError as error:
        answer = f"{type(error).__name__}: {error}"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer.encode()]
"""


@contextmanager
def preloaded(folder: Path, **variables: str) -> Iterator[str]:
    """gunicorn, which imports the program before it forks its workers. Gives what a worker answers."""
    (folder / "app.py").write_text(APP)
    address = free_address()
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", address, "app:app"]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for _ in range(1200):
            try:
                with direct.open(f"http://{address}/", timeout=HANG_SECONDS) as answer:
                    yield answer.read().decode()
                break
            except OSError:  # it does not listen yet
                assert process.poll() is None
                time.sleep(0.1)
        else:
            raise AssertionError("gunicorn does not listen")
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)


def test_a_client_that_is_made_before_gunicorn_forks_works_in_its_workers(site, tmp_path):
    with preloaded(tmp_path, TTS=site.server.address) as answer:
        assert int(answer) > 0


def test_a_client_that_is_used_before_gunicorn_forks_says_what_to_do(site, tmp_path):
    with preloaded(tmp_path, TTS=site.server.address, USED="1") as answer:
        assert answer.startswith(REFUSED)
