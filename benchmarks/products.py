"""Time of single products of a transformer layer by how their launch is cut, beside the other ways to have them.

    python -m benchmarks.products [--local 22,44,88] [--language 8,64,256] [--most 8] [--write]

`product` is Hopper's own kernel in its best cuts, `tiles` the Triton kernel as `kernels.tiles` cuts it (for one row
that of `kernels.vector`), `library` what PyTorch calls, the norm and the SwiGLU in launches of their own. Each number
is the mean over a captured chain of launches that overlap as they do in a step, over as many random weights as keep
them out of the cache. An estimate decides which cuts are measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.hardware import command, versions
from benchmarks.kernels import median
from voxcpm_grpc.kernels import linear, product, tiles, vector
from voxcpm_grpc.kernels.cuda_code import KernelUnavailable
from voxcpm_grpc.kernels.cuts import TABLE
from voxcpm_grpc.kernels.launch import multiprocessors
from voxcpm_grpc.kernels.product import DEPTH, OWN_BYTES, SHARED_BYTES, Cut, Role
from voxcpm_grpc.kernels.rowwise import norm_swiglu, rms_norm

DEVICE, EPS = torch.device("cuda", 0), 1e-5
COLD = 200 << 20  # bytes of weights that no cache holds
RATE, NEAR, FAR = 7.5e14, 6.5e12, 4e12  # operations, bytes from the L2 cache and from memory in a second, about
REPEATS = 10
NORM_US = 2.0  # of a norm in a launch of its own
LOCAL_ROWS = (16, 22, 44, 66, 88, 110, 132, 154, 176, 352, 528, 704, 880, 1056, 1232, 1408)
LANGUAGE_ROWS = (1, 8, 16, 24, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    role: Role
    outputs: int  # rows of the weight
    inputs: int


LOCAL = (
    Problem("qkv", Role.LINEAR, 2560, 1024),
    Problem("out", Role.ADD, 1024, 2048),
    Problem("gate_up", Role.GATED, 8192, 1024),
    Problem("down", Role.ADD, 1024, 4096),
)
LANGUAGE = (
    Problem("qkv", Role.LINEAR, 2560, 2048),
    Problem("out", Role.ADD, 2048, 2048),
    Problem("gate_up", Role.GATED, 12288, 2048),
    Problem("down", Role.ADD, 2048, 6144),
)


def cuts(problem: Problem, rows: int, blocks_at_once: int) -> Iterator[tuple[float, Cut]]:
    """Every sensible cut with an estimate of its seconds."""
    for outputs in (64, 128, 256):
        for splits, share in ((1, 1), (2, 1), (4, 1), (1, 2)):
            unit = 8 * math.lcm(share, splits if splits < 4 else 1)
            widths = {-(-rows // (unit * n)) * unit for n in range(1, 17)}
            for width in sorted(width for width in widths if 8 <= width <= 256):
                if problem.outputs % (outputs * share) or problem.inputs % (DEPTH * splits) or width % splits:
                    continue
                blocks = -(-rows // width) * (problem.outputs // outputs) * splits
                slabs = problem.inputs // DEPTH // splits
                for resident in (1, 2):
                    cut = deepest(problem.role, outputs, width, splits, share, resident, slabs)
                    if cut is None:
                        continue
                    at_once = (blocks_at_once - 12 if splits == 4 and resident == 1 else blocks_at_once) * resident
                    waves = math.ceil(blocks / at_once) * resident  # few clusters of four fit side by side
                    bytes_near = (outputs + width / share) * 2 * problem.inputs / splits
                    work = 2 * outputs * max(width, 32) * problem.inputs / splits / (RATE / blocks_at_once)
                    one = max(work, bytes_near / (NEAR / blocks_at_once))
                    late = 1e-6 if splits > 1 or problem.role is Role.ADD else 0.5e-6
                    far = problem.outputs * problem.inputs * 2 / FAR
                    yield max(waves * one, far) + late * waves + 0.3e-6 * (4 / cut.stages), cut


def deepest(role: Role, outputs: int, rows: int, splits: int, share: int, resident: int, slabs: int) -> Cut | None:
    """The cut with the most stages that fit."""
    for stages in range(min(12, max(slabs, 2)), 1, -1):
        cut = Cut(rows=rows, outputs=outputs, stages=stages, splits=splits, share=share, resident=resident)
        if cut.shared(role) + OWN_BYTES <= SHARED_BYTES // resident:
            late = rows * (outputs + 4) * 4 > stages * (outputs + rows) * 2 * DEPTH
            wide = role is Role.ADD and rows * outputs > 256 * 128
            return None if stages < 3 or late or wide else cut
    return None


@torch.inference_mode()
def mean(calls: list[Callable[[], object]]) -> float:
    """Microseconds of one call, of a captured chain of all."""
    return median(lambda: [call() for call in calls], repeats=REPEATS) * 1e6 / len(calls)


class Bench:
    """One problem for so many rows."""

    def __init__(self, problem: Problem, rows: int) -> None:
        self.problem, self.rows = problem, rows
        size = problem.outputs * problem.inputs * 2
        self.weights = [self.random(problem.outputs, problem.inputs) for _ in range(max(8, COLD // size))]
        self.x, self.residual = self.random(rows, problem.inputs), self.random(rows, problem.outputs)
        self.squares = self.x.float().square().view(rows, 16, -1).sum(-1).t().contiguous()
        self.counters = torch.zeros(tiles.MAX_TILES, dtype=torch.int32, device=DEVICE)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE).bfloat16() * (shape[-1] ** -0.5)

    def product(self, cut: Cut) -> float | None:
        """None if the device refuses it."""
        try:
            return mean([partial(self._product, cut, weight) for weight in self.weights])
        except KernelUnavailable:
            return None

    def _product(self, cut: Cut, weight: Tensor) -> object:
        match self.problem.role:
            case Role.LINEAR:
                return product.norm_linear(self.x, self.squares, EPS, weight, cut)
            case Role.GATED:
                return product.norm_gated(self.x, self.squares, EPS, weight, cut)
            case Role.ADD:
                return product.linear_add(self.x, weight, self.residual, 1.0, cut)

    def vector(self) -> float:
        """Of the kernel for one row."""
        x, residual = self.x, self.residual
        run = {
            Role.LINEAR: lambda weight: vector.vector_norm_linear(x, EPS, weight),
            Role.GATED: lambda weight: vector.vector_norm_gated(x, EPS, weight),
            Role.ADD: lambda weight: vector.vector_linear_add(x, weight, residual, 1.0),
        }[self.problem.role]
        return mean([partial(run, weight) for weight in self.weights])

    def tiles(self) -> float | None:
        if self.rows == 1:
            return self.vector()
        role = self.problem.role
        outputs = self.problem.outputs // (2 if role is Role.GATED else 1)
        tile = tiles.choose_tile(role, self.rows, outputs, self.problem.inputs)
        if tile is None:
            return None
        x, squares, residual, counters = self.x, self.squares, self.residual, self.counters
        run = {
            Role.LINEAR: lambda weight: linear.norm_linear(x, squares, EPS, weight, tile),
            Role.GATED: lambda weight: linear.norm_gated(x, squares, EPS, weight, tile),
            Role.ADD: lambda weight: linear.linear_add(x, weight, residual, 1.0, tile, counters),
        }[self.problem.role]
        return mean([partial(run, weight) for weight in self.weights])

    def library(self) -> float:
        x, residual = self.x, self.residual
        run = {
            Role.LINEAR: lambda weight: F.linear(rms_norm(x, None, EPS), weight),
            Role.GATED: lambda weight: norm_swiglu(F.linear(x, weight), x, EPS),
            Role.ADD: lambda weight: residual.addmm_(x, weight.t()),
        }[self.problem.role]
        return mean([partial(run, weight) for weight in self.weights])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", default=",".join(map(str, LOCAL_ROWS)), help="rows of the transformers of 1024")
    parser.add_argument("--language", default=",".join(map(str, LANGUAGE_ROWS)), help="rows of the language models")
    parser.add_argument("--most", type=int, default=8, help="cuts to measure of each product")
    parser.add_argument("--write", action="store_true", help="make what was the fastest the table that is used")
    options = parser.parse_args()
    jobs: dict[tuple[Problem, int], list[Cut]] = {}
    for problems, counts in ((LOCAL, options.local), (LANGUAGE, options.language)):
        for rows in (int(count) for count in counts.split(",") if count):
            for problem in problems:
                ranked = sorted(cuts(problem, rows, multiprocessors(DEVICE)), key=lambda pair: pair[0])
                jobs[problem, rows] = [cut for _, cut in ranked[: options.most]]
    wanted = list({(problem.role, cut) for (problem, _), some in jobs.items() for cut in some})
    workers = min(16, os.cpu_count() or 1)  # the compiler lets in one thread at a time, and keeps what it made
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        made = {pair for pair, done in zip(wanted, pool.map(_compile, wanted, chunksize=4), strict=True) if done}
    print(f"{len(made)} cuts compiled, {len(wanted) - len(made)} take more registers than there are", flush=True)
    table = []
    for problems, counts in ((LOCAL, options.local), (LANGUAGE, options.language)):
        for rows in (int(count) for count in counts.split(",") if count):
            found = {
                problem.name: measure(
                    problem, rows, [cut for cut in jobs[problem, rows] if (problem.role, cut) in made]
                )
                for problem in problems
            }
            chosen = choose(found["out"], found["gate_up"]) | choose(found["down"], found["qkv"])
            for problem in problems:
                entry = {"role": problem.role.name, "outputs": problem.outputs, "inputs": problem.inputs, "rows": rows}
                cut = chosen[found[problem.name]]
                table.append(entry | {"cut": None if cut is None else asdict(cut)})
            if options.write:
                write(table)


def write(table: list[dict[str, object]]) -> None:
    """What is measured so far, so that a sweep that is cut short leaves what it found."""
    head = json.dumps({"command": command(), "versions": versions("torch", "triton")})[:-1]
    lines = ",\n".join(json.dumps(entry) for entry in table)
    TABLE.write_text(f'{head}, "cuts": [\n{lines}\n]}}\n')


def _compile(pair: tuple[Role, Cut]) -> bool:
    """Whether there is such a kernel: what registers a cut takes only the compiler knows."""
    try:
        return bool(product.compile_product(*pair))
    except KernelUnavailable:
        return False


@dataclass(frozen=True, slots=True)
class Found:
    """Microseconds of a problem by its best cut, if there is one, and by the best other way, which may leave sums of
    squares behind."""

    problem: Problem
    cut: Cut | None
    us: float
    other: float
    squares: bool


def measure(problem: Problem, rows: int, some: list[Cut]) -> Found:
    """Times the cuts and the other ways, and prints them."""
    bench = Bench(problem, rows)
    found = sorted((us, i) for i, cut in enumerate(some) if (us := bench.product(cut)) is not None)
    tiled, library = bench.tiles(), bench.library()
    best = "  ".join(f"{us:.2f} {say(some[i])}" for us, i in found[:3])
    said = f"library {library:.2f}" + ("" if tiled is None else f" tiles {tiled:.2f}")
    print(f"{problem.inputs}>{problem.outputs} {problem.name} {rows}: {said} product {best}", flush=True)
    other = library if tiled is None else min(tiled, library)
    us, cut = (found[0][0], some[found[0][1]]) if found else (math.inf, None)
    return Found(problem, cut, us, other, squares=tiled == other and rows > 1)


def choose(add: Found, then: Found) -> dict[Found, Cut | None]:
    """The fastest pair of an addition to the stream and the product of the normalized stream behind it: without sums
    of squares, ours would take a norm in a launch of its own."""
    ways = {
        (add.cut, then.cut): add.us + then.us,
        (add.cut, None): add.us + then.other,
        (None, then.cut): add.other + then.us + (0 if add.squares else NORM_US),
        (None, None): add.other + then.other,
    }
    return dict(zip((add, then), min(ways, key=ways.__getitem__), strict=True))


def say(cut: Cut) -> str:
    more = f" s{cut.splits}" * (cut.splits > 1) + " shared" * (cut.share > 1) + " r2" * (cut.resident > 1)
    return f"{cut.outputs}x{cut.rows}/{cut.stages}{more}"


if __name__ == "__main__":
    main()
