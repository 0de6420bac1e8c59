"""Runs the system tests, in environments under .venv-system.

It prints a line for each suite when it ends, and at the end the output of those that failed. `logs` under .venv-system
keeps outputs and reports, and `seconds.json` the time of each suite and file of tests, beside the seconds of processors
that each suite used, which the load of the host changes less.

    python tools/system_tests.py            # all suites
    python tools/system_tests.py ray fuzz   # these two
    python tools/system_tests.py --changed  # those that judge what changed; all with CI_FULL=1
    python tools/system_tests.py --nightly  # all with all their cases, and suites that repeat others with every model
    python tools/system_tests.py --install --changed  # only the environments of those, for a later run

An environment is a layer over the virtual environment that runs this program: it adds packages from PyPI, npm and
Debian, and changes nothing outside its folder. A suite fails if a tool cannot be installed, if a test fails or is
skipped, or if its time is over.

Two suites more than there are cores run at once, because none keeps a core busy all the time: one of those that mostly
wait, and beside it, at a lower priority, some of the others, those with the highest limit of time first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from system_environments import HOME, ROOT, Environment
from system_suite import Load, Suite
from system_suites import SUITES, called_for

SHOWN_LINES = 60  # of the begin, and of the end, of the output of a suite that failed
INSTALL_SECONDS = 600
TEST_SECONDS = 900  # of a test, unless it has a mark: it may build programs and start servers, beside other suites
BUSY = 3  # a busy host takes so many times the minutes of a suite, at most; one that takes longer hangs
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-rs", "--tb=short", "-o", f"timeout={TEST_SECONDS}")
INSTALLING = threading.Lock()  # package managers lock their lists, and fail if they find them locked
PRINTING = threading.Lock()


class Failed(Exception):
    """A suite that did not pass; the text is the reason, on one line."""


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in vars(self).items() if count) or "no tests"


@dataclass
class Times:
    """The seconds of a suite, and those that it kept processors busy, without the processes that it left."""

    seconds: float = 0.0
    processor_seconds: float = 0.0


# ---- environments


def install(environment: Environment) -> None:
    """Make an environment, unless it is there and of the same packages. Raises Failed with the remedy."""
    folder = environment.folder
    made_of = repr((sys.prefix, environment.requirements, environment))
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text("utf-8") == made_of:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    call("venv", sys.executable, "-m", "venv", "--without-pip", folder)
    below = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"  # its .pth files count, too
    (next((folder / "lib").glob("python*/site-packages")) / "below.pth").write_text(below, "utf-8")
    pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile")
    if environment.requirements:
        call("pip", *pip, *environment.requirements)
    if environment.pypi_alone:
        call("pip", *pip, "--no-deps", *environment.pypi_alone)
    if environment.npm:
        options = ("--no-fund", "--no-audit", "--ignore-scripts", "--no-package-lock", "--loglevel=error")
        call("npm", "npm", "install", "--prefix", folder, *options, *environment.npm)
    if environment.debian:
        unpack(environment)
    stamp.write_text(made_of, "utf-8")


def unpack(environment: Environment) -> None:
    """Unpack Debian's packages, and those they need that this host lacks, into the environment."""
    simulate = ("apt-get", "install", "--simulate", "--no-install-recommends", *environment.debian)
    try:
        plan = call("apt-get", *simulate)
    except Failed:  # the lists may be missing or old
        call("apt-get", "apt-get", "update", "-qq")
        plan = call("apt-get", *simulate)
    packages = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    archives = environment.folder / "archives"
    archives.mkdir()
    if packages:
        call("apt-get", "apt-get", "download", "-qq", *packages, folder=archives)
    for archive in sorted(archives.iterdir()):
        call("dpkg", "dpkg", "-x", archive, environment.folder / "debian")
    shutil.rmtree(archives)
    keep_links_inside(environment.folder / "debian")


