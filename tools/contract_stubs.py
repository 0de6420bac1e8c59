"""Write the stubs of the contracts of other servers beside their protos, in server/voxcpm_server/contracts.

    python tools/contract_stubs.py [--check]

`make protos` runs it, and `make check` runs it with --check, which fails if a stub differs from its proto. It needs
grpcio-tools. The stubs add their messages to a pool of their own: voxcpm_server/contracts/pool.py has the reason.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = Path(__file__).parent.parent / "server"
PROTOS = sorted(path.relative_to(SERVER) for path in (SERVER / "voxcpm_server/contracts").glob("*/*.proto"))
OWN_POOL = (  # of the generated code, and what takes its place
    (
        "from google.protobuf import descriptor_pool as _descriptor_pool\n",
        "from voxcpm_server.contracts.pool import POOL as _POOL\n",
    ),
    ("_descriptor_pool.Default()", "_POOL"),
)


def stubs() -> dict[Path, str]:
    """The text of each stub by its path."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", SERVER, "--python_out", folder, "--pyi_out", folder]
        subprocess.run([*command, *PROTOS], check=True)
        found = {SERVER / path.relative_to(folder): path.read_text("utf-8") for path in Path(folder).rglob("*.py*")}
    return {path: _in_own_pool(text) if path.suffix == ".py" else text for path, text in found.items()}


def _in_own_pool(text: str) -> str:
    for generated, own in OWN_POOL:
        if text.count(generated) != 1:
            raise SystemExit(f"protoc writes no more {generated!r} once; adapt {Path(__file__).name}")
        text = text.replace(generated, own)
    return text


def main(arguments: list[str]) -> None:
    for path, text in stubs().items():
        if arguments != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            raise SystemExit(f"stale stub {path.relative_to(SERVER.parent)}: run make protos")


if __name__ == "__main__":
    main(sys.argv[1:])
