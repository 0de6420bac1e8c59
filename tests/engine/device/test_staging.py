"""Numbers of the host reach the device unchanged, also while the device still reads earlier ones."""

import numpy as np
import pytest
import torch

from voxcpm_grpc.engine.device.staging import Staging

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def staging(request) -> Staging:
    return Staging(40, torch.device(request.param))


def test_arrays_lie_one_after_another(staging):
    arrays = np.arange(5), np.zeros((2, 0), np.int64), np.arange(6).reshape(2, 3) + 10
    parts = staging.upload(*arrays)
    for part, array in zip(parts, arrays, strict=True):
        assert np.array_equal(part.cpu(), array)
    assert staging.memory[:11].tolist() == [*range(5), *range(10, 16)]
    assert parts[0].data_ptr() == staging.memory.data_ptr()


def test_nothing_can_be_uploaded(staging):
    (part,) = staging.upload(np.zeros((0, 9), np.int64))
    assert part.shape == (0, 9)


def test_memory_grows_for_a_larger_upload(staging):
    size = len(staging.memory) + 1
    for start in (0, 1):
        (part,) = staging.upload(np.arange(start, start + size))
        assert part.tolist() == list(range(start, start + size))


def test_uploads_do_not_wait_for_the_device_and_keep_their_numbers(staging):
    seen, slept = [], None
    staging.upload(np.full(7, -1))
    if staging.memory.is_cuda:
        torch.cuda._sleep(400_000_000)
        slept = torch.cuda.Event()
        slept.record()
    for number in range(20):
        (part,) = staging.upload(np.full(7, number))
        seen.append(part.clone())
    assert slept is None or not slept.query()
    assert [part.tolist() for part in seen] == [[number] * 7 for number in range(20)]


@pytest.mark.gpu
def test_uploads_after_a_larger_one_take_no_more_pinned_memory():
    staging = Staging(40, torch.device("cuda"))
    staging.upload(np.arange(4))
    held = []
    for _ in range(20):
        staging.upload(np.arange(1 << 16))
        torch.cuda.synchronize()
        held.append(torch.cuda.host_memory_stats()["allocated_bytes.current"])
    assert held[0] == held[-1]
