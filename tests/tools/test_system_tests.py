"""The environments of `make test-system`."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

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
