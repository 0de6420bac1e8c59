"""The installation of a checkout, into an environment whose Python records what it is asked to do."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDER = """#!/bin/sh
if [ "$1" = -c ]; then [ -s {folder}/torch ] && cat {folder}/torch; exit; fi
echo "$@" >> {folder}/calls
exit $(cat {folder}/status)
"""


@pytest.fixture
def install(tmp_path):
    """Runs the program. Returns its result and the calls of pip."""

    def run(*words: str, torch: str = "", status: int = 0) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        python = tmp_path / "venv/bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(RECORDER.format(folder=tmp_path))
        python.chmod(0o755)
        (tmp_path / "torch").write_text(torch)
        (tmp_path / "status").write_text(str(status))
        command = [sys.executable, str(ROOT / "tools/install.py"), str(tmp_path / "venv"), *words]
        if "--torch" not in words:
            command += ["--torch", "2.13.0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_the_size_of_the_downloads_is_said_first_and_torch_is_installed_alone(install):
    done, (torch, package) = install()
    assert done.stdout.startswith("downloading up to 0.3 GB, or 2.8 GB if the torch ")
    assert "TORCH_INDEX=" in done.stdout.splitlines()[0]
    assert torch.endswith("torch==2.13.0")
    assert package.endswith(f"{ROOT}/voxcpm_grpc/demo --editable {ROOT}[server]")


def test_only_wheels_are_installed(install):
    _, calls = install()
    assert all("--only-binary :all:" in call for call in calls)


def test_an_index_is_for_torch_alone(install):
    index = "https://packages.example.com/cpu"
    done, (torch, package) = install("--torch-index", index)
    assert done.stdout.startswith("downloading up to 0.3 GB\n")
    assert f"--index-url {index} torch==2.13.0" in torch
    assert "--index-url" not in package


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0+cu128", "2.13.0+cpu", "2.13.2"])
def test_a_supported_torch_that_is_there_is_kept(install, version):
    done, calls = install(torch=version)
    assert done.stdout.startswith(f"downloading up to 0.1 GB; torch {version} is there already\n")
    assert len(calls) == 1
    assert "torch==" not in calls[0]


@pytest.mark.parametrize("version", ["2.9.1", "2.10.0+cpu", "2.14.0", "2.15.0+cu130", "3.0"])
def test_another_torch_that_is_there_is_replaced(install, version):
    _, calls = install(torch=version)
    assert calls[0].endswith("torch==2.13.0")


def test_a_torch_that_the_package_does_not_admit_is_refused(install):
    done, calls = install("--torch", "2.15.0")
    assert (done.returncode, calls) == (1, [])
    assert "torch 2.15.0 is not supported: pyproject.toml admits >=2.11" in done.stderr


def test_the_test_tools_come_on_top(install):
    done, (call, compilation) = install("--tests", torch="2.13.0")
    assert done.stdout.startswith("downloading up to 0.5 GB; ")
    assert call.endswith(f"--editable {ROOT}[server,test]")
    assert "compileall" in compilation


def test_a_failed_installation_says_what_to_change(install):
    done, calls = install(status=1)
    assert (done.returncode, len(calls)) == (1, 1)
    assert "name another Python with PYTHON=" in done.stderr
