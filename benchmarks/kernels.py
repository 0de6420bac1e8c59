"""Measure the transformer stacks of a step, each in a captured graph, with fused and with plain operations.

    python -m benchmarks.kernels [--streams 1,2,4,8,16,32,64] [--ops fused,fp8,plain]

The weights are random and of the released sizes, and more than the cache holds. Each stream has 22 rows in an
evaluation of the diffusion transformer (11 tokens, with and without condition), 5 in the patch encoder, and 1 in the 28
+ 8 layers of the language models. After its attention, the last layer of the first two computes only the rows that are
read: 8 and 1 for each stream. With `fp8` the language models have weights of 8 bits, and the others are not measured.
The floor is the larger of two times: to read the weights once at the bandwidth of a large copy, and to compute the
products at the rate of a large matrix product. Both rates are measured in the same run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, integers
from benchmarks.replays import median_seconds
from voxcpm_grpc.attention import PagedKV, PagedRows, Rotation
from voxcpm_grpc.layers.choice import choose_attention, choose_ops
from voxcpm_grpc.layers.ops import Ops
from voxcpm_grpc.layers.transformer import StackShape, Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.flow.local import attend_local

LOCAL = StackShape(hidden=1024, ffn=4096, heads=16, kv_heads=2, head_dim=128, layers=12, eps=1e-5)
LANGUAGE = StackShape(hidden=2048, ffn=6144, heads=16, kv_heads=2, head_dim=128, layers=36, eps=1e-5)
CONTEXT, LONGEST = 500, 8192  # positions of a stream, and the most for which the graph is captured
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16


@dataclass(frozen=True, slots=True)
class Row:
    """A stack at one number of streams."""

    module: str
    ops: str
    streams: int
    rows: int
    us: float
    floor_us: float
    tb_s: float  # TB a second, if the weights are read once
    tflop_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured rates of a GPU."""

    bandwidth: float  # bytes a second, read plus written, of a large copy
    rate: float  # operations a second of a large bfloat16 product


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--streams", type=integers, default=[1, 2, 4, 8, 16, 32, 64], help="numbers of streams")
    parser.add_argument("--ops", default="fused,plain", help="operations, of fused, fp8 and plain")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    ceilings = measure_ceilings()
    print(f"copy {ceilings.bandwidth / 1e12:.2f} TB/s, product {ceilings.rate / 1e12:.0f} TFLOP/s\n")
    print("| module | ops | streams | rows | us | floor us | TB/s | TFLOP/s |\n|---|---|---:|---:|---:|---:|---:|---:|")
    rows = []
    for name in args.ops.split(","):
        for row in measure(name, args.streams, ceilings):
            rows.append(row)
            print(
                f"| {row.module} | {row.ops} | {row.streams} | {row.rows} | {row.us:.1f} | {row.floor_us:.1f} "
                f"| {row.tb_s:.2f} | {row.tflop_s:.0f} |",
                flush=True,
            )
    if args.json:
        record = {"command": command(), "versions": versions("torch", "triton"), "ceilings": asdict(ceilings)}
        args.json.write_text(json.dumps(record | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")


@torch.inference_mode()
def measure(name: str, streams: list[int], ceilings: Ceilings) -> list[Row]:
    """The rows of all stacks. name: the operations, "fused", "plain" or, for the language models alone, "fp8"."""
    ops, quantize = choose_ops(name != "plain", DEVICE), name == "fp8"
    width = 1 if quantize else DTYPE.itemsize
    attention = choose_attention("triton", DEVICE)
    found: list[Row] = []

    def add(
        module: str,
        n: int,
        stack: Transformer,
        shape: tuple[int, ...],
        attend: Callable[..., Tensor],
        wanted: range | None = None,
    ) -> None:
        x = torch.randn(*shape, stack.shape.hidden, device=DEVICE).to(DTYPE)
        rows = x.numel() // stack.shape.hidden
        seconds = median_seconds(partial(stack, x, attend, wanted))
        size = parameters(stack.shape)
        work = 2 * size * rows
        if wanted is not None:
            work -= 2 * behind_attention(stack.shape) * (rows - rows * len(wanted) // shape[0])
        floor = max(size * width / ceilings.bandwidth, work / ceilings.rate)
        speed = (size * width / seconds / 1e12, work / seconds / 1e12)
        found.append(Row(module, name, n, rows, seconds * 1e6, floor * 1e6, *speed))

    if not quantize:
        local = random_stack(LOCAL, ops, late_norm=True)
        for n in streams:
            add("LocDiT", n, local, (11, 2 * n), partial(attend_local, attention, side_by_side(11)), range(7, 11))
        for n in streams:
            add("LocEnc", n, local, (5, n), partial(attend_local, attention, side_by_side(5)), range(1))
        del local
    language = random_stack(LANGUAGE, ops, quantize=quantize)
    for n in streams:
        kv, rows = pages(n)
        add("LMs", n, language, (n,), partial(attention.attend, kv=kv, rows=rows, rotate=rotation(n)))
    return found


def random_stack(shape: StackShape, ops: Ops, *, late_norm: bool = False, quantize: bool = False) -> Transformer:
    """A stack with random weights, of 8 bits with `quantize`."""
    heads, groups = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widths = {"q": heads, "k": groups, "v": groups}
    sizes = {f"self_attn.{name}_proj": (width, shape.hidden) for name, width in widths.items()}
    sizes |= {"self_attn.o_proj": (shape.hidden, heads), "mlp.down_proj": (shape.hidden, shape.ffn)}
    sizes |= {f"mlp.{name}_proj": (shape.ffn, shape.hidden) for name in ("gate", "up")}
    tensors = {"norm.weight": torch.ones(shape.hidden, device=DEVICE)}
    for i in range(shape.layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"layers.{i}.{norm}.weight"] = torch.rand(shape.hidden, device=DEVICE) + 0.5
        for name, (outputs, inputs) in sizes.items():
            weight = torch.randn(outputs, inputs, device=DEVICE) * (0.5 * inputs**-0.5)
            tensors[f"layers.{i}.{name}.weight"] = weight.to(DTYPE)
    weights = Weights("random", tensors, DEVICE, DTYPE, DTYPE)
    return Transformer(shape, weights, ops, late_norm=late_norm, quantize=quantize)


def parameters(shape: StackShape) -> int:
    """The number of weights in the products of a stack."""
    heads, groups = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.layers * shape.hidden * (2 * heads + 2 * groups + 3 * shape.ffn)


def behind_attention(shape: StackShape) -> int:
    """The number of weights in the products of a layer that follow its attention."""
    return shape.hidden * (shape.heads * shape.head_dim + 3 * shape.ffn)


def rotation(positions: int) -> Rotation:
    """The rotation of so many positions of one sequence."""
    angle = torch.arange(positions, device=DEVICE)[:, None, None] * 10 ** -torch.linspace(0, 4, 64, device=DEVICE)
    return Rotation(angle.cos(), angle.sin())


def side_by_side(positions: int) -> Rotation:
    """The rotation of sequences that lie side by side, tokens first."""
    rotate = rotation(positions)
    return Rotation(rotate.cos[:, None], rotate.sin[:, None])


def pages(streams: int) -> tuple[PagedKV, PagedRows]:
    """One row for each stream, at position CONTEXT - 1, with pages of its own."""
    own = -(-CONTEXT // 16)
    table = torch.zeros(streams, LONGEST // 16, dtype=torch.int32, device=DEVICE)
    table[:, :own] = 1 + torch.arange(streams * own, dtype=torch.int32, device=DEVICE).view(streams, own)
    kv = torch.randn(2, LANGUAGE.layers, streams * own + 1, 16, LANGUAGE.kv_heads, LANGUAGE.head_dim, device=DEVICE)
    rows = PagedRows(
        cu_seqlens=torch.arange(streams + 1, dtype=torch.int32, device=DEVICE),
        context=torch.full((streams,), CONTEXT, dtype=torch.int32, device=DEVICE),
        block_table=table,
        write=table[:, own - 1].long() * 16 + (CONTEXT - 1) % 16,
        max_rows=1,
        max_context=LONGEST,
        fresh=False,
    )
    return PagedKV(*kv.to(DTYPE)), rows


def measure_ceilings() -> Ceilings:
    source = torch.randn(1 << 30, device=DEVICE)
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device=DEVICE).to(DTYPE) for _ in range(2))
    bandwidth = 2 * source.nbytes / median_seconds(lambda: torch.neg(source, out=target))
    return Ceilings(bandwidth, 2 * 8192**3 / median_seconds(lambda: a @ b))


if __name__ == "__main__":
    main()
