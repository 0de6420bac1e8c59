"""A Ray cluster of several nodes on this machine: one without CPUs for the front, and one CPU on each of the others.

It lives in a process of its own, for Ray forks, which a process where gRPC has run must not.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

SPAWN = multiprocessing.get_context("spawn")
START_SECONDS = 200  # several nodes, one after the other
STORE_BYTES = 80 << 20


class RayNodes:
    """The nodes with a CPU, numbered from 0 in the order in which they came."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self.address: str = self._answer()

    def add(self, count: int = 1) -> None:
        self._ask("add", count)

    def kill(self, number: int) -> None:
        """With all that runs there at the same moment, as when its power fails."""
        self._ask("kill", number)

    def _ask(self, what: str, number: int) -> None:
        self._line.send((what, number))
        assert self._answer() == what

    def _answer(self):
        assert self._line.poll(START_SECONDS), "Ray does not answer"
        return self._line.recv()


@contextlib.contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_keep, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield RayNodes(ours)
    finally:
        ours.close()
        process.join(60)
        process.kill()
        process.join()


def _keep(line: Connection) -> None:
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)  # for engines made by what stands in this folder
    folder = tempfile.mkdtemp(prefix="ray-")  # short, for sockets lie in it
    os.environ["RAY_TMPDIR"] = folder  # where Ray writes the address of the cluster, in a folder that must exist
    (Path(folder) / "ray").mkdir()
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": STORE_BYTES}
    head = {"num_cpus": 0, "include_dashboard": False, **store}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    line.send(cluster.address)
    nodes = []
    with contextlib.suppress(EOFError):
        while True:
            what, number = line.recv()
            match what:
                case "add":
                    last = len(nodes) + number - 1  # waited for, and the others are about as old
                    while len(nodes) <= last:
                        nodes.append(cluster.add_node(wait=len(nodes) == last, num_cpus=1, **store))
                case "kill":
                    for info in nodes[number].all_processes["raylet"]:
                        raylet = psutil.Process(info.process.pid)
                        for process in (raylet, *raylet.children(recursive=True)):
                            process.kill()
                    cluster.remove_node(nodes[number], allow_graceful=False)
            line.send(what)
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
