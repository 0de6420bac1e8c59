"""The least time that a step of a VoxCPM model can take on a device: its bytes and its products at measured ceilings.

    python -m benchmarks.roofline --json ceilings.json     measures the ceilings of this GPU

Each module takes the time to read its weights once for each evaluation, or to compute its products if that is longer.
The KV cache is read once. Launches, the products of attention, the codec and everything between the modules count as 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser

BYTES = 2  # of a weight and of a cached key or value: bfloat16
COPIED = 4 << 30  # bytes: far more than any cache holds
SIDE = 8192  # of the square matrices
REPEATS = 20


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured rates of a GPU."""

    copy_tb_per_s: float  # device to device, bytes read plus bytes written
    matmul_tflop_per_s: float  # bfloat16, random data


@dataclass(frozen=True, slots=True)
class Module:
    """A part of the model."""

    weights: float
    reads: int  # evaluations a step
    tokens: int  # rows of one stream in one evaluation


def modules(config: Mapping[str, Any], timesteps: int) -> dict[str, Module]:
    """The modules that a step evaluates, with guidance. config: the checkpoint's config.json.

    VoxCPM2 gives the LocDiT two tokens of condition and one of time, and joins its language models by a product. Older
    models add all of that up in one token.
    """
    second = config.get("architecture") == "voxcpm2"
    lm, enc, dit = config["lm_config"], config["encoder_config"], config["dit_config"]
    hidden, latent, codes = lm["hidden_size"], config["feat_dim"], config["scalar_quantization_latent_dim"]
    patch, e, d = config["patch_size"], enc["hidden_dim"], dit["hidden_dim"]
    lm_layer = layer_weights(lm, hidden, lm["intermediate_size"], lm["num_attention_heads"])
    enc_layer = layer_weights(lm, e, enc["ffn_dim"], enc["num_heads"])
    dit_layer = layer_weights(lm, d, dit["ffn_dim"], dit["num_heads"])
    projections = (
        e * hidden + 2 * hidden * d + 2 * hidden * codes + hidden * hidden + 2 * hidden
    )  # enc_to_lm; both to the DiT; both of the quantizer; the stop predictor
    if second:
        projections += 2 * hidden * hidden  # fusion
    skipped = max(1, int((timesteps + 1) * 0.04))  # timesteps without an evaluation
    return {
        "base LM": Module(lm["num_hidden_layers"] * lm_layer, 1, 1),
        "residual LM": Module(config["residual_lm_num_layers"] * lm_layer, 1, 1),
        "LocEnc": Module(enc["num_layers"] * enc_layer + e * latent, 1, 1 + patch),
        "projections": Module(projections, 1, 1),
        "LocDiT": Module(
            dit["num_layers"] * dit_layer + 3 * d * latent, timesteps - skipped, 2 * ((3 if second else 1) + 2 * patch)
        ),
    }


def layer_weights(lm: Mapping[str, Any], hidden: int, ffn: int, heads: int) -> int:
    """The number of weights of a transformer layer."""
    head = lm.get("kv_channels") or lm["hidden_size"] // lm["num_attention_heads"]
    return 2 * hidden * heads * head + 2 * hidden * lm["num_key_value_heads"] * head + 3 * hidden * ffn


def floor_seconds(
    config: Mapping[str, Any], streams: int, ceilings: Ceilings, *, timesteps: int = 10, context: float = 0
) -> float:
    """The least seconds of one step. context: mean positions of a stream in the KV cache."""
    bandwidth, peak = ceilings.copy_tb_per_s * 1e12, ceilings.matmul_tflop_per_s * 1e12
    lm = config["lm_config"]
    head = lm.get("kv_channels") or lm["hidden_size"] // lm["num_attention_heads"]
    layers = lm["num_hidden_layers"] + config["residual_lm_num_layers"]
    cache = streams * context * 2 * BYTES * lm["num_key_value_heads"] * head * layers
    return cache / bandwidth + sum(
        module.weights * module.reads * max(BYTES / bandwidth, 2 * module.tokens * streams / peak)
        for module in modules(config, timesteps).values()
    )


def measure() -> Ceilings:
    """Measure the ceilings of the current GPU."""
    import torch

    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copying = _seconds(lambda: target.copy_(source))
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return Ceilings(2 * COPIED / copying / 1e12, 2 * SIDE**3 / _seconds(lambda: a @ b) / 1e12)


def _seconds(work: Callable[[], object]) -> float:
    """The median time of a piece of device work."""
    import torch

    for _ in range(3):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in pairwise(marks))[REPEATS // 2] / 1e3


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--json", type=Path, help="also write the ceilings to this file")
    options = parser.parse_args()
    ceilings = measure()
    print(f"copy {ceilings.copy_tb_per_s:.2f} TB/s, bf16 matmul {ceilings.matmul_tflop_per_s:.0f} TFLOP/s")
    if options.json:
        table = {"command": command(), "versions": versions("torch"), **asdict(ceilings)}
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
