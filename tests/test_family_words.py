"""The engine, the pool and the server speak of no model family, so that another one changes nothing there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OF_FAMILIES = re.compile(r"patch|latent|timestep|cfg_value|diffus|voxcpm[12]|qwen|talker|codebook", re.IGNORECASE)
FOLDERS = [f"voxcpm_grpc/{name}" for name in ("engine", "ipc", "worker", "pool", "embedded")] + ["server/voxcpm_server"]
SERVER = "server/voxcpm_server/"
EXEMPT = {
    **dict.fromkeys(
        (f"{SERVER}wire/{name}.py" for name in ("replies", "recordings", "uploads")),
        "fields of the proto",
    ),
    **dict.fromkeys(
        (
            f"{SERVER}{name}.py"
            for name in (
                "services/speech",
                "services/statistics",
                "values/inputs",
                "voices/builder",
                "voices/recordings",
            )
        ),
        "the RPC that takes and gives latents, and recordings as latents",
    ),
    **dict.fromkeys(
        (f"{SERVER}voices/store/{name}.py" for name in ("names", "records", "content", "reader", "writer")),
        "the names of stored objects, and of the arrays of the first format",
    ),
    f"{SERVER}contracts/options.py": "the options of the proto that other contracts pass through",
    f"{SERVER}text/english/codes.py": "words that names of versions follow",
}
"""Files of the server that may, with the reason."""


def lines_of_families(text: str) -> list[str]:
    """The lines that speak of a family, import paths aside."""
    found = []
    for line in text.splitlines():
        if not re.match(r"\s*(from|import) ", line) and OF_FAMILIES.search(re.sub("(?i)dispatch", "", line)):
            found.append(line.strip())
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_line_speaks_of_a_family(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 2
    names = [path.relative_to(ROOT).as_posix() for path in files]
    found = {name: lines_of_families((ROOT / name).read_text("utf-8")) for name in names if name not in EXEMPT}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_what_is_exempt_exists_and_needs_it():
    assert [name for name in EXEMPT if not lines_of_families((ROOT / name).read_text("utf-8"))] == []


@pytest.mark.parametrize(
    "line",
    ["patches = 3", "self.latents", "inference_timesteps", "cfg_value=2", "the diffusion", "VoxCPM2", "a codebook"],
)
def test_words_of_families_are_found(line):
    assert lines_of_families(f"from a.patch import b\n    {line}\nclass Dispatcher: ...") == [line]
