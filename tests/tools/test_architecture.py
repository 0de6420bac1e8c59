"""The pages about the architecture, and their picture, say what is true."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.layer_rules import RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
LIBRARY, SERVER = "The library, `voxcpm_grpc/`", "The server. Again"


def rows(heading: str, after: str) -> dict[str, int]:
    """The numbers of the rows of a table that has folders and files in its first column, by their module."""
    part = PAGE.partition(heading)[2].partition(after)[0]
    cells = re.findall(r"^\| (`[^|]*) \|", part, re.MULTILINE)
    paths = [(path, number) for number, cell in enumerate(cells) for path in re.findall(r"`([\w/]+?)(?:/|\.py)`", cell)]
    names = [(path.replace("/", "."), number) for path, number in paths]
    found = dict(names)
    assert len(found) == len(names)
    return found


@pytest.mark.parametrize(
    ("heading", "after", "package"),
    [(LIBRARY, "The server, `server", ""), (SERVER, "holds the rule", "voxcpm_server.")],
)
def test_the_tables_of_folders_have_every_row_and_the_order_of_their_imports(heading, after, package):
    table, others = rows(heading, after), ("voxcpm_", "benchmarks", "tools")
    imports = [
        (row_of(row.removeprefix(package), table), row_of(entry.removeprefix(package), table))
        for row, entries in RULES.items()
        if (row.startswith(package) if package else not row.startswith(others))
        for entry in ("", *entries)
    ]
    assert {row for row, _ in imports} == table.keys()
    assert [f"{row} imports {entry}" for row, entry in imports if table.get(entry, -1) > table[row]] == []


def row_of(module: str, table: Mapping[str, int]) -> str:
    """The name of the row of a module: its own, or that of its first folder."""
    return module if module in table else module.partition(".")[0]


def test_the_folders_in_the_picture_exist():
    picture = (ROOT / "docs/architecture.svg").read_text("utf-8")
    named = re.findall(r'class="name"[^>]*>(\w+)/<', picture)
    assert len(named) > 10
    packages = (ROOT / "voxcpm_grpc", ROOT / "server/voxcpm_server")
    assert [name for name in named if not any((package / name).is_dir() for package in packages)] == []


def test_the_steps_for_a_model_family_name_members_of_its_interface():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    steps = text.partition("3. Implement `Codec`")[2].partition("6. Use the operations")[0]
    named = set(re.findall(r"`([a-z_]+)`", steps))
    base = (ROOT / "voxcpm_grpc/models/base.py").read_text("utf-8")
    members = set(re.findall(r"^    (?:def )?(\w+)[(:]", base, re.MULTILINE))
    assert len(named) > 10 and named - members == set()
    speech = base.partition("class SpeechModel")[2]
    abstract = set(re.findall(r"@abstractmethod\n    def (\w+)", speech))
    assert abstract - named == set()
