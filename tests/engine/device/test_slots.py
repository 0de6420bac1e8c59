"""Slots: the padded ones of a step, which are copied only if they have changed, and saved ones."""

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from voxcpm_grpc.engine.device import slots
from voxcpm_grpc.engine.device.slots import NUMBERS, PaddedSlots, Slots, number_columns
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.models.base import SlotState

SCRATCH = 16


@pytest.fixture
def copies(monkeypatch):
    """The number of rows of each upload."""
    sizes, upload = [], slots.upload
    monkeypatch.setattr(slots, "upload", lambda tensor, device: sizes.append(len(tensor)) or upload(tensor, device))
    return sizes


def put(padded: PaddedSlots, step: list[int], size: int) -> list[int]:
    padded.put(np.array(step), size)
    return padded.rows[:size].tolist()


def test_padding_reads_the_scratch_slot():
    padded = PaddedSlots(SCRATCH, torch.device("cpu"))
    assert put(padded, [3, 1, 2], 4) == [3, 1, 2, SCRATCH]
    assert put(padded, [3], 2) == [3, SCRATCH]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([([4, 2], 2)] * 5, [2]),
        ([([4, 2], 2), ([2, 4], 2), ([4, 2], 2)], [2, 2, 2]),  # the order matters
        ([([4, 2, 7], 4), ([4, 2, 7, 9], 4), ([4, 2, 7], 4)], [4, 4, 4]),  # a padding row is used, then padding again
        ([([4, 2, 7, 9], 4), ([4, 2], 2), ([4, 2, 7, 9], 4)], [4]),  # a smaller size reads the front of a larger one
        ([([4, 2], 2), ([4, 2, 7, 9], 4), ([4, 2], 2)], [2, 4]),
        ([([4, 2], 2), ([5, 3, 7], 4), ([4, 2], 2), ([5, 3, 7], 4)], [2, 4, 2, 4]),  # two counts of timesteps alternate
    ],
    ids=["the same", "order", "padding", "shrinks", "grows", "groups"],
)
def test_only_changed_slots_are_copied(copies, steps, expected):
    padded = PaddedSlots(SCRATCH, torch.device("cpu"))
    for step, size in steps:
        assert put(padded, step, size) == step + [SCRATCH] * (size - len(step))
    assert copies == expected


def test_a_failed_copy_is_repeated(monkeypatch):
    padded = PaddedSlots(SCRATCH, torch.device("cpu"))
    with monkeypatch.context() as broken, pytest.raises(MemoryError):
        broken.setattr(slots, "upload", lambda tensor, device: (_ for _ in ()).throw(MemoryError()))
        padded.put(np.array([5]), 1)
    assert put(padded, [5], 1) == [5]


def test_random_batches_are_always_written():
    rng, padded = np.random.default_rng(0), PaddedSlots(SCRATCH, torch.device("cpu"))
    for _ in range(300):
        size = int(rng.choice([1, 2, 4, 8, SCRATCH]))
        step = rng.permutation(SCRATCH)[: rng.integers(1, size + 1)].tolist() if rng.random() < 0.5 else [3, 1][:size]
        assert put(padded, step, size) == step + [SCRATCH] * (size - len(step))


@dataclass(frozen=True, slots=True)
class FamilyState:
    strength: torch.Tensor
    codes: torch.Tensor
    patches: torch.Tensor
    hidden: torch.Tensor
    flag: torch.Tensor
    codec: torch.Tensor


def slots_of_all_dtypes(rows: int) -> Slots:
    """Slots with random content. The sizes of the rows are odd numbers of elements."""

    def number(*shape: int) -> torch.Tensor:
        return torch.randint(1 << 40, (rows, *shape))

    numbers = number(len(NUMBERS) + 2)
    strengths = numbers[:, -1:].view(torch.float32)
    strengths.copy_(torch.rand(rows, 2))
    model = FamilyState(
        strength=strengths[:, 1],
        codes=torch.randint(1 << 15, (rows, 9, 5), dtype=torch.int16),
        patches=torch.randn(rows, 9, 1, 3).bfloat16(),
        hidden=torch.randn(rows, 7).bfloat16(),
        flag=torch.rand(rows) < 0.5,
        codec=torch.randn(rows, 3, 5).half(),
    )
    state = SlotState(**number_columns(numbers), block_table=number(5).int(), model=model)
    state.adapter.fill_(3)
    return Slots(
        state,
        numbers,
        torch.device("cpu"),
        lambda prompt, steps: {"patches": 2 + steps, "codes": steps},
        scratch=len(numbers) - 1,
    )


def content(slots: Slots, slot: int, patches: int, codes: int) -> list[torch.Tensor]:
    used = {"patches": patches, "codes": codes}
    own = [getattr(slots.state, name)[slot : slot + 1] for name in NUMBERS]
    family = {field.name: getattr(slots.state.model, field.name)[slot] for field in fields(slots.state.model)}
    return own + [row[: used[name]] if name in used else row for name, row in family.items()]


def test_a_saved_state_is_restored_to_another_slot_and_changes_no_other():
    slots = slots_of_all_dtypes(5)
    sequence = cast(Sequence, SimpleNamespace(plan=None, launched=4))
    expected = [row.clone() for row in content(slots, 1, 6, 4)]
    others = [[row.clone() for row in content(slots, slot, 9, 9)] for slot in (0, 2, 4)]
    behind = slots.state.model.codes[3, 4:].clone()
    pages = slots.state.block_table.clone()
    saved = slots.save(1, sequence)
    for row in content(slots, 1, 9, 9):
        row.zero_()  # the next owner of the slot
    slots.restore(3, saved, bank=3)
    assert len(expected) == len(NUMBERS) + 6
    for row, before in zip(content(slots, 3, 6, 4), expected, strict=True):
        assert torch.equal(row, before)
    assert torch.equal(slots.state.model.codes[3, 4:], behind), "entries that the stream does not use"
    for slot, before in zip((0, 2, 4), others, strict=True):
        assert all(map(torch.equal, content(slots, slot, 9, 9), before))
    assert torch.equal(slots.state.block_table, pages)
