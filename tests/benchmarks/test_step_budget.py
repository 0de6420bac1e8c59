"""The cost of a step stays within its budget: operations and kernel calls on a CPU, launches as counted on a GPU."""

import json
import sys

import pytest

from benchmarks import budget
from voxcpm_grpc.layers.packed import packing_serves

REMEDY = "to accept the higher cost: python -m benchmarks.budget --accept"


@pytest.fixture(scope="module")
def counted() -> dict:
    return budget.count()


@pytest.fixture(scope="module")
def allowed() -> dict:
    return json.loads(budget.BUDGET.read_text())


def test_a_step_stays_within_its_budget(counted, allowed):
    excess = budget.over(counted, allowed["cpu"])
    assert not excess, f"{excess}; {REMEDY}"


def test_operations_do_not_multiply_with_streams(counted):
    one, eight = counted["1"], counted["8"]
    assert abs(eight["ops"] - one["ops"]) <= 0.02 * one["ops"], "a step loops over its streams"
    assert eight["calls"] == one["calls"]


def test_the_count_includes_all_attention_of_the_model(counted):
    # Five layers of language models and one of LocEnc. The nine evaluations of the two layers of LocDiT have their own
    # attention where oneDNN serves.
    attends = sum(count for name, count in counted["1"]["calls"].items() if name.startswith("att"))
    assert attends == 5 + 1 + (0 if packing_serves() else 9 * 2)


def test_launches_on_a_gpu_stay_within_their_budget(allowed):
    launches = json.loads(budget.LAUNCHES.read_text())["buckets"] if budget.LAUNCHES.is_file() else {}
    assert launches.keys() == allowed.get("gpu", {}).keys(), f"some buckets have no budget; {REMEDY}"
    assert not budget.over(launches, allowed.get("gpu", {})), REMEDY


def test_values_over_their_budget_or_without_one_are_named():
    limits = {"1": {"ops": 10, "calls": {"attend": 5}}}
    assert budget.over({"1": {"ops": 10, "calls": {"attend": 5}}}, limits) == []
    assert budget.over({"1": {"ops": 11, "calls": {"attend": 4, "store": 1}}}, limits) == [
        "1: ops is 11, its budget 10",
        "1: calls: store is 1, its budget is missing",
    ]


def test_counting_leaves_no_hook_behind(counted):
    assert sys.getprofile() is None
