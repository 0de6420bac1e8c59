import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_settings_matches_the_schema():
    page = runpy.run_path(str(ROOT / "tools" / "document_settings.py"))["page"]()
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == page, "run: python tools/document_settings.py"
