"""The pages of the documentation lead to files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")})
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)")
# A file or folder of the sources in backticks. Pages leave out the package where the text names it.
NAMED = re.compile(r"`((?:\.?[a-z_]+/)+(?:\w+\.(?:py|md|proto|cfg|yaml))?)`")
BASES = (ROOT, ROOT / "voxcpm_grpc", ROOT / "server/voxcpm_server", ROOT / "clients/python")


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


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(name):
    named = NAMED.findall((ROOT / name).read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [path for path in named if not any((base / path).exists() for base in BASES)] == []
