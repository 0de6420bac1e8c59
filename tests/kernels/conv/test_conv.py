"""Streaming convolutions agree with their plain definitions, with every tile."""

import pytest
import torch

from voxcpm_grpc.kernels.conv import reference

SIZES = [(1, 4, 64, 200), (3, 5, 24, 24), (2, 33, 32, 32), (5, 1, 7, 1)]  # streams, samples, channels in and out


@pytest.fixture
def conv():
    pytest.importorskip("triton")
    from voxcpm_grpc.kernels.conv import streams as conv

    return conv


@pytest.fixture
def draw(target):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, narrow: bool = False) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(target[0], target[1] if narrow else torch.float32)

    return normal


@pytest.fixture
def snake(draw):
    def make(size: int) -> reference.Snake:
        alpha = draw(size).abs() * 2 + 0.1
        return reference.Snake(alpha, 1 / alpha)

    return make


@pytest.fixture
def window(draw):
    """A window into a larger row of memory, as the decoder allocates them, with NaN around it."""

    def make(streams: int, samples: int, channels: int) -> torch.Tensor:
        inside = draw(streams, samples, channels, narrow=True)
        row = torch.full((streams, samples * channels + 192), float("nan")).to(inside)
        view = row[:, 64 : 64 + samples * channels].unflatten(1, (samples, channels))
        view.copy_(inside)
        return view

    return make


@pytest.fixture
def matrix(draw, snake):
    def make(channels: int, size: int, affine: bool) -> reference.Pointwise:
        weight = draw(size, channels, narrow=True) / channels**0.5
        return reference.Pointwise(weight, draw(size), snake(size), (draw(size), draw(size)) if affine else None)

    return make


@pytest.fixture
def filters(draw, snake):
    def make(channels: int, dilation: int, active: bool) -> reference.Depthwise:
        return reference.Depthwise(draw(7, channels) / 2, draw(channels), dilation, snake(channels) if active else None)

    return make


def surroundings(view: torch.Tensor) -> torch.Tensor:
    """A mask of the memory around a window: True where it is still NaN."""
    size = view.shape[1] * view.shape[2]
    row = view.as_strided((view.shape[0], size + 192), (view.stride(0), 1), view.storage_offset() - 64)
    return torch.cat([row[:, :64], row[:, 64 + size :]], 1).isnan()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("dilation", "active"), [(1, True), (9, False)])
def test_depthwise(conv, agree, window, filters, size, dilation, active):
    streams, samples, channels, _ = size
    first = filters(channels, dilation, active)
    past = window(streams, samples + first.reach, channels)
    agree(conv.depthwise(past, first), reference.depthwise(past, first))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    ("residual", "keep", "affine"), [(True, True, False), (False, True, True), (True, False, True)]
)
def test_pointwise(conv, agree, draw, window, matrix, size, residual, keep, affine):
    streams, samples, channels, columns = size
    x, second = window(streams, samples, channels), matrix(channels, columns, affine)
    added = draw(streams, samples, columns) if residual else None
    ours, theirs = window(streams, samples, columns), window(streams, samples, columns)
    kept = conv.pointwise(x, second, ours, added, keep)
    truth = reference.pointwise(x, second, theirs, added, keep)
    agree(ours, theirs)
    assert surroundings(ours).all()
    assert (kept is not None) == keep
    if kept is not None:
        agree(kept, truth)


def test_pointwise_of_each_sample_and_the_previous_one(conv, agree, window, matrix):
    past, second = window(3, 1 + 6, 16), matrix(32, 80, False)
    pairs = past.as_strided((3, 6, 32), past.stride(), past.storage_offset())
    ours, theirs = window(3, 6 * 5, 16).flatten(1).view(3, 6, 80), torch.empty(3, 6, 80).to(past)
    conv.pointwise(pairs, second, ours, None, False)
    reference.pointwise(torch.cat([past[:, :-1], past[:, 1:]], 2), second, theirs, None, False)
    agree(ours, theirs)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("tile", [None, (16, 16, 16)])
def test_depthwise_pointwise(conv, agree, draw, window, filters, matrix, size, tile):
    streams, samples, channels, columns = size
    first, second = filters(channels, 3, True), matrix(channels, columns, False)
    past, added = window(streams, samples + first.reach, channels), draw(streams, samples, columns)
    ours, theirs = window(streams, samples, columns), window(streams, samples, columns)
    arguments = {"tile": conv.Tile(*tile)} if tile else {}
    kept = conv.depthwise_pointwise(past, first, second, ours, added, True, **arguments)
    truth = reference.depthwise_pointwise(past, first, second, theirs, added, True)
    agree(ours, theirs)
    agree(kept, truth)
    assert surroundings(ours).all()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_mix_down(conv, agree, draw, window, size):
    streams, samples, channels, _ = size
    past, taps, bias = window(streams, samples + 6, channels), draw(7, channels) / channels, draw(1)
    agree(conv.mix_down(past, taps, bias), reference.mix_down(past, taps, bias))


def test_snake_of_values_beyond_one_period_of_the_sine(conv, agree, draw, window, matrix):
    second = matrix(16, 16, False)
    x, out = window(1, 40, 16) * 100, window(1, 40, 16)
    expected = torch.empty_like(out)
    conv.pointwise(x, second, out, None, False)
    reference.pointwise(x, second, expected, None, False)
    agree(out, expected)


def test_state_is_loaded_from_and_stored_to_its_slots_only(draw):
    windows = pytest.importorskip("voxcpm_grpc.kernels.conv.state")
    state, frames = draw(6, 30, narrow=True), draw(2, 4, 5)
    slot = torch.tensor([4, 1], device=state.device)
    runs = torch.tensor([[0, 0, 20, 10], [10, 40, 60, 18], [28, 70, 90, 2]], dtype=torch.int32, device=state.device)
    ours, theirs = (torch.full((2, 100), float("nan")).to(state) for _ in range(2))
    windows.load_windows(state, slot, frames, ours, runs, 10)
    reference.load_windows(state, slot, frames, theirs, runs, 10)
    assert torch.equal(ours.nan_to_num(99), theirs.nan_to_num(99))
    filled = draw(2, 100, narrow=True)
    expected = state.clone()
    windows.store_windows(state, slot, filled, runs)
    reference.store_windows(expected, slot, filled, runs)
    assert torch.equal(state, expected)


def test_channels_that_are_not_contiguous_are_refused(conv, window, matrix):
    x = window(2, 8, 8)
    with pytest.raises(ValueError, match="contiguous"):
        conv.pointwise(x.transpose(1, 2), matrix(8, 8, False), x, None, False)
