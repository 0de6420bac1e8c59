"""Kernels store in the state of slots what the plain operations store, and leave all other slots as they are."""

import pytest
import torch

from voxcpm_grpc.models.qwen3_tts.kernels import reference

SLOTS, POSITIONS, GROUPS, IDS, END = 7, 5, 16, 40, 33


@pytest.fixture
def slot_state():
    pytest.importorskip("triton")

    from voxcpm_grpc.models.qwen3_tts.kernels import slot_state

    return slot_state


def numbers(device, *values):
    """Columns of a table, as the numbers of slots are."""
    table = torch.zeros(SLOTS, 5, dtype=torch.int64, device=device)
    for column, value in enumerate(values):
        table[:, 2 * column] = torch.tensor(value, device=device)
    return [table[:, 2 * column] for column in range(len(values))]


def state(device):
    first, step = numbers(device, [0, 1, 2, 0, 3, 0, 0], [0, 3, 9, 4, 1, 2, 0])
    return {
        "first": first,
        "step": step,
        "kept": torch.randint(100, (SLOTS, POSITIONS, GROUPS), device=device).to(torch.int16),
        "current": torch.randint(IDS, (SLOTS, GROUPS), device=device),
        "stop": torch.rand(SLOTS, device=device) < 0.5,
        "finite": torch.rand(SLOTS, device=device) < 0.5,
    }


@pytest.mark.parametrize("width", [64, 1024])
def test_codes(slot_state, target, width):
    device, dtype = target
    slot = torch.tensor([4, 0, 2, 1], device=device)
    codes = torch.randint(IDS, (4, GROUPS), device=device)
    codes[1, 0], codes[2, 0] = END, END - 1
    hidden = torch.randn(4, width).to(device, dtype)
    hidden[0, 3], hidden[3, -1] = float("nan"), float("-inf")
    found = state(device)
    expected = {name: tensor.clone() if name not in ("first", "step") else tensor for name, tensor in found.items()}
    slot_state.store_codes(slot, codes, hidden, END, **found)
    reference.store_codes(slot, codes, hidden, END, **expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert found["stop"][0] and not found["stop"][2]
    assert found["finite"][:5].tolist()[0] and not found["finite"][4] and not found["finite"][1]
    with pytest.raises(ValueError, match="int16"):
        slot_state.store_codes(slot, codes, hidden, END, **found | {"kept": found["kept"].long()})


@pytest.mark.parametrize("width", [64, 1000])
def test_hidden_states_and_counters(slot_state, target, width):
    device, dtype = target
    slot = torch.tensor([3, 6, 0], device=device)
    hidden, kept = torch.randn(3, width).to(device, dtype), torch.randn(SLOTS, width).to(device, dtype)
    position, step = numbers(device, range(SLOTS), range(10, 10 + SLOTS))
    expected = kept.clone(), position.clone(), step.clone()
    slot_state.store_hidden(slot, hidden, kept, position, step)
    reference.store_hidden(slot, hidden, *expected)
    assert torch.equal(kept, expected[0])
    assert position.tolist() == expected[1].tolist() == [1, 1, 2, 4, 4, 5, 6]
    assert step.tolist() == expected[2].tolist()
