"""Type checkers accept a program that uses the whole client, installed from the wheel."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import voxcpm_client

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("program.py")
WRONG = """
from voxcpm_client import Client

client = Client(retry=3)
client.say(None)
client.say("Hello.", vioce="miles")
client.add_reference(7)
speech: int = client.say("Hello.")
"""
WRONG_LINES = {4, 5, 6, 7, 8}
CLASSES = ("Client", "AsyncClient", "Stream", "AsyncStream", "Session", "AsyncSession", "Speech")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install")
    subprocess.run([*pip, "-q", "--no-compile", *folder.glob("*.whl")], check=True)
    return python


def run(python: Path, *command: str | Path, folder: Path) -> str:
    """The output of a checker, away from the sources of this project."""
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(python: Path, program: Path, folder: Path) -> list[str]:
    output = run(python, "mypy", "--strict", "--python-executable", python, program, folder=folder)
    return [line for line in output.splitlines() if ": error:" in line]


def pyright(python: Path, program: Path, folder: Path) -> list[str]:
    project = {"include": [str(program)], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(project))
    output = run(python, "pyright", "--pythonpath", python, "-p", folder / "pyrightconfig.json", folder=folder)
    return [line for line in output.splitlines() if " - error:" in line]


@pytest.mark.parametrize("check", [mypy, pyright])
def test_the_program_has_no_error(python, tmp_path, check):
    copy = tmp_path / "program.py"
    copy.write_text(PROGRAM.read_text("utf-8"), "utf-8")
    assert check(python, copy, tmp_path) == []


@pytest.mark.parametrize("check", [mypy, pyright])
def test_mistakes_are_errors(python, tmp_path, check):
    program = tmp_path / "wrong.py"
    program.write_text(WRONG, "utf-8")
    lines = {int(line.split("wrong.py:")[1].split(":")[0]) for line in check(python, program, tmp_path)}
    assert lines == WRONG_LINES


def test_the_program_uses_every_public_name():
    tree = ast.parse(PROGRAM.read_text("utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(voxcpm_client.__all__) <= used
    for name in CLASSES:
        kind = getattr(voxcpm_client, name)
        public = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
        assert public <= used, name


def test_the_package_declares_its_types(python):
    code = "import voxcpm_client, pathlib; print(pathlib.Path(voxcpm_client.__file__).with_name('py.typed').exists())"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
