"""The environments and the processes of `make test-system`."""

import importlib
import os
import signal
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
from support.servers.waiting import HANG_SECONDS

COMPUTES = "import time\nwhile time.process_time() < 0.3: pass"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}], check=True)"
HANGS = "import signal; signal.pause()"

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("system_tests")


def test_links_of_unpacked_packages_lead_to_unpacked_files(tool, tmp_path):
    """A JDK has its settings behind links to /etc, which has none of them if the JDK is not installed."""
    settings, link = tmp_path / "etc/java/java.security", tmp_path / "usr/lib/jvm/java/conf/java.security"
    for path in (settings, link):
        path.parent.mkdir(parents=True)
    settings.write_text("settings")
    link.symlink_to("/etc/java/java.security")
    (tmp_path / "hosts").symlink_to("/etc/hosts")
    tool.keep_links_inside(tmp_path)
    assert link.read_text() == "settings"
    assert (tmp_path / "hosts").readlink() == Path("/etc/hosts")  # it is of no package


def test_the_processor_seconds_of_a_suite_are_those_of_all_its_processes(tool, tmp_path):
    times = tool.Times()
    with (
        (tmp_path / "log").open("wb") as log,
        tool.child([sys.executable, "-c", STARTS], dict(os.environ), log, times) as process,
    ):
        assert tool.ends(process, HANG_SECONDS)
    assert process.returncode == 0
    assert times.processor_seconds >= 0.3


def test_a_suite_that_does_not_end_in_time_is_ended(tool, tmp_path):
    with (
        (tmp_path / "log").open("wb") as log,
        tool.child([sys.executable, "-c", HANGS], dict(os.environ), log, tool.Times()) as process,
    ):
        assert not tool.ends(process, 0.01)
    assert process.returncode == -signal.SIGKILL


def test_each_night_runs_every_suite_by_default_and_those_of_all_pairs(tool):
    by_default = {suite.name for suite in tool.SUITES if suite.by_default}
    night, day = (Namespace(suites=[], changed=False, nightly=nightly) for nightly in (True, False))
    assert set(tool.chosen_suites(night)) == by_default | {"clients-qwen3"}
    assert set(tool.chosen_suites(day)) == by_default
