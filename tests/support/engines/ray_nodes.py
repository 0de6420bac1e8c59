"""A Ray cluster of several nodes on this machine: one without CPUs for the front, and one CPU on each of the others.

It runs in a process of its own, because Ray forks, which a process that has used gRPC must not do.
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
STARTS = 3  # Ray gives up on a head node that comes up slowly, so a busy host needs more than one try
STORE_BYTES = 80 << 20


class RayNodes:
    """The nodes with a CPU, numbered from 0 in the order in which they were added."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self.address: str = self._answer()

    def add(self, count: int = 1) -> None:
        self._ask("add", count)

    def kill(self, number: int) -> None:
        """Kill a node and all its processes at once, as a power failure does."""
        self._ask("kill", number)

    def _ask(self, what: str, number: int) -> None:
        self._line.send((what, number))
        assert self._answer() == what

    def _answer(self):
        assert self._line.poll(START_SECONDS), "Ray does not answer"
        return self._line.recv()


@contextlib.contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """A cluster with its head node alone. Raises EOFError if it does not start in STARTS tries."""
    for left in reversed(range(STARTS)):
        with _cluster() as line:
            try:
                nodes = RayNodes(line)
            except EOFError:  # the process has ended with what Ray raised, on stderr
                if not left:
                    raise
                continue
            yield nodes
            return


@contextlib.contextmanager
def _cluster() -> Iterator[Connection]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_keep, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(60)
        process.kill()
        process.join()


def _keep(line: Connection) -> None:
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])  # nodes import these modules
    folder = tempfile.mkdtemp(prefix="ray-")  # short, because it holds sockets
    os.environ["RAY_TMPDIR"] = folder  # Ray writes the address of the cluster there, into a folder that must exist
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
                    nodes += [cluster.add_node(wait=False, num_cpus=1, **store) for _ in range(number)]
                    cluster.wait_for_nodes(START_SECONDS)
                case "kill":
                    for info in nodes[number].all_processes["raylet"]:
                        raylet = psutil.Process(info.process.pid)
                        for process in (raylet, *raylet.children(recursive=True)):
                            process.kill()
                    cluster.remove_node(nodes[number], allow_graceful=False)
            line.send(what)
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
