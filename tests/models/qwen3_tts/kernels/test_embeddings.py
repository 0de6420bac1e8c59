"""The inputs of a step agree with the plain sums, for slots in any order and texts of any length."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from voxcpm_grpc.models.qwen3_tts.talker import StepInputs, TextTable

SLOTS, POSITIONS, GROUPS, CODES, IDS, PAD = 6, 9, 4, 30, 50, 7


@pytest.mark.parametrize("hidden", [64, 320, 1024])
def test_they_agree(target, agree, hidden):
    pytest.importorskip("triton")

    from voxcpm_grpc.models.qwen3_tts.kernels.embeddings import FusedInputs

    device, dtype = target
    table = torch.randn(GROUPS * CODES, hidden).to(device, dtype)
    rows = torch.randn(IDS, hidden).to(device, dtype)
    starts = torch.arange(GROUPS, device=device) * CODES
    numbers = torch.zeros(SLOTS, 3, dtype=torch.int64, device=device)
    step, read = numbers[:, 0], numbers[:, 2]  # as the numbers of slots are: columns of one tensor
    step.copy_(torch.tensor([0, 3, 5, 8, 40, 2]))
    read.copy_(torch.tensor([1, 3, 9, 9, 9, 0]))
    text = torch.randint(IDS, (SLOTS, POSITIONS), dtype=torch.int32, device=device)
    current = torch.randint(CODES, (SLOTS, GROUPS), device=device)
    slot = torch.tensor([4, 0, 5, 1, 3, 2, 4], device=device)
    arguments = slot, step, read, text, current
    codes = SimpleNamespace(summed=lambda codes: F.embedding_bag(codes + starts, table, mode="sum"))
    expected = StepInputs(codes, TextTable(rows), PAD)(*arguments)
    agree(FusedInputs(table, starts, rows, PAD)(*arguments), expected)
    with pytest.raises(ValueError, match="int32"):
        FusedInputs(table, starts, rows, PAD)(slot, step, read, text.long(), current)
