"""Count the functions and classes that one Generate call passes through in a server, by package.

    python tools/call_census.py
    python tools/call_census.py --root DIR     # another checkout, in this environment

A server with the tiny model runs on the CPU, with one front and one engine. The second of two equal calls counts: all
functions of the project that run in any process meanwhile, and the classes that a method is of. Comprehensions, lambdas
and generated code do not count.

As `sitecustomize.py` on the path of the server's processes, this file records their calls.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TREE, FOLDER = "CALL_CENSUS_TREE", "CALL_CENSUS_FOLDER"  # variables of the server's processes
RECORDING = "recording"  # a file of FOLDER that exists while calls count
POLL_SECONDS = 0.02
SETTLE_SECONDS = 1.0  # until all processes have noticed a change of RECORDING
TEXT = "One is here. Two is here."
PACKAGES = ("voxcpm_grpc/", "server/")
GENERATED = "voxcpm_grpc/v1/"


class Function(NamedTuple):
    """A function that has run: its file below the tree, its qualified name and its line."""

    file: str
    name: str
    line: int

    @property
    def counts(self) -> bool:
        """True for a function of the library or the server that is no part of another one and not generated."""
        part, generated = self.name.endswith(">"), self.file.startswith(GENERATED)
        return self.file.startswith(PACKAGES) and not (part or generated)

    @property
    def package(self) -> str:
        """The package with its folder, such as voxcpm_grpc/engine."""
        folders = self.file.removeprefix("server/").split("/")[:-1]
        return "/".join(folders[:2])

    @property
    def owner(self) -> tuple[str, str] | None:
        """The class of a method, by its file and name; None for other functions."""
        name, _, _ = self.name.rpartition(".")
        return None if not name or name.endswith("<locals>") else (self.file, name)


def report(functions: Iterable[Function]) -> Iterator[str]:
    """The lines of the table: the sums, then each package with its functions and classes."""
    counted = {one for one in functions if one.counts}
    owners = {one.owner: one.package for one in counted if one.owner is not None}
    files = {one.file for one in counted}
    yield f"{len(counted)} functions, {len(owners)} classes, {len(files)} files"
    classes = Counter(owners.values())
    packages = Counter(one.package for one in counted)
    for package in sorted(packages, key=lambda one: (-packages[one], one)):
        yield f"{packages[package]:5} {classes[package]:4}  {package}"


def record(tree: str, folder: Path) -> None:
    """Record the functions of this process in all its threads, whenever RECORDING exists, and write them at its end."""
    seen: set[Function] = set()
    recording = False

    def on_event(frame: object, event: str, _: object) -> None:
        code = getattr(frame, "f_code", None)
        if event == "call" and recording and code is not None and code.co_filename.startswith(tree):
            seen.add(Function(code.co_filename.removeprefix(tree), code.co_qualname, code.co_firstlineno))

    def poll() -> None:
        nonlocal recording
        while True:
            wanted = (folder / RECORDING).exists()
            if recording and not wanted:
                recording = False
                (folder / f"{os.getpid()}.json").write_text(json.dumps(sorted(seen)))
            recording = wanted
            time.sleep(POLL_SECONDS)

    threading.Thread(target=poll, daemon=True).start()
    threading.setprofile(on_event)
    sys.setprofile(on_event)


@contextmanager
def served(root: Path, folder: Path) -> Iterator[str]:
    """Run a server of the checkout `root` whose processes record into `folder`; yield its address."""
    shutil.copy(__file__, folder / "sitecustomize.py")
    path = os.pathsep.join(map(str, (folder, root, root / "server", root / "clients" / "python")))
    environment = os.environ | {"PYTHONPATH": path, TREE: f"{root}{os.sep}", FOLDER: str(folder)}
    flags = ("--listen", "127.0.0.1:0", "--devices", "cpu", "--fronts", "1", "--log-level", "warning")
    places = ("--model", str(root / "tests/checkpoints/tiny"), "--voices.url", str(folder / "voices"))
    command = [sys.executable, "-m", "voxcpm_client", "serve", *flags, *places]
    with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            ready = next((line for line in server.stdout if line.startswith("listening on ")), None)
            if ready is None:
                raise SystemExit("the server did not start; its messages are above")
            yield ready.split()[2]
        finally:
            server.terminate()


def census(root: Path) -> set[Function]:
    """The functions that the second of two calls passes through."""
    from voxcpm_client import Client

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with served(root, folder) as address, Client(address) as client:
            client.say(TEXT, seed=1, max_steps=8)
            (folder / RECORDING).touch()
            time.sleep(SETTLE_SECONDS)
            client.say(TEXT, seed=1, max_steps=8)
            (folder / RECORDING).unlink()
            time.sleep(SETTLE_SECONDS)
        files = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return {Function(*one) for found in files for one in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--list", action="store_true", help="also print the functions")
    options = parser.parse_args()
    functions = census(options.root.resolve())
    print(*report(functions), sep="\n")
    if options.list:
        print(*(f"{one.file} {one.name}" for one in sorted(functions) if one.counts), sep="\n")


if __name__ == "__main__":
    main()
elif __name__ == "sitecustomize":
    record(os.environ[TREE], Path(os.environ[FOLDER]))
