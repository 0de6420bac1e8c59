"""The imports of every file follow the layers of support/layer_rules.py."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.layer_rules import FOREIGN, LAZY, LAZY_IN_CLIENT, NEEDS_EXTRA, NEEDS_PACKAGES, READ_ENVIRONMENT, RULES

ROOT = Path(__file__).parent.parent
INSTALLED = {
    "voxcpm_grpc": ROOT / "voxcpm_grpc",
    "voxcpm_server": ROOT / "server/voxcpm_server",
    "voxcpm_gateway": ROOT / "server/voxcpm_gateway",
    "voxcpm_client": ROOT / "clients/python/voxcpm_client",
}
PACKAGES = INSTALLED | {"benchmarks": ROOT / "benchmarks", "tools": ROOT / "tools"}
ROOTS = ("voxcpm_grpc", "voxcpm_server", "benchmarks")  # packages that hold no code themselves, but the version


@dataclass(frozen=True)
class Import:
    name: str
    line: int
    lazy: bool


def modules(packages: Mapping[str, Path]) -> dict[str, Path]:
    """Every module by its dotted name."""
    found = {}
    for package, folder in packages.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, package: str, known: set[str], lazy: bool = False) -> Iterator[Import]:
    """The imports of a module, with full names; `from package import module` is an import of the module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: 1 - node.level or None]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield Import(inner if inner in known else source, node.lineno, lazy)
        else:
            typing_only = isinstance(node, ast.If) and name_of(node.test) == "TYPE_CHECKING"
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or typing_only
            yield from imports(node, package, known, lazy or inside)


