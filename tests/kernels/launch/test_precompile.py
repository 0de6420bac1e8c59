"""The compilation of kernels in parallel processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from voxcpm_grpc.kernels.launch.precompile import Compilation, Launch, compilers, precompile, record
from voxcpm_grpc.progress import Progress, reported_to

ROOT = Path(__file__).parents[3]
LAUNCHES = [Launch("module", f"kernel_{number}", "{}") for number in range(20)]
ANSWER = "import json, sys\nfor line in sys.stdin: print({}, flush=True)"


def compiler(answer: str) -> tuple[str, ...]:
    """A command that answers each launch with the value of an expression."""
    return sys.executable, "-c", ANSWER.format(answer)


def compile_all(processes: int, command: tuple[str, ...]) -> int:
    """The number of launches that failed in so many processes."""
    with compilers(processes, command) as started, Compilation(started) as compilation:
        for launch in LAUNCHES:
            compilation.add(launch)
        return compilation.finish()


@pytest.mark.parametrize("processes", [1, 3, 30])
def test_every_launch_is_compiled_once(processes, tmp_path):
    path = tmp_path / "compiled"
    answer = f"open({str(path)!r}, 'a').write(json.loads(line)['name'] + chr(10)) and 1"
    assert compile_all(processes, compiler(answer)) == 0
    assert sorted(path.read_text().split()) == sorted(launch.name for launch in LAUNCHES)


def test_kernels_that_do_not_compile_are_counted():
    assert compile_all(2, compiler("int('kernel_1\"' not in line)")) == 1


def test_a_compiler_that_ends_leaves_its_work_to_the_others(tmp_path):
    path = tmp_path / "first"
    assert compile_all(2, compiler(f"sys.exit() if 'kernel_7' in line else 1 or {str(path)!r}")) == 1


def test_without_a_compiler_all_kernels_fail():
    assert compile_all(2, (sys.executable, "-c", "")) == len(LAUNCHES)


def test_a_failure_before_the_last_kernel_ends_the_processes():
    with (
        pytest.raises(RuntimeError),
        compilers(2, compiler("1")) as started,
        Compilation(started) as compilation,
    ):
        compilation.add(LAUNCHES[0])
        raise RuntimeError
    assert all(process.returncode is not None for process in started)


RECORDED = """
from types import SimpleNamespace
import torch, triton
import triton.language as tl
from support.engines.gpus import GPUS
from support.engines.kernel_launches import set_target
from voxcpm_grpc.kernels.launch.precompile import record

@triton.jit
def kernel(x, n, SIZE: tl.constexpr):
    pass

set_target(GPUS["sm_90"])
x = SimpleNamespace(dtype=torch.float32, data_ptr=lambda: 512)
grids, calls, kinds = [], [], []

def run():
    for n in (16, 32, 1, 7, 16, 7):
        kernel[lambda meta: grids.append(n) or (n,)](x, n, SIZE=4)
    calls.append(len(kinds))
    raise EOFError("the recorded code fails")

for _ in range(2):
    try:
        record(run, kinds.append)
    except EOFError:
        pass
    kernels, *_ = kernel.device_caches[0]
    assert not kernels, "a later launch would do nothing"
print(calls, len(set(kinds)), [kind.name for kind in kinds[:1]], grids)
"""


def test_launches_of_a_kind_are_found_once_and_do_nothing(tmp_path):
    """A number is specialized if it is 1 or a multiple of 16. Triton calls the grid of a kernel that it has."""
    script = tmp_path / "recorded.py"
    script.write_text(RECORDED)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[3, 6] 3 ['kernel'] [32, 16, 7, 32, 16, 7]", done.stderr


@pytest.mark.gpu
def test_a_kernel_is_in_the_cache_after_its_launch_was_recorded(tmp_path, monkeypatch):
    import torch
    from triton import knobs

    from voxcpm_grpc.kernels.rows.fused_rowwise import rms_norm

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x = torch.ones(3, 328, device="cuda", dtype=torch.float16)
    launches: list[Launch] = []
    record(lambda: [rms_norm(x, None, 1e-5) for _ in range(2)], launches.append)
    assert [launch.name for launch in launches] == ["_rms_norm_kernel"]
    precompile(lambda: rms_norm(x, None, 1e-5), "a test")
    before = {path.name for path in tmp_path.rglob("*.cubin")}
    assert before
    torch.testing.assert_close(rms_norm(x, None, 0.0), x)
    assert {path.name for path in tmp_path.rglob("*.cubin")} == before
    precompile(lambda: pytest.fail("compiled before"), "a test")


def test_the_progress_counts_kernels_of_all_processes():
    steps: list[Progress] = []
    with reported_to(steps.append):
        compile_all(3, compiler("1"))
    assert [str(steps[0]), str(steps[-1])] == [
        "kernels are being compiled, 0 of 20",
        "kernels are being compiled, 20 of 20",
    ]
    assert [step.done for step in steps] == list(range(21))
