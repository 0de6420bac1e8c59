"""The kernels between the parts of a step read and store what their definitions do, and nothing else."""

import pytest
import torch

from voxcpm_grpc.models.voxcpm.kernels import reference

SLOTS = 6


def numbers(limit: int, device: str) -> torch.Tensor:
    """Numbers of the slots that share a table, as in the state of the engine."""
    return torch.randint(0, limit, (SLOTS, 8), device=device)


@pytest.fixture
def slot_state():
    pytest.importorskip("triton")

    from voxcpm_grpc.models.voxcpm.kernels import slot_state

    return slot_state


@pytest.mark.parametrize(("frames", "channels"), [(4, 64), (3, 5)])
def test_patches_are_stored(slot_state, target, frames, channels):
    device, dtype = target
    latents = torch.randn(4, frames, channels, device=device)
    for i, broken in enumerate((float("nan"), -float("inf"), 65504.0)):
        latents[i, i % frames, i % channels] = broken
    stopping = torch.tensor([[0, 1], [1, 0], [1, 1], [2, 3]], device=device).to(dtype)
    head = torch.tensor([[2, 1], [1, 2]], device=device).to(dtype)
    slot, (patches, step) = torch.tensor([4, 0, 2, 5], device=device), numbers(4, device)[:, 3:5].unbind(1)
    patches[5], step[5] = 3, 4
    state = {
        "condition": torch.randn(SLOTS, frames, channels, device=device).to(dtype),
        "stop": torch.tensor([True, False] * 3, device=device),
        "finite": torch.tensor([False, True] * 3, device=device),
        "history": torch.randn(SLOTS, 7, frames, channels, device=device).to(dtype),
    }
    expected = {name: part.clone() for name, part in state.items()}
    reference.store_patch(latents, stopping, head, slot, patches, step, **expected, limit=65504.0)
    slot_state.store_patch(latents, stopping, head, slot, patches, step, **state, limit=65504.0)
    for name, truth in expected.items():
        assert torch.equal(state[name], truth), name
    assert expected["finite"][slot].tolist() == [False, False, False, True]
    assert expected["stop"][slot].tolist() == [True, False, False, True]
    at = expected["history"][torch.arange(SLOTS, device=device), (patches + step).clamp(max=6)]
    assert torch.equal(at[slot], expected["condition"][slot]), "past the end of the history, the last entry"


@pytest.mark.parametrize("hidden", [20, 2048])
def test_hidden_states_and_counters_are_stored(slot_state, target, hidden):
    device, dtype = target
    made, kept = ([torch.randn(n, hidden, device=device).to(dtype) for _ in range(2)] for n in (3, SLOTS))
    table = numbers(99, device)
    truth, truth_table, before = [part.clone() for part in kept], table.clone(), table.clone()
    slot = torch.tensor([4, 0, 5], device=device)
    reference.store_hidden(slot, made, truth, truth_table[:, 3:5].unbind(1))
    slot_state.store_hidden(slot, made, kept, table[:, 3:5].unbind(1))
    for out, expected in zip((*kept, table), (*truth, truth_table), strict=True):
        assert torch.equal(out, expected)
    assert torch.equal(truth_table[5], before[5]), "the last slot, of padding rows, counts nothing"
    assert torch.equal(truth_table[4, 3:5], before[4, 3:5] + 1)


@pytest.mark.parametrize(("frames", "channels"), [(4, 64), (3, 5)])
def test_patches_and_guidance_are_read(slot_state, target, frames, channels):
    device, dtype = target
    condition, slot = (
        torch.randn(SLOTS, frames, channels, device=device).to(dtype),
        torch.tensor([4, 0, 4], device=device),
    )
    cfg = torch.randn(SLOTS, 8, device=device)[:, 3]
    expected = reference.read_patch(slot, condition, cfg)
    for out, truth in zip(slot_state.read_patch(slot, condition, cfg), expected, strict=True):
        assert torch.equal(out, truth)


@pytest.mark.parametrize(("frames", "channels", "half"), [(4, 64, 64), (3, 5, 24)])
def test_patches_and_rotations_are_read(slot_state, target, frames, channels, half):
    device, dtype = target
    condition, slot = (
        torch.randn(SLOTS, frames, channels, device=device).to(dtype),
        torch.tensor([4, 0, 5], device=device),
    )
    cos, sin = (torch.randn(40, 1, half, device=device) for _ in range(2))
    position = torch.tensor([39, 0, 40], device=device)
    expected = reference.read_step(slot, position, condition, cos, sin)
    for out, truth in zip(slot_state.read_step(slot, position, condition, cos, sin), expected, strict=True):
        assert torch.equal(out, truth)


@pytest.mark.parametrize(("samples", "patch"), [(7680, (4, 64)), (10000, (3, 5)), (30, (2, 64))])
def test_frames_are_packed(slot_state, target, samples, patch):
    device, dtype = target
    audio = torch.randn(4, samples, device=device)
    patch = torch.randn(SLOTS, *patch, device=device).to(dtype)
    for i, broken in enumerate((float("nan"), -float("inf"))):
        audio[i, -1 - i] = broken
    slot = torch.tensor([4, 0, 3, 2], device=device)
    stop, finite = (torch.tensor([first, not first] * 3, device=device) for first in (True, False))
    packed = slot_state.pack_frame(audio, slot, stop, finite, patch)
    assert packed.dtype == torch.float32
    expected = reference.pack_frame(audio, slot, stop, finite, patch)
    assert torch.equal(packed.view(torch.int32), expected.view(torch.int32)), "all bits, those of broken numbers too"
    assert packed[:, samples + 1].tolist() == [0, 0, 1, 0] and packed[:, samples + 2].tolist() == [1] * 4
    content = packed[:, samples + 3 :].contiguous().view(dtype)[:, : patch[0].numel()]
    assert torch.equal(content.view_as(patch[slot]), patch[slot])


def test_tensors_of_other_strides_are_refused(slot_state, target):
    device, _ = target
    slot, hidden, table = torch.tensor([0], device=device), torch.zeros(SLOTS, 4, device=device), numbers(9, device)
    counters = table[:, 0], table[:, 2].clone()
    with pytest.raises(ValueError, match="stride"):
        slot_state.store_hidden(slot, (hidden[:1],) * 2, (hidden,) * 2, counters)
    with pytest.raises(ValueError, match="contiguous"):
        slot_state.store_hidden(slot, (hidden[:1],) * 2, (hidden.T,) * 2, table[:, :2].unbind(1))
