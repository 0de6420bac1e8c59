"""Measure the library's matrix products of a step with their own number of rows and with more.

    python -m benchmarks.padding [--streams 8,16,24,32,40,48,56,64] [--multiple 16] [--widest 1.3]

The library picks a kernel by the number of rows, and fewer rows are not always faster. The library computes the
products of a step for which `kernels.gemm_tiles` has no tile and `kernels.gated_cuts` no cut. Each of them runs with
its own number of rows and with the multiples of --multiple above it, up to --widest times as many: captured, with
outputs in place, with more weights than the cache holds. The column "saves" is the time of a step that the best number
of rows saves in this product; less than 2 % of the product's time is noise and counts as 0. The last table gives the
time of the products of q, k and v in the last layer of LocDiT: in one product of all rows, and with q apart for the
rows that are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.kernels import DEVICE, DTYPE, LANGUAGE, LOCAL
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, integers
from benchmarks.replays import median_seconds
from voxcpm_grpc.kernels.products.gated_cuts import choose_cut
from voxcpm_grpc.kernels.products.gemm_tiles import Epilogue, choose_tile
from voxcpm_grpc.layers.transformer import StackShape

CACHE = 128 << 20  # bytes of weights that are more than the cache holds
NOISE = 0.02  # share of a time
EVALUATIONS = 9
MULTIPROCESSORS = 132  # of an H100 or H200


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product by its size and by what becomes of its result."""

    inputs: int
    outputs: int
    epilogue: Epilogue

    @property
    def by_library(self) -> str:
        return f"{self.inputs} > {self.outputs}" + (" added" if self.epilogue is Epilogue.ADD else "")


@dataclass(frozen=True, slots=True)
class Use:
    """A product in a step: its rows for each stream, and its runs."""

    where: str
    product: Product
    rows: int
    runs: int


@dataclass(frozen=True, slots=True)
class Row:
    """A product at one number of streams."""

    streams: int
    where: str
    product: str
    rows: int
    us: float
    best_rows: int
    best_us: float
    saves_ms: float  # in a step


def uses() -> list[Use]:
    """The products of a step with ten timesteps."""
    return [
        *_stack("LocDiT", LOCAL, rows=22, read=8, passes=EVALUATIONS),
        *_stack("LocEnc", LOCAL, rows=5, read=1, passes=1),
        *_stack("LMs", LANGUAGE, rows=1, read=1, passes=1),
    ]


def _stack(name: str, shape: StackShape, rows: int, read: int, passes: int) -> Iterator[Use]:
    """The products of a stack. After its attention, the last layer computes only the rows that are read."""
    heads, groups = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Use(f"{name} qkv", Product(shape.hidden, heads + 2 * groups, Epilogue.NONE), rows, passes * shape.layers)
    for part, product in (
        ("out", Product(heads, shape.hidden, Epilogue.ADD)),
        ("gate, up", Product(shape.hidden, 2 * shape.ffn, Epilogue.GATED)),
        ("down", Product(shape.ffn, shape.hidden, Epilogue.ADD)),
    ):
        yield Use(f"{name} {part}", product, rows, passes * (shape.layers - 1))
        yield Use(f"{name} {part}, last layer", product, read, passes)


def served_by_library(product: Product, rows: int) -> bool:
    """True if the library computes a product, because no kernel of the project does."""
    gated = product.epilogue is Epilogue.GATED
    outputs = product.outputs // 2 if gated else product.outputs
    if rows == 1 or (gated and choose_cut(rows, outputs, product.inputs, MULTIPROCESSORS)):
        return False
    return choose_tile(product.epilogue, rows, outputs, product.inputs) is None


