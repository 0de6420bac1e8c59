"""A stack with adapters gives each sequence what a stack with the merged adapter gives it."""

from __future__ import annotations

import re

import pytest
import torch
from support.engines.stacks import SHAPE, random_stack, run

from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.layers.low_rank import AdapterBanks, Update
from voxcpm_grpc.layers.ops import Ops, TorchOps
from voxcpm_grpc.layers.transformer import StackShape

ATTENTION, ALL = re.compile(r".*self_attn.*"), re.compile(r".*_proj")
BANKS = 3


def updates(banks: AdapterBanks, seed: int, rank: int) -> dict[str, Update]:
    draws = torch.Generator().manual_seed(seed)
    return {
        name: Update(
            (torch.randn(rank, inputs, generator=draws) * inputs**-0.5).bfloat16().float(),
            (torch.randn(outputs, rank, generator=draws) * 0.3).bfloat16().float(),
        )
        for name, (outputs, inputs) in banks.maps.items()
    }


def check(
    shape: StackShape, ops: Ops, target: tuple[str, torch.dtype], rows: tuple[int, int], adapted: re.Pattern
) -> None:
    """Compare sequences with different adapters and none, in one batch, with stacks of merged weights."""
    (device, dtype), (sequences, tokens) = target, rows
    banks = AdapterBanks(BANKS, 16, lambda name: bool(adapted.fullmatch(name)), torch.device(device), dtype)
    stack = random_stack(shape, ops, device, dtype, banks=banks)
    adapters = {0: updates(banks, 1, 16), 2: updates(banks, 2, 5)}
    for bank, update in adapters.items():
        banks.write(bank, update)
    adapter = torch.tensor([(0, -1, 2)[index % 3] for index in range(sequences)], device=device)
    x = torch.randn(tokens, sequences, shape.hidden).to(dtype).to(device)
    if device == "cpu" and isinstance(ops, TorchOps):
        attention = ReferenceAttention()
    else:
        from voxcpm_grpc.attention.paged_triton import TritonAttention

        attention = TritonAttention()
    for wanted in (None, range(tokens // 2, tokens)):
        out = run(stack, x, attention, wanted, adapter)
        for bank in {0, -1, 2} & set(adapter.tolist()):
            added = {name: update.up @ update.down for name, update in adapters.get(bank, {}).items()}
            merged = random_stack(shape, TorchOps(), device, torch.float32, added=added)
            truth = run(merged, x.float(), ReferenceAttention())[:, adapter == bank]
            truth = truth if wanted is None else truth[wanted.start : wanted.stop]
            error = (out[:, adapter == bank].float() - truth).norm() / truth.norm()
            assert error < (3e-2 if dtype == torch.bfloat16 else 1e-4), (bank, wanted, error)


@pytest.mark.parametrize("adapted", [ATTENTION, ALL], ids=["attention", "all"])
def test_plain_operations(adapted):
    check(SHAPE, TorchOps(), ("cpu", torch.float32), (4, 3), adapted)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "tiled", "adapted"),
    [
        pytest.param((1, 1), True, ATTENTION, id="attention"),
        *[
            pytest.param(rows, tiled, ALL, id=str((rows, tiled)))
            for rows in ((1, 1), (2, 3))
            for tiled in (True, False)
        ],
    ],
)
def test_kernels_in_the_interpreter(rows, tiled, adapted):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels run there, not interpreted")
    from voxcpm_grpc.layers.fused import TritonOps

    check(SHAPE, TritonOps(torch.device("cpu"), tiled=tiled), ("cpu", torch.float32), rows, adapted)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [(1, 1), (1, 11), (8, 1), (8, 11), (64, 1), (64, 11)], ids=str)
@pytest.mark.parametrize("hidden", [1024, 2048])
@pytest.mark.parametrize("adapted", [ATTENTION, ALL], ids=["attention", "all"])
def test_kernels_on_a_gpu(rows, hidden, adapted):
    from voxcpm_grpc.layers.fused import TritonOps

    shape = StackShape(hidden=hidden, ffn=4096, heads=16, kv_heads=2, head_dim=128, layers=2, eps=1e-5)
    check(shape, TritonOps(torch.device("cuda"), tiled=True), ("cuda", torch.bfloat16), rows, adapted)


def test_maps_without_adapters_need_no_memory():
    banks = AdapterBanks(BANKS, 16, lambda name: "q_proj" in name, torch.device("cpu"), torch.float32)
    stack = random_stack(SHAPE, TorchOps(), "cpu", torch.float32, banks=banks)
    assert all(layer.qkv.low_rank is not None and layer.out.low_rank is None for layer in stack.layers)
    assert list(banks.maps) == [f"layers.{index}.self_attn.q_proj" for index in range(SHAPE.layers)]
