"""The number of processes of `make test-gpu`."""

from pathlib import Path

import pytest
from support.gpu_workers import LARGE, LARGE_GIB, SMALL_GIB, lanes, scope, workers

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("gib", "expected"), [(16, 1), (24, 1), (48, 3), (79, 10), (139, 16), (178, 16)])
def test_the_memory_of_the_gpu_decides_how_many_processes_run_its_tests(gib, expected):
    assert workers(gib, cores=16) == expected


def test_all_processes_fit_into_the_memory_of_the_gpu():
    for gib in range(LARGE_GIB, 300):
        large, small = lanes(gib), workers(gib, cores=1000) - lanes(gib)
        assert large * LARGE_GIB + small * SMALL_GIB <= gib, gib


def test_a_host_of_few_cores_runs_no_more_processes_than_cores():
    assert workers(139, cores=4) == 4


def test_files_with_large_models_share_the_processes_that_have_room_for_them():
    users = [
        path
        for path in ROOT.glob("tests/**/test_*.py")
        if "support.engines.full_size import" in path.read_text("utf-8")
    ]
    names = {path.relative_to(ROOT).as_posix() for path in users} - {"tests/test_gpu_workers.py"}
    assert names == set(LARGE)
    assert len({scope(f"{name}::test", 1) for name in names}) == 1
    assert len({scope(f"{name}::test", 2) for name in names}) == 2
    assert scope("tests/kernels/conv/test_conv.py::test_a", 1) == scope("tests/kernels/conv/test_conv.py::test_b[1]", 1)
    assert scope("tests/layers/test_ops.py::test_a", 1) != scope("tests/layers/test_ops.py::test_b", 1)
