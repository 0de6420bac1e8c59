"""The environment of the suite has the lowest versions that pyproject.toml admits, and no others."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = ("server", "http")
ADMITTED = [*PROJECT["dependencies"], *(one for extra in EXTRAS for one in PROJECT["optional-dependencies"][extra])]
NEWER = ("torch", "voxcpm-grpc-demo")  # a build for this device, and a package of this repository


@pytest.mark.parametrize("requirement", sorted({one for one in ADMITTED if Requirement(one).name not in NEWER}))
def test_a_package_has_its_lowest_version(requirement):
    admitted = Requirement(requirement)
    (bound,) = (bound.version for bound in admitted.specifier if bound.operator == ">=")
    assert Version(metadata.version(admitted.name)) == Version(bound)