def keep_links_inside(folder: Path) -> None:
    """Let links of unpacked packages to files of each other, such as a JDK's to /etc, lead to the unpacked files."""
    for link in [path for path in folder.rglob("*") if path.is_symlink() and path.readlink().is_absolute()]:
        unpacked = folder / link.readlink().relative_to("/")
        if os.path.lexists(unpacked):
            link.unlink()
            link.symlink_to(unpacked)


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


def variables(environment: Environment) -> dict[str, str]:
    """Variables with which programs, headers and libraries of the environment are found first."""
    folder = environment.folder
    debian = folder / "debian"
    usr = debian / "usr"
    libraries = [usr / "lib", *sorted((usr / "lib").glob("*-linux-gnu*"))]
    before = {
        "PATH": [folder / "bin", folder / "node_modules" / ".bin", usr / "bin", usr / "sbin"],
        "LD_LIBRARY_PATH": libraries,
        "LIBRARY_PATH": libraries,
        "CPATH": [usr / "include"],
    }
    paths = {name: [*map(str, folders), *filter(None, [os.environ.get(name)])] for name, folders in before.items()}
    own = {"VIRTUAL_ENV": str(folder), "NODE_PATH": str(folder / "node_modules"), "SYSTEM_TEST_DEBIAN": str(debian)}
    return own | {name: os.pathsep.join(one) for name, one in paths.items()}


# ---- runs


def run(suite: Suite, times: Times, more: Sequence[str] = ()) -> Counts:
    """Install what a suite needs, and run it; count its seconds in `times`. Raises Failed.

    more: arguments of pytest
    """
    python, own = Path(sys.executable), {}
    if suite.environment is not None:
        with INSTALLING:
            install(suite.environment)
        python, own = suite.environment.folder / "bin" / "python", variables(suite.environment)
    suite.report.unlink(missing_ok=True)
    tests = suite.tests or (f"tests/system/{suite.name}",)
    priority = ("nice", "-n", "10") if suite.load is Load.COMPUTES else ()
    command = [*priority, python, *PYTEST, f"--junitxml={suite.report}", *tests, *more]
    with suite.log.open("wb") as log, child(command, {**os.environ, **own}, log, times) as process:
        limit = BUSY * suite.minutes
        if not ends(process, 60 * limit):
            raise Failed(f"did not finish within {limit:g} min")
    code = process.returncode
    counts = count(suite.report)
    if code or counts.failed:
        raise Failed(str(counts))
    if counts.skipped or not counts.passed:
        raise Failed(f"{counts}; every test of a suite must run")
    return counts


def taken(*queues: deque[Suite]) -> Iterator[Suite]:
    """The suites of queues that other threads share, of the first one first."""
    for queue in queues:
        with contextlib.suppress(IndexError):
            while True:
                yield queue.popleft()


def run_all(suites: Iterable[Suite], more: Sequence[str] = ()) -> dict[str, Counts | list[str]]:
    """Run suites one after the other, and print a line for each. A suite that did not pass has lines of its log."""
    results: dict[str, Counts | list[str]] = {}
    for suite in suites:
        start, times = time.monotonic(), Times()
        log = suite.log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        try:
            results[suite.name] = run(suite, times, more)
            words = f"passed  {results[suite.name]}"
        except Failed as failure:
            words = f"FAILED  {failure}{f'; its output is in {log}' if log.exists() else ''}"
            lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
            if len(lines) > 2 * SHOWN_LINES:
                lines = [*lines[:SHOWN_LINES], f"... the rest is in {log}", *lines[-SHOWN_LINES:]]
            results[suite.name] = [words, *lines]
        times.seconds = time.monotonic() - start
        with PRINTING:
            print(
                f"{suite.name:15} {times.seconds:5.0f} s, computing {times.processor_seconds:4.0f} s  {words}",
                flush=True,
            )
            record(suite, times)
    return results


