"""Who may import whom. The table is the rule; the rest reads the imports of every module and compares."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "voxcpm_grpc": ROOT / "voxcpm_grpc",
    "voxcpm_server": ROOT / "server/voxcpm_server",
    "voxcpm_client": ROOT / "clients/python/voxcpm_client",
}

# A module may import what its longest row lists, and what lies under the row itself. Names are those of voxcpm_grpc
# unless they are packages of their own.
RULES: Mapping[str, tuple[str, ...]] = {
    "errors": (),
    "v1": (),
    "peekable_queue": (),
    "kernels": (),
    "request": ("errors",),
    "checkpoint": ("errors",),
    "settings": ("errors",),
    "audio": ("errors",),
    "attention": ("kernels",),
    "layers": ("attention", "kernels", "errors"),
    "models": ("layers", "attention", "kernels", "request", "audio", "settings", "errors"),
    "engine": ("models.base", "models.families", "attention", "kernels", "request", "audio", "settings", "errors"),
    "ipc": ("request", "errors"),
    "worker": ("engine.load", "ipc", "request", "settings", "errors"),
    "pool": ("worker", "ipc", "peekable_queue", "request", "settings", "errors"),
    "voxcpm_server": ("v1", "pool", "ipc", "request", "peekable_queue", "audio", "settings", "checkpoint", "errors"),
    "voxcpm_client": ("v1", "request", "audio", "errors"),
    "voxcpm_client.cli": (
        "voxcpm_client",
        "voxcpm_server",
        "v1",
        "request",
        "audio",
        "settings.sources",
        "checkpoint",
        "errors",
    ),
}
FOREIGN: Mapping[str, tuple[str, ...]] = {  # who may import these packages at all
    "grpc": ("v1", "voxcpm_server", "voxcpm_client"),
    "google": ("v1", "voxcpm_server", "voxcpm_client"),
    "torch": ("kernels", "attention", "layers", "models", "engine"),
    "triton": ("kernels", "attention"),
    "huggingface_hub": ("checkpoint", "voxcpm_client.cli"),
    "fsspec": ("voxcpm_server.voices.store",),
}
# Not part of every installation, so imported inside the function that needs them.
LAZY = {"av", "huggingface_hub", "ray", "sounddevice"}
LAZY_IN_CLIENT = {"voxcpm_server", "voxcpm_grpc.settings.sources", "voxcpm_grpc.checkpoint"}


TORCHLESS = (
    "voxcpm_server",
    "voxcpm_client",
    "audio",
    "settings",
    "ipc",
    "worker",
    "pool",
    "request",
    "errors",
    "checkpoint",
)


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
    """What a module imports, in full names; `from package import module` is an import of the module."""
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
            typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or typing_only
            yield from imports(node, package, known, lazy or inside)


def short(module: str) -> str:
    return module.removeprefix("voxcpm_grpc.")


def under(module: str, *rows: str) -> bool:
    return any(f"{short(module)}.".startswith(f"{row}.") for row in rows)


def faults(module: str, path: Path, known: set[str]) -> Iterator[str]:
    tree = ast.parse(path.read_text("utf-8"))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    row = max((row for row in RULES if under(module, row)), key=len, default=module)
    for one in imports(tree, package, known):
        where, top = f"{path.name}:{one.line}: {module}", one.name.partition(".")[0]
        if top in PACKAGES:
            if one.name != "voxcpm_grpc" and not under(one.name, row, *RULES.get(row, ())):
                yield f"{where} must not import {one.name}"
            if (
                not one.lazy
                and under(module, "voxcpm_client")
                and any(under(one.name, short(n)) for n in LAZY_IN_CLIENT)
            ):
                yield f"{where} must import {one.name} where it is used"
        elif top in FOREIGN and not under(module, *FOREIGN[top]):
            yield f"{where} must not import {top}"
        if top in LAZY and not one.lazy:
            yield f"{where} must import {top} where it is used"
    if module != "voxcpm_grpc.settings.sources" and (
        reads := {"os.environ", "os.getenv", "environ", "getenv"} & names(tree)
    ):
        yield f"{path.name}: {module} reads {reads.pop()}; the environment is read in settings/sources.py only"


def names(tree: ast.AST) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}


def test_every_import_keeps_to_the_layers():
    known = modules(PACKAGES)
    assert len(known) > 30
    assert [fault for module, path in known.items() for fault in faults(module, path, set(known))] == []


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
            "from voxcpm_grpc.models import voxcpm2",
            "must not import voxcpm_grpc.models.voxcpm2",
        ),
        ("voxcpm_grpc.engine.x", "from ..models.voxcpm2 import y", "must not import voxcpm_grpc.models.voxcpm2"),
        ("voxcpm_grpc.engine.x", "import grpc", "must not import grpc"),
        ("voxcpm_server.x", "def f():\n    import torch", "must not import torch"),
        (
            "voxcpm_server.x",
            "from voxcpm_grpc.engine.engine import Engine",
            "must not import voxcpm_grpc.engine.engine",
        ),
        ("voxcpm_client.cli.x", "import voxcpm_server.app", "must import voxcpm_server.app where it is used"),
        ("voxcpm_client.x", "def f():\n    import voxcpm_server", "must not import voxcpm_server"),
        ("voxcpm_grpc.audio.x", "try:\n    import av\nexcept ImportError: ...", "must import av where it is used"),
        ("voxcpm_server.x", "import os\nos.environ['HOME']", "the environment is read in settings/sources.py only"),
        (
            "voxcpm_server.x",
            "from os import getenv\ngetenv('HOME')",
            "the environment is read in settings/sources.py only",
        ),
        ("voxcpm_client.cli.x", "def f():\n    from voxcpm_server import app", ""),
        ("voxcpm_grpc.engine.load", "from voxcpm_grpc.models.families import load_model", ""),
    ],
)
def test_the_rules_catch(tmp_path, module, source, fault):
    path = tmp_path / "x.py"
    path.write_text(source)
    found = list(faults(module, path, {*modules(PACKAGES), "voxcpm_grpc.models.voxcpm2"}))
    assert len(found) == bool(fault)
    assert not fault or fault in found[0]


def run(script: str, *args: str, cwd: Path) -> str:
    """What `script` prints in an interpreter that starts outside the repository."""
    command = [sys.executable, "-c", script, *args]
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


IMPORT_ALL = """
import importlib, sys
blocked = set(sys.argv[1].split(","))
sys.modules.update(dict.fromkeys(blocked))
for name in sys.argv[2:]:
    if not name.endswith("__main__"):
        importlib.import_module(name)
"""


def test_the_front_and_the_client_start_without_torch(tmp_path):
    front = [name for name in modules(PACKAGES) if under(name, *TORCHLESS)]
    run(IMPORT_ALL, "torch,triton,av", *front, cwd=tmp_path)


def test_the_client_needs_the_base_installation_only(tmp_path):
    server_only = (
        "torch,triton,av,soxr,fsspec,huggingface_hub,msgspec,pydantic,zmq,safetensors,tokenizers,sentencex,uvloop"
    )
    client = [name for name in modules(PACKAGES) if under(name, "voxcpm_client")]
    run(IMPORT_ALL, f"{server_only},grpc_health,grpc_reflection,sounddevice", *client, cwd=tmp_path)


def test_only_the_three_packages_are_importable(tmp_path):
    script = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"
    folders = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier()]
    found = run(script, *folders, "server", "clients", "tests", "voxcpm_server", "voxcpm_client", cwd=tmp_path)
    assert set(found.split()) == set(PACKAGES)
