"""The errors that the sources make, and the reasons and details that they give them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from voxcpm_grpc import audio, errors
from voxcpm_grpc.errors import CODES, Reason, VoxCPMError
from voxcpm_server.voices.store import records

ROOT = Path(__file__).parents[3]
SOURCES = (ROOT / "voxcpm_grpc", ROOT / "server/voxcpm_server")
OPTIONS = {"field", "retry_after", "reason"}  # of an error; the other arguments are details
KINDS: dict[str, type[VoxCPMError]] = {
    name: kind
    for module in (errors, audio, records)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, VoxCPMError)
}


@dataclass(frozen=True)
class Made:
    """A place where an error is made.

    reasons: the names of those that it may have; empty if it gives none
    details: the names of the values that it adds
    """

    place: str
    kind: type[VoxCPMError]
    reasons: frozenset[str]
    details: frozenset[str]

    @property
    def code(self) -> str:
        return next(CODES[kind] for kind in self.kind.__mro__ if kind in CODES)


class _Visitor(ast.NodeVisitor):
    def __init__(self, path: Path) -> None:
        self.found: list[Made] = []
        self._path = path
        self._classes: list[str] = []
        self._functions: list[ast.AST] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        kind = KINDS.get(self._classes[-1]) if name == "super().__init__" and self._classes else KINDS.get(name)
        if kind is None or kind is VoxCPMError:
            return
        given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        reason = given.get("reason")
        # A name stands for one of the reasons that its function chooses from.
        source = self._functions[-1] if isinstance(reason, ast.Name) else reason
        names = [one for one in ast.walk(source or ast.Pass()) if isinstance(one, ast.Attribute)]
        reasons = [one.attr for one in names if ast.unparse(one.value) == Reason.__name__]
        details = frozenset(given.keys() - OPTIONS)
        self.found.append(Made(f"{self._path.name}:{node.lineno}", kind, frozenset(reasons), details))


def made_errors() -> Iterator[Made]:
    """Every place of the sources where an error is made, and every class with a reason of its own."""
    for path in (path for source in SOURCES for path in sorted(source.rglob("*.py"))):
        visitor = _Visitor(path)
        visitor.visit(ast.parse(path.read_text("utf-8")))
        yield from visitor.found
    for kind in CODES:
        if kind.default_reason is not None:
            yield Made(kind.__name__, kind, frozenset([kind.default_reason.name]), frozenset())
