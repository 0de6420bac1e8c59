"""The pages of the documentation lead to files that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")})
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)")
# A file or folder of the sources in backticks. Pages leave out the package where the text names it.
NAMED = re.compile(r"`((?:\.?[a-z_]+/)+(?:\w+\.(?:py|md|proto|cfg|yaml))?)`")
BASES = (
    ROOT,
    ROOT / "voxcpm_grpc",
    ROOT / "server/voxcpm_server",
    ROOT / "server/voxcpm_gateway",
    ROOT / "clients/python",
)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        assert target.exists(), f"{path} does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path} has no heading {anchor}"


def test_every_result_of_a_benchmark_is_named_by_a_page_or_a_command():
    """The log has the numbers of others."""
    commands, bundled = (ROOT / "benchmarks").rglob("*.py"), ROOT / "voxcpm_grpc/demo/README.md"
    results = {path.name: path for path in (ROOT / "benchmarks/results").iterdir()}
    found = {path: path.read_text(encoding="utf-8") for path in (*PAGES, bundled, *commands)}
    new = set(found)
    while new:
        named = {path for name, path in results.items() if any(name in found[page] for page in new)}
        new = {path for path in named if path.suffix == ".md"} - set(found)
        found |= {path: path.read_text(encoding="utf-8") for path in new}
        results = {name: path for name, path in results.items() if path not in named}
    assert sorted(results) == []


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(name):
    named = NAMED.findall((ROOT / name).read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [path for path in named if not any((base / path).exists() for base in BASES)] == []


def texts(source: str) -> Iterator[str]:
    """The string literals of a module, those of formatted strings with an ellipsis for each value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_messages_in_the_tables_of_troubleshooting_exist():
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    tables = page.partition("## Something else")[0]
    cells = re.findall(r"^\|(?: [A-Z_0-9]+ \|)? (`[^|]+`) \|", tables, re.MULTILINE)
    phrases = [phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell)]
    assert len(phrases) > 30
    sources = [path for base in BASES[1:] for path in base.rglob("*.py")]
    known = "\n".join(text for path in sources for text in texts(path.read_text(encoding="utf-8")))
    missing = [phrase for phrase in phrases if not all(part.strip() in known for part in phrase.split("…"))]
    assert missing == []
