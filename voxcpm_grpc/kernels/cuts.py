"""How `product` is cut for the rows and sizes at hand, where it was the fastest of all ways on one H200.

`benchmarks.products --write` measures it and writes the table.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from voxcpm_grpc.kernels.product import Cut, Role

TABLE = Path(__file__).parent / "cuts.json"

Cuts = tuple[tuple[int, Cut | None], ...]  # up to so many rows; None: another way is faster


def choose_cut(role: Role, rows: int, outputs: int, inputs: int) -> Cut | None:
    """The cut for `rows` rows and a weight [outputs, inputs], or None where another way serves better."""
    return next((cut for limit, cut in read_cuts().get((role, outputs, inputs), ()) if rows <= limit), None)


@functools.cache
def read_cuts() -> dict[tuple[Role, int, int], Cuts]:
    """By role, outputs and inputs of the weight."""
    found: dict[tuple[Role, int, int], list[tuple[int, Cut | None]]] = {}
    for entry in json.loads(TABLE.read_text())["cuts"]:
        key = Role[entry["role"]], entry["outputs"], entry["inputs"]
        found.setdefault(key, []).append((entry["rows"], Cut(**entry["cut"]) if entry["cut"] else None))
    return {key: tuple(sorted(cuts, key=lambda pair: pair[0])) for key, cuts in found.items()}
