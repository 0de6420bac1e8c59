"""The length of functions and of files."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("voxcpm_grpc", "server", "clients/python", "benchmarks", "tools")
SHIPPED = ("voxcpm_grpc", "server", "clients/python")
LONGEST_FUNCTION, LONGEST_FILE = 60, 400  # lines
GENERATED = ("voxcpm_grpc/v1/", "voxcpm_grpc/demo/")
KERNELS = "kernels"  # the name of folders whose functions may be longer: a kernel is one function


def files(*folders: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files below folders, as git has them."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True).stdout
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    return [name for name in names if name.endswith(suffixes) and not name.startswith(GENERATED)]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The name and the number of lines of each function of a file, without its decorators."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def too_long(names: list[str], root: Path = ROOT) -> set[str]:
    """The functions with more lines than LONGEST_FUNCTION, outside of kernels."""
    return {
        f"{name} {function}"
        for name in names
        if KERNELS not in Path(name).parts
        for function, lines in functions(root / name)
        if lines > LONGEST_FUNCTION
    }


def test_no_function_is_longer_than_a_screen():
    found = files(*PACKAGES, suffixes=(".py",))
    assert len(found) > 400
    assert too_long(found) == set()


def test_no_file_is_too_long():
    found = files(*SHIPPED, suffixes=(".py", ".js", ".css"))
    longer = {name for name in found if len((ROOT / name).read_text("utf-8").splitlines()) > LONGEST_FILE}
    assert longer == set()


def test_long_functions_are_found_outside_of_kernels(tmp_path):
    fits = ["def fits():", *["    pass"] * (LONGEST_FUNCTION - 1)]
    longer = ["class A:", "    async def longer(self):", *["        pass"] * LONGEST_FUNCTION]
    source = "\n".join((*fits, *longer))
    (tmp_path / "kernels").mkdir()
    for name in ("a.py", "kernels/b.py"):
        (tmp_path / name).write_text(source)
    assert too_long(["a.py", "kernels/b.py"], tmp_path) == {"a.py longer"}
