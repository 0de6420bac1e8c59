"""Measure the same bursts through nano-vllm-voxcpm, as published, for a comparison in the same run on the same GPU.

    python -m venv peer && peer/bin/pip install torch
    peer/bin/pip install --no-build-isolation flash-attn 'nano-vllm-voxcpm==2.0.5'
    PYTHONPATH=. peer/bin/python -m benchmarks.peer_nanovllm --model DIR --streams 1,8,16,32,64 --steps 100

It needs an environment of its own, without this project's packages: it imports no part of the engine. The peer runs
with its defaults: CUDA graphs, flash-attn, and its asynchronous server with the engine in a process of its own.
Requests end at their length, so the checkpoint must never stop (`tools/make_checkpoint.py --full-size --never-stop`).
The peer's prefix cache has pages of 256 positions; shorter texts cannot be found in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measuring import bursts
from benchmarks.measuring.environment import command, gpu_memory_gib, versions
from benchmarks.measuring.flags import command_parser, integers
from benchmarks.measuring.texts import text


async def run_burst(server: Any, first: int, streams: int, options: argparse.Namespace, rate: int) -> bursts.Row:
    """Submit all requests at once and wait until they finish. rate: samples per second."""
    began = perf_counter()
    names = [path.name for path in options.adapters]

    async def one(serial: int) -> tuple[list[float], int]:
        times, samples = [], 0
        chunks = server.generate(
            target_text=text(serial, options.chars),
            max_generate_length=options.steps,
            temperature=1.0,
            cfg_value=options.cfg,
            **({"lora_name": names[serial % len(names)]} if names else {}),
        )
        async for chunk in chunks:
            times.append(perf_counter() - began)
            samples += len(chunk)
        if len(times) != options.steps:
            raise SystemExit(
                f"stream {serial} ended after {len(times)} of {options.steps} steps: use a checkpoint that never stops"
            )
        return times, samples

    streamed = await asyncio.gather(*(one(first + index) for index in range(streams)))
    return bursts.row([times for times, _ in streamed], streamed[0][1] / options.steps / rate)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    from nanovllm_voxcpm import VoxCPM

    began = perf_counter()
    lora: dict[str, Any] = {}
    if options.adapters:
        from nanovllm_voxcpm.models.voxcpm2.config import LoRAConfig

        configs = [json.loads((path / "lora_config.json").read_text())["lora_config"] for path in options.adapters]
        lora["lora_config"] = LoRAConfig(
            max_loras=len(configs),
            max_lora_rank=max(config["r"] for config in configs),
            **{part: any(config[part] for config in configs) for part in ("enable_lm", "enable_dit", "enable_proj")},
        )
    server: Any = VoxCPM.from_pretrained(
        model=options.model,
        inference_timesteps=options.timesteps,
        max_num_seqs=max(options.streams),
        max_model_len=options.max_model_len,
        gpu_memory_utilization=options.gpu_memory_utilization,
        **lora,
    )
    rows, first = [], 0
    try:
        await server.wait_for_ready()
        for path in options.adapters:
            await server.register_lora(path.name, str(path))
        start_seconds = perf_counter() - began
        rate = int((await server.get_model_info())["sample_rate"])
        print(f"ready in {start_seconds:.0f} s\n{bursts.HEADINGS}", flush=True)
        for count in options.streams:
            measured = []
            for _ in range(options.repeats + 1):
                measured.append(await run_burst(server, first, count, options, rate))
                first += count
            rows.append(bursts.median(measured[1:]))
            print(bursts.line(rows[-1]), flush=True)
        memory = gpu_memory_gib()
    finally:
        await server.stop()
    import flash_attn

    return {
        "command": command(),
        "versions": versions("nano-vllm-voxcpm", "torch", "triton", "transformers")
        | {"flash-attn": flash_attn.__version__},
        "memory_gib": memory,
        "start_seconds": start_seconds,
        "rows": [asdict(row) for row in rows],
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", required=True, help="a checkpoint directory")
    parser.add_argument(
        "--streams", type=integers, default=[1, 8, 16, 32, 64], help="streams of each burst, separated by commas"
    )
    parser.add_argument("--steps", type=int, default=100, help="steps of each stream")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--cfg", type=float, default=2.0, help="strength of the guidance")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--repeats", type=int, default=3, help="bursts of each row, after one that warms up")
    parser.add_argument("--max-model-len", type=int, default=4096, help="most positions of a request")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.6, help="share of the GPU's memory")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--loras", type=Path, help="directory of adapters of VoxCPM2, each in a folder of its own")
    options = parser.parse_args()
    options.adapters = sorted(options.loras.iterdir()) if options.loras else []
    table = asyncio.run(run(options))
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
