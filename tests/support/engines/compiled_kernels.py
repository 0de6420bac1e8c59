"""Compiles the kernels that engines launch on a GPU, and prints one line of JSON for each: `Compiled`.

    PYTHONPATH=tests:. python -m support.engines.compiled_kernels sm_86                the first variant of every kernel
    PYTHONPATH=tests:. python -m support.engines.compiled_kernels sm_86 --every        every variant of every kernel

It needs no GPU. Triton brings NVIDIA's assembler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.engines.gpus import GPUS, Gpu

ROOT = Path(__file__).parents[3]
TENSOR_COLUMNS = 512  # of a multiprocessor, on Blackwell
MAX_STACK = 128  # bytes of a thread: a few spilled registers cost little
# In float32, short prompts whose contexts are divided. On an H200 eight warps, which spill less, are faster with up to
# 300 positions and slower with 1000.
ACCEPTED_STACK = {"_paged_attention_kernel": 640}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of machine code: registers and bytes of local memory of a thread, shared memory of a block."""

    registers: int
    stack: int  # spilled registers, above all
    shared: int  # bytes that the code declares for a block, with the KiB that CUDA reserves from Hopper on


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A variant of a kernel in machine code. `error` is empty where that succeeded; else all counts are 0."""

    kernel: str
    constants: dict[str, Any]
    warps: int
    overlaps: bool  # launched as a dependent of the kernel before it
    shared: int = 0  # bytes of a block
    tensor_columns: int = 0  # of tensor memory, which Blackwell has
    registers: int = 0
    stack: int = 0
    error: str = ""

    def __str__(self) -> str:
        constants = ", ".join(f"{name}={value}" for name, value in self.constants.items())
        return f"{self.kernel}({constants}) with {self.warps} warps"


def faults(kernel: Compiled, gpu: Gpu) -> list[str]:
    """The reasons why a kernel cannot run on a GPU, or only slowly."""
    found = []
    if kernel.error:
        found.append(f"does not compile: {kernel.error}")
    if kernel.shared > gpu.shared:
        found.append(f"takes {kernel.shared} bytes of shared memory, a block has {gpu.shared}")
    if kernel.tensor_columns > TENSOR_COLUMNS:
        found.append(f"takes {kernel.tensor_columns} columns of tensor memory, there are {TENSOR_COLUMNS}")
    if kernel.stack > (accepted := ACCEPTED_STACK.get(kernel.kernel, MAX_STACK)):
        found.append(f"keeps {kernel.stack} bytes of a thread in memory, at most {accepted} are acceptable")
    if kernel.overlaps and gpu.capability < (9, 0):
        found.append("is launched as a dependent of another kernel, which needs compute capability 9.0")
    return [f"{gpu.target}: {kernel} {fault}" for fault in found]


def compile_elsewhere(gpu: Gpu, *arguments: str, processes: int = 1) -> list[Compiled]:
    """The output of this program, run in processes of its own: the tests' process may interpret kernels."""
    unwanted = {"TRITON_INTERPRET", "TRITON_CACHE_DIR"}
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    env["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "tests", ROOT, *filter(None, sys.path))))
    with tempfile.TemporaryDirectory() as folder:
        env["TRITON_CACHE_DIR"] = folder
        command = [sys.executable, "-m", "support.engines.compiled_kernels", gpu.target, *arguments]
        parts = [Path(folder, f"part-{part}") for part in range(processes)]
        running = []
        for number, part in enumerate(parts):
            with part.open("wb") as output, part.with_suffix(".errors").open("wb") as errors:
                share = ["--part", str(number), "--parts", str(processes)]
                running.append(subprocess.Popen([*command, *share], env=env, stdout=output, stderr=errors))
        try:
            for part, process in zip(parts, running, strict=True):
                assert process.wait() == 0, part.with_suffix(".errors").read_text("utf-8")
        finally:
            for process in running:
                process.kill()
                process.wait()
        return [Compiled(**json.loads(line)) for part in parts for line in part.read_text("utf-8").splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=sorted(GPUS))
    parser.add_argument("--every", action="store_true", help="every variant of every kernel")
    parser.add_argument("--kernels", nargs="*", help="only these")
    parser.add_argument("--part", type=int, default=0, help="which part of the variants, from 0")
    parser.add_argument("--parts", type=int, default=1, help="how many parts there are")
    chosen = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")

    from support.engines.kernel_launches import EVERY, FEW, find_variants

    variants = find_variants(GPUS[chosen.target], EVERY if chosen.every else FEW)
    if not chosen.every:
        variants = list({variant.name: variant for variant in reversed(variants)}.values())
    if chosen.kernels:
        variants = [variant for variant in variants if variant.name in chosen.kernels]
    for variant in variants[chosen.part :: chosen.parts]:
        print(json.dumps(asdict(_compile(variant))), flush=True)


def _compile(variant: Any) -> Compiled:
    options = variant.options
    known = {
        "kernel": variant.name,
        "constants": variant.constants,
        "warps": options["num_warps"],
        "overlaps": options["launch_pdl"],
    }
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Triton prints what the assembler rejects
            built = variant.kernel.preload(variant.specialization)
        resources = read_resources(built.asm["cubin"])
    except Exception as error:  # of the compiler, the assembler or the disassembler: all are findings
        return Compiled(**known, error=f"{type(error).__name__}: {error}"[:2000])
    columns = getattr(built.metadata, "tmem_size", None) or 0
    shared, registers, stack = built.metadata.shared, resources.registers, resources.stack
    return Compiled(**known, shared=shared, tensor_columns=columns, registers=registers, stack=stack)


def read_resources(code: bytes) -> Resources:
    """The resources of the one kernel in machine code, as NVIDIA's disassembler prints them."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", printed)
    if len(found) != 1:
        raise ValueError(f"one kernel was expected in {printed!r}")
    registers, stack, shared = map(int, found[0])
    return Resources(registers=registers, stack=stack, shared=shared)


if __name__ == "__main__":
    main()
