"""Products with packed weights agree with PyTorch's, with few rows and many, and with adapters."""

import pytest
import torch
from support.engines.stacks import ODD, SHAPE, random_stack, run

from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.layers import packed
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import TorchOps
from voxcpm_grpc.layers.packed import PackedLinear, PackedOps, packing_serves

pytestmark = pytest.mark.skipif(not packing_serves(), reason="this PyTorch or this CPU has no packed products")


@pytest.mark.parametrize("rows", [1, 3, 4, 22, 300])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "packed alone"])
def test_a_map_agrees_with_its_plain_form(monkeypatch, rows, kept):
    if not kept:
        monkeypatch.setattr(packed, "PLAIN_BYTES", 0)
    linear = Linear(torch.randn(72, 40) / 6, torch.randn(72))
    x = torch.randn(rows, 40)
    torch.testing.assert_close(PackedLinear.of(linear)(x), linear(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [SHAPE, ODD], ids=["256", "40"])
@pytest.mark.parametrize("rows", [(1, 1), (1, 11), (3, 11)], ids=str)
def test_a_stack_agrees_with_plain_operations(shape, rows):
    x = torch.randn(*reversed(rows), shape.hidden)
    stacks = (random_stack(shape, ops, "cpu", torch.float32) for ops in (PackedOps(), TorchOps()))
    made, plain = (run(stack, x, ReferenceAttention()) for stack in stacks)
    torch.testing.assert_close(made, plain, atol=1e-4, rtol=0)


def test_sequences_in_a_batch_equal_those_alone():
    stack, x = random_stack(SHAPE, PackedOps(), "cpu", torch.float32), torch.randn(11, 5, SHAPE.hidden)
    together = run(stack, x, ReferenceAttention())
    for i in range(5):
        alone = run(stack, x[:, i : i + 1], ReferenceAttention())
        torch.testing.assert_close(together[:, i : i + 1], alone, atol=1e-5, rtol=0)