def imports_of(module: str, path: Path, known: set[str]) -> list[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return list(imports(tree_of(path), package, known))


@functools.cache
def tree_of(path: Path) -> ast.AST:
    return ast.parse(path.read_text("utf-8"))


def short(module: str) -> str:
    return module.removeprefix("voxcpm_grpc.")


def under(module: str, *names: str) -> bool:
    """True if a module is one of the names, or lies below one."""
    return any(f"{short(module)}.".startswith(f"{name}.") for name in names)


@functools.cache
def row_of(module: str) -> str:
    """The row that covers a module; the module itself if there is none."""
    return max((row for row in RULES if under(module, row)), key=len, default=short(module))


def allowed(module: str, target: str) -> bool:
    """True if the rules let a module import another one."""
    row, name = row_of(module), short(target)
    if row_of(target) == row or target in ROOTS:
        return True
    if module.endswith("__main__") and under(target, short(module).rpartition(".")[0]):
        return True
    return any(entry in (name, row_of(target)) for entry in RULES.get(row, ()))


def faults(module: str, path: Path, known: set[str]) -> Iterator[str]:
    for one in imports_of(module, path, known):
        where, top = f"{path.name}:{one.line}: {module}", one.name.partition(".")[0]
        if top in PACKAGES:
            if not allowed(module, one.name):
                yield f"{where} must not import {one.name}"
            outside = row_of(module) != row_of(one.name)
            if outside and not one.lazy and under(module, "voxcpm_client") and under(one.name, *LAZY_IN_CLIENT):
                yield f"{where} must import {one.name} in the function that needs it"
        elif top in FOREIGN and row_of(module) not in FOREIGN[top]:
            yield f"{where} must not import {top}"
        if top in LAZY and not one.lazy and module.partition(".")[0] in INSTALLED:
            yield f"{where} must import {top} in the function that needs it"
    if module.partition(".")[0] in INSTALLED and module not in READ_ENVIRONMENT:
        used = {name_of(node) for node in ast.walk(tree_of(path))}
        if reads := {"os.environ", "os.getenv", "environ", "getenv"} & used:
            yield f"{path.name}: {module} reads {reads.pop()}; only settings/sources.py may read the environment"


def name_of(node: ast.AST) -> str:
    """The name that a node reads, with one dot at most; empty if it reads none."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}"
    return ""


def circles(graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The groups of files that import each other, directly or through others."""
    reached = {start: reachable(graph, start) for start in graph}
    groups = {
        tuple(sorted(other for other in reached[file] if file in reached[other]))
        for file in graph
        if file in reached[file]
    }
    return [list(group) for group in sorted(groups)]


def reachable(graph: Mapping[str, Sequence[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += graph[file]
    return found


def import_graph(packages: Mapping[str, Path]) -> dict[str, list[str]]:
    """The files that each file imports, in functions and for types alone too."""
    known = modules(packages)
    graph = {}
    for module, path in known.items():
        names = {one.name for one in imports_of(module, path, set(known))}
        graph[module] = sorted(name for name in names if name in known and name != module)
    return graph


def test_every_import_follows_the_rules():
    known = modules(PACKAGES)
    assert len(known) > 150
    assert [fault for module, path in known.items() for fault in faults(module, path, set(known))] == []


def test_no_two_files_import_each_other():
    assert circles(import_graph(PACKAGES)) == []


def test_no_row_may_import_a_higher_row():
    rows = list(RULES)
    upwards = [
        f"{row} may import {entry}"
        for row, entries in RULES.items()
        for entry in entries
        if row_of(entry) not in RULES or rows.index(row_of(entry)) >= rows.index(row)
    ]
    assert upwards == []


def test_every_folder_has_a_row_and_every_row_exists():
    known = modules(PACKAGES)
    uncovered = {module for module in known if row_of(module) not in RULES} - PACKAGES.keys()
    folders = {short(module.rpartition(".")[0]) for module, path in known.items() if path.name != "__init__.py"}
    assert uncovered == set()
    assert folders - RULES.keys() == {"voxcpm_server"}, "its files have a row each"
    assert RULES.keys() - folders - {short(module) for module in known} == set()


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        (
            "voxcpm_grpc.kernels.x",
            "from voxcpm_grpc.errors import InvalidRequest",
            "must not import voxcpm_grpc.errors",
        ),
        (
            "voxcpm_grpc.engine.x",
            "from voxcpm_grpc.models import voxcpm",
            "must not import voxcpm_grpc.models.voxcpm",
        ),
        ("voxcpm_grpc.engine.x", "from ..models.voxcpm import y", "must not import voxcpm_grpc.models.voxcpm"),
        ("voxcpm_grpc.engine.x", "import grpc", "must not import grpc"),
        (
            "voxcpm_grpc.pool.x",
            "from voxcpm_grpc.pool.ray import engines",
            "must not import voxcpm_grpc.pool.ray.engines",
        ),
        (
            "voxcpm_grpc.worker.x",
            "from voxcpm_grpc.engine.engine import Engine",
            "must not import voxcpm_grpc.engine.engine",
        ),
        ("voxcpm_server.rpc.x", "def f():\n    import torch", "must not import torch"),
        (
            "voxcpm_server.wire.x",
            "def f():\n    from voxcpm_server.speech import session",
            "must not import voxcpm_server.speech.session",
        ),
        (
            "voxcpm_server.rpc.x",
            "from voxcpm_grpc.engine.engine import Engine",
            "must not import voxcpm_grpc.engine.engine",
        ),
        (
            "voxcpm_client.cli.operate.x",
            "import voxcpm_server.main",
            "must import voxcpm_server.main in the function that needs it",
        ),
        ("voxcpm_client.x", "def f():\n    import voxcpm_server.app", "must not import voxcpm_server.app"),
        ("voxcpm_client.x", "from voxcpm_client.cli.speak import say", "must not import voxcpm_client.cli.speak.say"),
        (
            "voxcpm_grpc.audio.x",
            "try:\n    import av\nexcept ImportError: ...",
            "must import av in the function that needs it",
        ),
        ("voxcpm_server.rpc.x", "import os\nos.environ['HOME']", "only settings/sources.py may read the environment"),
        (
            "voxcpm_server.rpc.x",
            "from os import getenv\ngetenv('HOME')",
            "only settings/sources.py may read the environment",
        ),
        (
            "benchmarks.pages.x",
            "if TYPE_CHECKING:\n    from benchmarks.trace.activities import Row",
            "must not import benchmarks.trace.activities",
        ),
        ("benchmarks.measuring.x", "import torch", "must not import torch"),
        ("voxcpm_client.cli.operate.x", "def f():\n    from voxcpm_server import main", ""),
        ("voxcpm_client.__main__", "from voxcpm_client.cli.speak import say", ""),
        ("voxcpm_grpc.engine.load", "from voxcpm_grpc.models.loading import load_model", ""),
        (
            "voxcpm_grpc.engine.x",
            "def f():\n    from voxcpm_grpc.models.voxcpm.model import VoxCPM",
            "must not import voxcpm_grpc.models.voxcpm",
        ),
        (
            "voxcpm_grpc.checkpoint",
            "from voxcpm_grpc.models.base import Plan",
            "must not import voxcpm_grpc.models.base",
        ),
        ("voxcpm_grpc.worker.x", "from voxcpm_grpc.engine.load import load_engine", ""),
    ],
)
def test_the_rules_find_a_wrong_import(tmp_path, module, source, fault):
    path = tmp_path / "x.py"
    path.write_text(source)
    found = list(faults(module, path, set(modules(PACKAGES))))
    assert len(found) == bool(fault)
    assert not fault or fault in found[0]


def test_circles_are_found_in_functions_and_for_types(tmp_path):
    sources = {
        "a": "from x import b",
        "b": "def f():\n    from x.c import y",
        "c": "if TYPE_CHECKING:\n    from x.a import z",
        "d": "from x import a",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    assert circles(import_graph({"x": tmp_path})) == [["x.a", "x.b", "x.c"]]


def run(script: str, *args: str, cwd: Path) -> str:
    """The output of `script` in an interpreter that starts in `cwd`."""
    command = [sys.executable, "-c", script, *args]
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


IMPORT_ALL = """
import importlib, sys
blocked = set(sys.argv[1].split(","))
sys.modules.update(dict.fromkeys(blocked))
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def torch_free(packages: Mapping[str, Path]) -> list[str]:
    """The modules whose row must not import torch, without those that need an extra to be imported at all."""
    found = [module for module in modules(packages) if row_of(module) not in (*FOREIGN["torch"], *NEEDS_EXTRA)]
    return [module for module in found if module.rpartition(".")[2] not in NEEDS_PACKAGES]


def test_the_front_and_the_client_start_without_torch(tmp_path):
    front = torch_free(INSTALLED)
    assert {row_of(module) for module in front} >= {"worker", "pool", "voxcpm_server.main", "voxcpm_client.cli"}
    run(IMPORT_ALL, "torch,triton,av", *front, cwd=tmp_path)


def test_the_clients_of_the_benchmarks_start_without_torch():
    run(IMPORT_ALL, "torch,triton,av", *torch_free({"benchmarks": PACKAGES["benchmarks"]}), cwd=ROOT)


def test_the_client_needs_the_base_installation_only(tmp_path):
    server_only = (
        "torch,triton,av,soxr,fsspec,huggingface_hub,msgspec,pydantic,zmq,safetensors,tokenizers,sentencex,uvloop"
    )
    client = [name for name in torch_free(INSTALLED) if under(name, "voxcpm_client")]
    run(IMPORT_ALL, f"{server_only},grpc_health,grpc_reflection,sounddevice", *client, cwd=tmp_path)


def test_only_the_four_packages_are_importable(tmp_path):
    script = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"
    folders = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier()]
    found = run(script, *folders, "server", "clients", "tests", *INSTALLED, cwd=tmp_path)
    assert set(found.split()) == set(INSTALLED)
