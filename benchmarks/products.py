"""Time of single products of a transformer layer by how their launch is cut, beside the other ways to have them.

    python -m benchmarks.products [--local 22,44,88,176,352,704,1408] [--language 2,8,16,32,64,256] [--most 10]

`product` is Hopper's own kernel in its best cuts, `tiles` the Triton kernel as `kernels.tiles` cuts it, `library` what
PyTorch calls, the norm and the SwiGLU in launches of their own. Each number is the mean over a captured chain of
launches that overlap as they do in a step, over as many random weights as keep them out of the cache. An estimate
decides which cuts are measured.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.kernels import linear, product, tiles
from voxcpm_grpc.kernels.launch import multiprocessors
from voxcpm_grpc.kernels.product import DEPTH, OWN_BYTES, SHARED_BYTES, Cut, Role
from voxcpm_grpc.kernels.rowwise import rms_norm, swiglu

DEVICE, EPS = torch.device("cuda", 0), 1e-5
COLD = 200 << 20  # bytes of weights that no cache holds
RATE, NEAR, FAR = 7.5e14, 6.5e12, 4e12  # operations, bytes from the L2 cache and from memory in a second, about
REPEATS = 15


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
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    del kept
    return statistics.median(start.elapsed_time(end) for start, end in times[3:]) * 1e3 / len(calls)


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

    def product(self, cut: Cut) -> float:
        return mean([partial(self._product, cut, weight) for weight in self.weights])

    def _product(self, cut: Cut, weight: Tensor) -> object:
        match self.problem.role:
            case Role.LINEAR:
                return product.norm_linear(self.x, self.squares, EPS, weight, cut)
            case Role.GATED:
                return product.norm_gated(self.x, self.squares, EPS, weight, cut)
            case Role.ADD:
                return product.linear_add(self.x, weight, self.residual, 1.0, cut)

    def tiles(self) -> float | None:
        role = tiles.Role[self.problem.role.name]
        outputs = self.problem.outputs // (2 if role is tiles.Role.GATED else 1)
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
            Role.GATED: lambda weight: swiglu(F.linear(rms_norm(x, None, EPS), weight)),
            Role.ADD: lambda weight: residual.addmm_(x, weight.t()),
        }[self.problem.role]
        return mean([partial(run, weight) for weight in self.weights])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", default="22,44,88,176,352,704,1408", help="rows of the transformers of 1024")
    parser.add_argument("--language", default="2,8,16,32,64,256", help="rows of the language models")
    parser.add_argument("--most", type=int, default=10, help="cuts to measure of each product")
    options = parser.parse_args()
    jobs: list[tuple[str, Problem, int, list[Cut]]] = []
    for name, problems, counts in (("local", LOCAL, options.local), ("language", LANGUAGE, options.language)):
        for rows in (int(count) for count in counts.split(",") if count):
            for problem in problems:
                ranked = sorted(cuts(problem, rows, multiprocessors(DEVICE)), key=lambda pair: pair[0])
                jobs.append((name, problem, rows, [cut for _, cut in ranked[: options.most]]))
    wanted = {(problem.role, cut) for _, problem, _, some in jobs for cut in some}
    with ThreadPoolExecutor() as pool:  # the compiler runs beside itself; the kernels are loaded here, later
        codes = dict(zip(wanted, pool.map(lambda pair: product.compile_product(*pair), wanted), strict=True))
    print(f"{len(codes)} cuts compiled", flush=True)
    product.compile_product = lambda role, cut: codes[role, cut]
    for name, problem, rows, some in jobs:
        bench = Bench(problem, rows)
        found = sorted((bench.product(cut), cut) for cut in some)
        other = bench.tiles()
        best = "  ".join(
            f"{us:.2f} {cut.outputs}x{cut.rows}/{cut.stages}"
            + f" s{cut.splits}" * (cut.splits > 1)
            + " shared" * (cut.share > 1)
            + " r2" * (cut.resident > 1)
            for us, cut in found[:3]
        )
        print(
            f"{name} {rows} {problem.name}: library {bench.library():.2f}"
            + ("" if other is None else f" tiles {other:.2f}")
            + f" product {best}",
            flush=True,
        )


if __name__ == "__main__":
    main()
