"""The packages of the environments of `make test-system`."""

import importlib
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("system_environments")


def test_the_lowest_versions_are_those_of_the_lower_bounds(environments):
    admitted = (
        *("av>=14,<19", "langcodes[data]>=3.5", "uvloop>=0.21; platform_system != 'Windows'", "torch>=2.11,<2.14"),
        *("prometheus-client>=0.20", "prometheus-client>=0.20", "voxcpm-grpc-demo~=1.0"),
    )
    assert environments.lowest(admitted) == (
        *("av==14", "langcodes[data]==3.5", 'uvloop==0.21 ; platform_system != "Windows"'),
        "prometheus-client==0.20",
    )


def test_a_package_with_two_lower_bounds_is_refused(environments):
    with pytest.raises(ValueError, match=r"two lowest versions: h11==0\.14 and h11==0\.16"):
        environments.lowest(["h11>=0.14", "h11>=0.16"])


def test_the_oldest_environment_has_every_package_of_the_client_at_its_lower_bound(environments):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {one.replace(">=", "==") for one in project["dependencies"]} <= set(environments.OLDEST.requirements)
