"""`voxcpm-grpc memory`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from voxcpm_client.cli.operate.serve import INSTALL_SERVER, import_or_explain
from voxcpm_grpc.errors import StartupError

GIB = 2**30
TARGETS = frozenset({"attention", "mlp", "projections"})


def _numbers(kind: Callable[[str], float]) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """The callback of an option that takes positive numbers with commas."""

    def parse(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            numbers = tuple(kind(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < number < float("inf") for number in numbers):
            raise click.BadParameter(
                f"{value!r} is no list of positive numbers such as 32,64", ctx=context, param=parameter
            )
        return numbers

    return parse


@click.command()
@click.option(
    "--model",
    default="demo",
    show_default=True,
    metavar="MODEL",
    help="demo, a directory, or the id of a repository, of which config.json alone is downloaded.",
)
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of the repository.")
@click.option(
    "--slots",
    default="16,32,64,128",
    show_default=True,
    callback=_numbers(int),
    metavar="NUMBERS",
    help="Values of engine.max_slots.",
)
@click.option(
    "--gpu",
    "gpus",
    default="24,40,48,80,140",
    show_default=True,
    callback=_numbers(float),
    metavar="GIB",
    help="Memory of GPUs, as nvidia-smi shows it.",
)
@click.option("--max-model-len", type=click.IntRange(min=1), help="engine.max_model_len. Default: the model's limit.")
@click.option(
    "--kv-positions",
    type=click.IntRange(min=1),
    help="engine.kv_positions. Default: all slots at full length, or as many as fit.",
)
# The flag is deprecated, as engine.page_size is.
@click.option("--page-size", type=click.Choice(["16", "32"]), default="16", hidden=True)
@click.option(
    "--gpu-memory-utilization",
    "utilization",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=0.85,
    show_default=True,
    help="engine.gpu_memory_utilization.",
)
@click.option(
    "--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True, help="engine.dtype."
)
@click.option(
    "--quantization", type=click.Choice(["none", "fp8"]), default="none", show_default=True, help="engine.quantization."
)
@click.option(
    "--max-loras", type=click.IntRange(0, 62), default=0, show_default=True, help="engine.max_loras, LoRA adapters."
)
@click.option(
    "--max-lora-rank", type=click.IntRange(1, 128), default=64, show_default=True, help="engine.max_lora_rank."
)
@click.option(
    "--lora-targets",
    default="attention,projections",
    show_default=True,
    metavar="KINDS",
    help="engine.lora_targets: attention, mlp and projections, with commas.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in bytes.")
def memory(
    model: str,
    revision: str | None,
    slots: tuple[int, ...],
    gpus: tuple[float, ...],
    max_model_len: int | None,
    kv_positions: int | None,
    page_size: str,
    utilization: float,
    dtype: str,
    quantization: str,
    max_loras: int,
    max_lora_rank: int,
    lora_targets: str,
    as_json: bool,
) -> None:
    """Print the GPU memory that an engine takes, by slots, before it is started.

    Needs no GPU and no weights. Weights, slots and KV cache are exact; the working memory of steps and graphs is
    estimated from measurements.

    \b
    Examples:
      voxcpm-grpc memory --model openbmb/VoxCPM2
      voxcpm-grpc memory --model ./VoxCPM2 --slots 64 --gpu 24 --max-model-len 4096
    """
    engine = import_or_explain("voxcpm_grpc.engine.start.memory", INSTALL_SERVER)
    checkpoint = import_or_explain("voxcpm_grpc.checkpoint", INSTALL_SERVER)
    models = import_or_explain("voxcpm_grpc.models.base", INSTALL_SERVER)
    targets = frozenset(lora_targets.split(","))
    if not targets <= TARGETS:
        raise click.BadParameter(
            f"{lora_targets!r} has other kinds than {', '.join(sorted(TARGETS))}", param_hint="--lora-targets"
        )
    try:
        directory = checkpoint.config_directory(model, revision)
        estimates = [
            engine.engine_memory(
                directory,
                count,
                dtype=dtype,
                quantization=quantization,
                max_model_len=max_model_len,
                kv_positions=kv_positions,
                page_size=int(page_size),
                adapters=models.AdapterOptions(max_loras, max_lora_rank, targets) if max_loras else None,
            )
            for count in slots
        ]
    except StartupError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps([_values(one, gpus, utilization) for one in estimates], indent=2))
        return
    weights = "" if quantization == "none" else f" with weights in {quantization}"
    click.echo(f"{model}, {dtype}{weights}: {_described(estimates[0])}\n")
    _print_tables(estimates, gpus, utilization)


def _print_tables(estimates: list[Any], gpus: tuple[float, ...], utilization: float) -> None:
    click.echo(_table(estimates))
    click.echo(
        f"\nPositions of the KV cache that {utilization:.0%} of a GPU hold ('-': not one request of full length)\n"
    )
    click.echo(_fits(estimates, gpus, utilization))
    click.echo("\nWorking memory is an estimate; the rest is exact. An engine checks all of it when it starts.")


def _described(estimate: Any) -> str:
    footprint = estimate.footprint
    position = footprint.layout.bytes_per_position
    copy = f", of which {footprint.single_stream / GIB:.2f} GiB on Hopper GPUs alone" if footprint.single_stream else ""
    return (
        f"{estimate.weights / GIB:.2f} GiB of weights{copy}; {position / 1024:g} KiB of KV cache a position, "
        f"{footprint.positions:,} positions in a request of full length"
    )


def _table(estimates: list[Any]) -> str:
    head = ("slots", "weights", "adapters", "slot state", "working", "KV cache", "engine")
    sizes = [(one.weights, one.adapters, one.state, one.working, one.kv_cache, one.total) for one in estimates]
    rows = [(str(one.slots), *(f"{size / GIB:.2f}" for size in row)) for one, row in zip(estimates, sizes, strict=True)]
    return "GiB\n" + _columns([head, *rows])


def _fits(estimates: list[Any], gpus: tuple[float, ...], utilization: float) -> str:
    head = ("slots", *(f"{gpu:g} GiB" for gpu in gpus))
    rows = [
        (str(one.slots), *(f"{positions:,}" if positions else "-" for positions in counts))
        for one in estimates
        for counts in [[one.positions_on(int(gpu * GIB), utilization) for gpu in gpus]]
    ]
    return _columns([head, *rows])


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _values(estimate: Any, gpus: tuple[float, ...], utilization: float) -> dict[str, Any]:
    return {
        "slots": estimate.slots,
        "weights": estimate.weights,
        "adapters": estimate.adapters,
        "slot_state": estimate.state,
        "working": estimate.working,
        "kv_cache": estimate.kv_cache,
        "total": estimate.total,
        "kv_positions_on_gpu": {f"{gpu:g}": estimate.positions_on(int(gpu * GIB), utilization) for gpu in gpus},
    }