def candidates(rows: int, multiple: int, widest: float) -> list[int]:
    """The number of rows itself, and the multiples above it, up to `widest` times as many."""
    first = (rows // multiple + 1) * multiple
    return [rows, *range(first, int(rows * widest) + 1, multiple)]


class Clock:
    """The seconds of products by their rows. Measures each once."""

    def __init__(self) -> None:
        self.known: dict[tuple[Product, int], float] = {}

    def __call__(self, product: Product, rows: int) -> float:
        if (product, rows) not in self.known:
            self.known[product, rows] = seconds(product, rows)
        return self.known[product, rows]


def seconds(product: Product, rows: int) -> float:
    """The seconds of one product in a row of products of its kind, including the gap to the next one."""
    count = max(8, -(-CACHE // (product.inputs * product.outputs * DTYPE.itemsize)))
    scale = product.inputs**-0.5
    weights = [(torch.randn(product.outputs, product.inputs, device=DEVICE) * scale).to(DTYPE) for _ in range(count)]
    x = torch.randn(rows, product.inputs, device=DEVICE).to(DTYPE)
    out = torch.zeros(rows, product.outputs, device=DEVICE, dtype=DTYPE)

    def work() -> None:
        for weight in weights:
            if product.epilogue is Epilogue.ADD:
                out.addmm_(x, weight.t())
            else:
                torch.mm(x, weight.t(), out=out)

    return median_seconds(work) / count


def measure(clock: Clock, streams: int, multiple: int, widest: float) -> list[Row]:
    """The rows of all products of a step that the library computes."""
    found = []
    for use in uses():
        rows = use.rows * streams
        if not served_by_library(use.product, rows):
            continue
        times = {n: clock(use.product, n) for n in candidates(rows, multiple, widest)}
        best = min(times, key=lambda n: times[n])
        saved = times[rows] - times[best]
        if saved < NOISE * times[rows]:
            best, saved = rows, 0.0
        found.append(
            Row(
                streams,
                use.where,
                use.product.by_library,
                rows,
                times[rows] * 1e6,
                best,
                times[best] * 1e6,
                saved * use.runs * 1e3,
            )
        )
    return found


def queries_apart(clock: Clock, streams: int) -> tuple[float, float]:
    """The microseconds of q, k and v in one product of all rows, and with q apart for the rows that are read."""
    heads, groups = LOCAL.heads * LOCAL.head_dim, LOCAL.kv_heads * LOCAL.head_dim
    whole, keys, queries = (Product(LOCAL.hidden, n, Epilogue.NONE) for n in (heads + 2 * groups, 2 * groups, heads))
    apart = clock(keys, 22 * streams) + clock(queries, 8 * streams)
    return clock(whole, 22 * streams) * 1e6, apart * 1e6


@torch.inference_mode()
def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--streams", type=integers, default=[8, 16, 24, 32, 40, 48, 56, 64], help="numbers of streams")
    parser.add_argument("--multiple", type=int, default=16, help="padded numbers of rows are multiples of this")
    parser.add_argument("--widest", type=float, default=1.3, help="most rows, as a multiple of a product's own")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    streams: list[int] = options.streams
    clock, rows = Clock(), []
    print("| streams | product | size | rows | us | best rows | us | saves, ms a step |")
    print("|---:|---|---|---:|---:|---:|---:|---:|")
    for n in streams:
        found = measure(clock, n, options.multiple, options.widest)
        for row in found:
            print(
                f"| {row.streams} | {row.where} | {row.product} | {row.rows} | {row.us:.1f} | {row.best_rows} "
                f"| {row.best_us:.1f} | {row.saves_ms:.3f} |",
                flush=True,
            )
        print(f"| {n} | all | | | | | | {sum(row.saves_ms for row in found):.3f} |", flush=True)
        rows += found
    print("\n| streams | q, k, v, us | k, v and q apart, us |\n|---:|---:|---:|")
    apart = {n: queries_apart(clock, n) for n in streams}
    for n, (whole, both) in apart.items():
        print(f"| {n} | {whole:.1f} | {both:.1f} |", flush=True)
    if options.json:
        times = [
            {"product": product.by_library, "rows": n, "us": took * 1e6} for (product, n), took in clock.known.items()
        ]
        record = {"command": command(), "versions": versions("torch", "triton"), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record | {"times": times, "queries_apart": apart}, indent=1) + "\n")


if __name__ == "__main__":
    main()
