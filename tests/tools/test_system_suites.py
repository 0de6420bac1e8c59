"""The suites that a change calls for."""

import importlib
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("benchmarks/", "clients/", "docs/", "protos/", "server/", "voxcpm_grpc/")


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("system_suites")


def committed() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def names(chosen) -> set[str]:
    return {suite.name for suite in chosen}


def test_every_source_file_is_judged_by_a_suite(suites):
    unjudged = [
        path
        for path in committed()
        if path.startswith(SOURCES) and not any(path.startswith(suite.paths) for suite in suites.SUITES)
    ]
    assert unjudged == []


def test_every_path_of_a_suite_exists(suites):
    files = committed()
    beginnings = {beginning for suite in suites.SUITES for beginning in suite.paths} | set(suites.ALL)
    assert sorted(one for one in beginnings if not any(path.startswith(one) for path in files)) == []


@pytest.mark.parametrize(
    ("path", "among", "without"),
    [
        ("server/voxcpm_gateway/page/main.js", {"gateway", "browser"}, {"processes", "conformance", "field", "oldest"}),
        ("server/voxcpm_gateway/routes/openai.py", {"gateway", "field", "oldest"}, {"processes", "conformance"}),
        (
            "voxcpm_grpc/engine/scheduling/scheduler.py",
            {"processes", "conformance", "chaos", "speech", "older-models"},
            {"gateway", "s3", "deploy", "ray", "clients"},
        ),
        (
            "server/voxcpm_server/speech/session.py",
            {"processes", "conformance", "chaos", "speech", "fuzz"},
            {"ray", "clients", "normalize", "contracts"},
        ),
        ("server/voxcpm_server/voices/store/store.py", {"s3", "uploads"}, {"ray", "languages"}),
        ("tools/voice/train.py", {"voice"}, {"speech", "gateway"}),
        ("docs/text.md", {"first-hour"}, {"processes", "conformance", "gateway", "chaos"}),
        ("docs/troubleshooting.md", {"first-hour", "conformance"}, {"processes"}),
        ("tests/system/ray/test_ray.py", {"ray"}, {"deploy"}),
    ],
)
def test_a_change_calls_for_the_suites_that_judge_it(suites, path, among, without):
    found = names(suites.called_for([path]))
    assert found >= among
    assert not found & without


@pytest.mark.parametrize("path", ["pyproject.toml", "tools/system_tests.py", "tests/support/servers/running.py"])
def test_a_change_of_what_all_suites_share_calls_for_all(suites, path):
    assert names(suites.called_for(["docs/text.md", path])) == {one.name for one in suites.SUITES if one.by_default}


def test_a_change_of_the_page_calls_for_the_browser_beside_a_change_that_calls_for_all(suites):
    found = names(suites.called_for(["server/voxcpm_gateway/page/main.js", "tests/support/servers/running.py"]))
    assert found == {one.name for one in suites.SUITES if one.by_default} | {"browser"}
