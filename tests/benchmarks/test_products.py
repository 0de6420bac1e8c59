"""Which cuts of a product are measured, and which are chosen."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be asked for before Triton is imported

pytest.importorskip("triton")
from benchmarks import products
from voxcpm_grpc.kernels import product
from voxcpm_grpc.kernels.cuda_code import KernelUnavailable
from voxcpm_grpc.kernels.product import OWN_BYTES, SHARED_BYTES, Cut

CUT = Cut(rows=24, outputs=64, stages=4)


@pytest.mark.parametrize("rows", [1, 22, 88, 352, 2048])
def test_every_cut_to_measure_fits_its_problem(rows):
    for problem in (*products.LOCAL, *products.LANGUAGE):
        found = [cut for _, cut in products.cuts(problem, rows, 132)]
        assert len(found) >= 8
        for cut in found:
            assert problem.outputs % (cut.outputs * cut.share) == problem.inputs % (product.DEPTH * cut.splits) == 0
            assert cut.rows % (8 * cut.share) == cut.rows % cut.splits == 0
            assert cut.shared(problem.role) + OWN_BYTES <= SHARED_BYTES // cut.resident


def test_a_cut_that_takes_more_registers_than_there_are_is_left_out(monkeypatch):
    def refuse(*pair):
        raise KernelUnavailable("ptxas fatal: insufficient registers")

    monkeypatch.setattr(product, "compile_product", refuse)
    assert not products._compile((product.Role.ADD, CUT))


class Bench:
    """A device that refuses every cut."""

    def __init__(self, problem: products.Problem, rows: int) -> None: ...

    def product(self, cut: Cut) -> float | None:
        return None

    def tiles(self) -> float | None:
        return None

    def library(self) -> float:
        return 7.0


def test_where_no_cut_runs_the_other_ways_serve(monkeypatch):
    monkeypatch.setattr(products, "Bench", Bench)
    measured = [products.measure(problem, 22, [CUT]) for problem in products.LOCAL[1:3]]
    assert products.choose(*measured) == dict.fromkeys(measured)


def found(name: str, us: float, other: float, *, squares: bool = False) -> products.Found:
    problem = next(problem for problem in products.LOCAL if problem.name == name)
    return products.Found(problem, CUT, us, other, squares)


@pytest.mark.parametrize(
    ("add", "then", "chosen"),
    [
        (found("out", 5, 7), found("gate_up", 11, 14), (True, True)),
        (found("out", 5, 7), found("gate_up", 15, 14), (True, False)),
        (found("out", 8, 7), found("gate_up", 11, 14), (True, True)),  # a norm apart would cost more than it loses
        (found("out", 10, 7), found("gate_up", 11, 14), (False, True)),
        (found("out", 10, 7), found("gate_up", 13, 14), (False, False)),  # gains less than a norm apart costs
        (found("out", 10, 7, squares=True), found("gate_up", 13, 14), (False, True)),
    ],
)
def test_a_sum_and_the_product_behind_it_are_chosen_together(add, then, chosen):
    cuts = products.choose(add, then)
    assert (cuts[add] is not None, cuts[then] is not None) == chosen
