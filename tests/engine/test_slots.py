"""The padded slots of a step are in static memory, and are copied there only if they have changed."""

import numpy as np
import pytest
import torch

from voxcpm_grpc.engine import slots
from voxcpm_grpc.engine.slots import PaddedSlots

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
