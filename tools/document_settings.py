"""Write docs/settings.md from the schema of settings.

    python tools/document_settings.py

A test holds the page to the schema.
"""

from pathlib import Path

from voxcpm_grpc.settings.sources import describe

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
HEAD = """# Settings

One schema, read once: a TOML file (`--config FILE`) < environment variables < flags. `voxcpm-grpc serve --print-config`
shows the effective values as TOML that can be fed back. An unknown key is an error in all three. What becomes of a
server whose engines are lost is told in [engines.md](engines.md).

Written by `tools/document_settings.py`.

"""


def page() -> str:
    return HEAD + describe()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
