"""The number of processes of `make test-gpu`."""

import pytest
from support.gpu_workers import LARGE_GIB, SMALL_GIB, lanes, workers


@pytest.mark.parametrize(("gib", "expected"), [(16, 1), (24, 1), (48, 3), (79, 10), (139, 16), (178, 16)])
def test_the_memory_of_the_gpu_decides_how_many_processes_run_its_tests(gib, expected):
    assert workers(gib, cores=16) == expected


def test_all_processes_fit_into_the_memory_of_the_gpu():
    for gib in range(LARGE_GIB, 300):
        large, small = lanes(gib), workers(gib, cores=1000) - lanes(gib)
        assert large * LARGE_GIB + small * SMALL_GIB <= gib, gib


def test_a_host_of_few_cores_runs_no_more_processes_than_cores():
    assert workers(139, cores=4) == 4
