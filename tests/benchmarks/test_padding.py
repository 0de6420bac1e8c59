"""The products of a step that the library computes, and the time that the best number of rows saves."""

import pytest

pytest.importorskip("triton")

from benchmarks import padding
from benchmarks.kernels import LANGUAGE, LOCAL, parameters
from benchmarks.padding import Clock, candidates, measure, served_by_library, uses


def by_library(streams: int) -> set[str]:
    return {use.where for use in uses() if served_by_library(use.product, use.rows * streams)}


def test_the_uses_are_all_products_of_a_step():
    weights = sum(use.runs * use.product.inputs * use.product.outputs for use in uses())
    assert weights == (padding.EVALUATIONS + 1) * parameters(LOCAL) + parameters(LANGUAGE)


def test_products_with_a_kernel_of_the_project_are_left_out():
    assert by_library(2) == set()
    assert by_library(8) == set()
    assert "LocDiT down, last layer" not in by_library(16)
    assert {f"LocDiT {part}, last layer" for part in ("out", "gate, up", "down")} <= by_library(32)
    assert not any(where.startswith("LocDiT gate, up") and "last" not in where for where in by_library(64))
    assert not any(where.startswith("LMs") for where in by_library(64))


def test_candidates_are_the_rows_and_the_multiples_above_them():
    assert candidates(704, 16, 1.3)[0] == 704
    assert 880 in candidates(704, 16, 1.3)
    assert candidates(100, 64, 2) == [100, 128, 192]
    assert candidates(128, 64, 1.2) == [128]


def test_the_best_count_saves_its_difference_in_every_run():
    clock = Clock()
    for use in uses():
        for rows in candidates(32 * use.rows, 16, 1.3):
            clock.known[use.product, rows] = 20e-6
    down = next(use for use in uses() if use.where == "LocDiT down")
    clock.known[down.product, 704] = 17.7e-6
    clock.known[down.product, 880] = 15.7e-6
    found = {row.where: row for row in measure(clock, 32, 16, 1.3)}
    row = found.pop("LocDiT down")
    assert (row.rows, row.best_rows) == (704, 880)
    assert row.saves_ms == pytest.approx(2e-3 * 9 * 11)
    assert all(other.saves_ms == 0 and other.best_rows == other.rows for other in found.values())


def test_a_saving_below_the_noise_counts_as_zero():
    clock = Clock()
    for use in uses():
        for rows in candidates(64 * use.rows, 16, 1.3):
            clock.known[use.product, rows] = 1e-5 - 1e-9 * rows / 64
    assert all(row.saves_ms == 0 for row in measure(clock, 64, 16, 1.3))
