"""Write docs/settings.md from the schema of settings.

    python tools/document_settings.py

A test fails if the page does not match the schema.
"""

from pathlib import Path

from voxcpm_grpc.settings.sources import describe

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
HEAD = """# Settings

A setting can be a key in a TOML file (`--config FILE`), an environment variable or a flag. Flags override variables,
and variables override the file. The server reads them once, at its start. An unknown key is an error in all three.
`voxcpm-grpc serve --print-config` prints the effective values as TOML, which `--config` accepts again.
[engines.md](engines.md) describes how the server handles lost engines.

`tools/document_settings.py` writes this page.

"""


def page() -> str:
    return HEAD + describe()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