@contextlib.contextmanager
def child(
    command: list[str | Path], env: dict[str, str], output: IO[bytes], times: Times
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, and with it all that it started and left; `times` gets what it computed."""
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
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        times.processor_seconds = usage.ru_utime + usage.ru_stime


def ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until a process ends, but not for longer than this."""
    watched = os.pidfd_open(process.pid)
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


def count(report: Path) -> Counts:
    if not report.exists():
        return Counts()
    cases = list(ET.parse(report).iter("testcase"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Counts(len(cases) - failed - skipped, failed, skipped)


def record(suite: Suite, times: Times) -> None:
    """Keep the times of a suite, and the seconds of each of its files, in `seconds.json`."""
    path = HOME / "seconds.json"
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    files: Counter[str] = Counter()
    if suite.report.exists():
        for case in ET.parse(suite.report).iter("testcase"):
            files[case.get("classname", "")] += round(float(case.get("time", 0)), 1)  # pyright: ignore[reportArgumentType]
    rounded = {name: round(number, 1) for name, number in vars(times).items()}
    found[suite.name] = {**rounded, "files": dict(files.most_common())}
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def changed_paths() -> list[str] | None:
    """Paths that differ from where this branch left the branch `CI_BASE`, origin/main by default; None if there is no
    such branch, or nothing differs from it.
    """
    git = ("git", "-c", "core.quotepath=off")
    base = os.environ.get("CI_BASE") or "origin/main"
    try:
        fork = call("git", *git, "merge-base", "HEAD", base).strip()
        return call("git", *git, "diff", "--name-only", fork).splitlines() or None
    except Failed:
        return None


def chosen_suites(options: argparse.Namespace) -> list[str]:
    """The names of the suites that the command line chooses."""
    if options.suites:
        return options.suites
    if options.changed and os.environ.get("CI_FULL") != "1" and (changed := changed_paths()) is not None:
        chosen = [suite.name for suite in called_for(changed)]
        print(f"{len(changed)} changed paths call for: {', '.join(chosen) or 'no suite'}", flush=True)
        return chosen
    return [suite.name for suite in SUITES if suite.by_default or (suite.nightly and options.nightly)]


def install_all(suites: Iterable[Suite]) -> None:
    """Make the environments of suites. One that cannot be made fails its suites later, with the reason."""
    for environment in dict.fromkeys(suite.environment for suite in suites if suite.environment):
        start = time.monotonic()
        with contextlib.suppress(Failed):
            install(environment)
        print(f"{environment.name:15} {time.monotonic() - start:5.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the system tests.", formatter_class=argparse.RawTextHelpFormatter)
    about = "\n".join(f"{suite.name:15} {suite.about}{'' if suite.by_default else ' (*)'}" for suite in SUITES)
    names = [suite.name for suite in SUITES]
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"all but (*) if none is named:\n{about}")
    parser.add_argument("--changed", action="store_true", help="those that judge what changed; all with CI_FULL=1")
    parser.add_argument("--nightly", action="store_true", help="all cases, also those with the mark nightly")
    parser.add_argument("--install", action="store_true", help="make the environments, and run no test")
    options = parser.parse_args()
    chosen = chosen_suites(options)
    if unknown := set(chosen) - set(names):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    suites = sorted((suite for suite in SUITES if suite.name in chosen), key=lambda suite: -suite.minutes)
    if options.install:
        install_all(suites)
        return 0
    waiting, computing = (
        deque(suite for suite in suites if suite.load is load) for load in (Load.WAITS, Load.COMPUTES)
    )
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # suites start many processes, which share what they compile
    results: dict[str, Counts | list[str]] = {}
    lanes = [taken(waiting, computing), *(taken(computing, waiting) for _ in range((os.cpu_count() or 1) + 1))]
    with ThreadPoolExecutor(len(lanes)) as threads:
        for found in threads.map(partial(run_all, more=("--nightly",) if options.nightly else ()), lanes):
            results |= found
    passed = {name: result for name, result in results.items() if isinstance(result, Counts)}
    broken = {name: result for name, result in results.items() if not isinstance(result, Counts)}
    for name, lines in broken.items():  # at the end, where a reader of a long output looks first
        print(f"\n{name}: " + "\n    ".join(lines), flush=True)
    if broken:
        print(f'failed: make test-system SUITES="{" ".join(broken)}"')
        return 1
    print(f"{sum(counts.passed for counts in passed.values())} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
