"""The computer of a newcomer: a copy of the checkout, new environments, and servers that run in them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.clients.newcomer import ROOT, Newcomer, Served, readme
from support.servers.ports import free_port
from support.servers.waiting import wait_until

PORT = 50051  # the README calls it
# As a person does who reads what the server prints before typing the next command.
SERVE = "voxcpm-grpc serve &"
# No compiler works for later starts beside the tests; those of the folder `compilers` would fail.
SERVE_AND_WAIT = """VOXCPM_ENGINE__COMPILE=off voxcpm-grpc serve > serve.log 2> serve.err &
echo $! > serve.pid
until grep -q "listening on" serve.log; do kill -0 $!; sleep 0.5; done"""
FOREIGN = (
    *("VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"),
    *("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH"),
)
DEBIAN = ("jq", "sox", "ffmpeg")
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "ld", "nvcc", "ptxas", "cargo")  # pip asks rustc's version
RUN = '#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {program} "$@"\n'
REFUSE = '#!/bin/sh\necho "$0" >> {log}\nexit 1\n'


@pytest.fixture(scope="session")
def checkout() -> Iterator[Path]:
    """The files that git would check out, with the changes that are not committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    with tempfile.TemporaryDirectory(prefix="first-hour-") as home:  # gigabytes, which pytest would keep
        folder = Path(home) / "checkout"
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        yield folder


@pytest.fixture(scope="session")
def newcomer(checkout: Path) -> Newcomer:
    folder = checkout.parent
    log = folder / "compilers.log"
    log.write_text("")
    refused = programs(folder / "compilers", {name: REFUSE.format(log=log) for name in COMPILERS})
    tools = programs(folder / "tools", unpacked_programs(Path(os.environ["SYSTEM_TEST_DEBIAN"])))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "venv/bin/python"]
    subprocess.run([*pip, "install", "-q", "--no-compile", "pip"], check=True)  # Python's own computes twice as long
    env = {name: text for name, text in os.environ.items() if name not in FOREIGN and not name.startswith("VOXCPM_")}
    path = env["PATH"].split(os.pathsep)
    of_suite = [one for one in path if one.startswith(str(ROOT))]  # grpcurl, buf: behind everything else
    rest = [one for one in path if one not in of_suite]
    env["PATH"] = os.pathsep.join([str(folder / "venv/bin"), str(refused), str(tools), *rest, *of_suite])
    (folder / "home").mkdir()
    cache = Path.home() / ".cache/pip"
    env |= {"HOME": str(folder / "home"), "PIP_CACHE_DIR": str(cache), "PIP_QUIET": "1", "COLUMNS": "100"}
    env["PIP_NO_COMPILE"] = "0"  # which pip takes for --no-compile: most modules are never imported
    return Newcomer(checkout, folder / "venv", env, log)


def programs(folder: Path, scripts: Mapping[str, str]) -> Path:
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return folder


def unpacked_programs(debian: Path) -> dict[str, str]:
    """Scripts that run the programs of the suite's Debian packages, each with their libraries."""
    libraries = os.pathsep.join(sorted({str(path.parent) for path in debian.rglob("lib*.so*")}))
    there = {name: debian / "usr/bin" / name for name in DEBIAN}
    return {name: RUN.format(libraries=libraries, program=path) for name, path in there.items() if path.exists()}


@pytest.fixture(scope="session")
def torch_installed(newcomer: Newcomer) -> None:
    """Without a GPU the README advises a build of PyTorch for CPUs; the Makefile names the version."""
    [version] = re.findall(r"^TORCH_VERSION \?= (\S+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    index = os.environ.get("TORCH_INDEX")
    newcomer.shell(f"pip install --no-compile {f'--index-url {index}' if index else ''} torch=={version}")


@pytest.fixture(scope="session")
def server(newcomer: Newcomer, torch_installed: None) -> Iterator[str]:
    """The address of a server after the README's commands that install the package, start it and speak."""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", PORT)), f"port {PORT}, which the README uses, is taken on this host"
    script = readme("", "voxcpm-grpc say")
    assert SERVE in script
    try:
        newcomer.shell(script.replace(SERVE, SERVE_AND_WAIT))
        yield f"127.0.0.1:{PORT}"
    finally:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int((newcomer.checkout / "serve.pid").read_text())
            os.kill(pid, signal.SIGINT)
            wait_until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.fixture(scope="session")
def serve(newcomer: Newcomer, server: str, tmp_path_factory) -> Callable[..., AbstractContextManager[Served]]:
    """Starts another server with flags. It listens on a free port, or on `port`."""

    @contextlib.contextmanager
    def start(*flags: str, port: int = 0, wait: bool = True) -> Iterator[Served]:
        folder = tmp_path_factory.mktemp("serve")
        output, errors = folder / "output", folder / "errors"
        port = port or free_port()
        command = [newcomer.venv / "bin/voxcpm-grpc", "serve", "--listen", f"127.0.0.1:{port}", "--engine.compile=off"]
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen([*command, *flags], cwd=folder, env=newcomer.env, stdout=out, stderr=err)
        served = Served(f"127.0.0.1:{port}", process, output, errors)
        try:
            if wait:
                wait_until(lambda: "listening on" in output.read_text() or process.poll() is not None)
                assert process.poll() is None, errors.read_text()
            yield served
        finally:
            served.stop()

    return start


@pytest.fixture(scope="session")
def client(newcomer: Newcomer, server: str) -> Newcomer:
    """Another environment, which has the client's wheel and nothing else, in a folder without the checkout."""
    home = newcomer.checkout.parent
    newcomer.shell(
        f"""
        pip wheel --no-deps --wheel-dir {home}/dist .
        python -m venv --without-pip {home}/client
        pip --python {home}/client/bin/python install {home}/dist/voxcpm_grpc-*.whl
        """
    )
    folder = home / "elsewhere"
    folder.mkdir()
    env = {**newcomer.env, "PATH": f"{home}/client/bin:{newcomer.env['PATH']}"}
    return Newcomer(folder, home / "client", env, newcomer.compilers)
