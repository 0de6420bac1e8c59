"""The kernels of the codec's decoder compute what their definitions say, in windows into larger rows of memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from voxcpm_grpc.models.qwen3_tts.codec.windowed import WindowTable
from voxcpm_grpc.models.qwen3_tts.kernels import codec_reference as reference

# streams, samples, channels in and out
SIZES = [(1, 4, 64, 200), (3, 5, 24, 24), (2, 33, 32, 96), (5, 1, 7, 1)]
PAST, GROUPS = 9, 2


@pytest.fixture
def kernels():
    pytest.importorskip("triton")
    from voxcpm_grpc.models.qwen3_tts.kernels import codec

    return codec


@pytest.fixture
def convolution():
    pytest.importorskip("triton")
    from voxcpm_grpc.models.qwen3_tts.kernels import convolution

    return convolution


@pytest.fixture
def draw(target):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, narrow: bool = False) -> Tensor:
        return torch.randn(shape, generator=generator).to(target[0], target[1] if narrow else torch.float32)

    return normal


@pytest.fixture
def window(draw):
    """A window into a larger row of memory, with NaN around it."""

    def make(streams: int, samples: int, channels: int) -> Tensor:
        inside = draw(streams, samples, channels, narrow=True)
        row = torch.full((streams, samples * channels + 192), float("nan")).to(inside)
        view = row[:, 64 : 64 + samples * channels].unflatten(1, (samples, channels))
        view.copy_(inside)
        return view

    return make


@pytest.fixture
def filters(draw):
    def make(channels: int, outputs: int, taps: int, dilation: int = 1, active: str = "") -> reference.Convolution:
        alpha = draw(outputs).abs() * 2 + 0.1
        weight = (draw(outputs, taps, channels) / (taps * channels) ** 0.5).to(draw(1, narrow=True).dtype)
        snake = reference.Snake(alpha, 1 / alpha) if active == "snake" else None
        return reference.Convolution(weight, draw(outputs), dilation, snake, active == "gelu")

    return make


def surroundings(view: Tensor) -> Tensor:
    """A mask of the memory around a window: True where it is still NaN."""
    size = view.shape[1] * view.shape[2]
    row = view.as_strided((view.shape[0], size + 192), (view.stride(0), 1), view.storage_offset() - 64)
    return torch.cat([row[:, :64], row[:, 64 + size :]], 1).isnan()


def check_convolution(convolution, agree, window, past: Tensor, conv, added: Tensor | None, keep: bool, tile=None):
    streams, samples, outputs = len(past), past.shape[1] - conv.reach, len(conv.bias)
    ours, theirs = window(streams, samples, outputs), window(streams, samples, outputs)
    kept = convolution.convolve(past, conv, ours, added, keep, tile=tile)
    truth = reference.convolve(past, conv, theirs, added, keep)
    agree(ours, theirs)
    assert surroundings(ours).all()
    assert (kept is not None) == (truth is not None) == keep
    if kept is not None:
        agree(kept, truth)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (2, 1), (7, 1), (7, 3)])
def test_convolve(convolution, agree, window, filters, size, taps, dilation):
    streams, samples, channels, outputs = size
    conv = filters(channels, outputs, taps, dilation, "snake")
    past = window(streams, samples + conv.reach, channels)
    check_convolution(convolution, agree, window, past, conv, None, False)


@pytest.mark.parametrize("active", ["", "snake", "gelu"])
@pytest.mark.parametrize(("residual", "keep"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("splits", [1, 4])
def test_what_follows_a_convolution(convolution, agree, draw, window, filters, active, residual, keep, splits):
    conv = filters(40, 24, 3, active=active)
    added = draw(3, 6, 24) if residual else None
    tile = convolution.Tile(rows=16, columns=16, depth=16, splits=splits)
    check_convolution(convolution, agree, window, window(3, 8, 40), conv, added, keep, tile)
    check_convolution(convolution, agree, window, window(3, 8, 40), conv, added, keep, tile)  # counters are 0 again


@pytest.mark.parametrize("rows", [1, 16, 17, 320, 2000, 80000])
@pytest.mark.parametrize("outputs", [1, 24, 96, 192, 6144])
@pytest.mark.parametrize("size", [2, 4])
def test_every_tile_is_possible(rows, outputs, size):
    pytest.importorskip("triton")
    from voxcpm_grpc.kernels.launch.counters import COUNT
    from voxcpm_grpc.models.qwen3_tts.kernels.convolution import choose_tile

    for channels, taps in ((1536, 2), (768, 7), (96, 7), (96, 1), (5, 7), (4096, 1)):
        tile = choose_tile(rows, outputs, channels, taps, size)
        blocks = -(-rows // tile.rows) * -(-outputs // tile.columns)
        assert tile.splits == 1 or blocks * tile.splits <= COUNT
        assert min(tile.rows, tile.columns, tile.depth) >= 16
        assert (tile.rows + tile.columns) * tile.depth * size * tile.stages <= 99 << 10, "shared memory of a small GPU"


def test_numbers_that_float16_cannot_hold_become_its_largest(convolution, target):
    if target[0] == "cuda" and target[1] != torch.float32:
        pytest.skip("float16 whatever the target")
    device, half = target[0], torch.float16
    weight = torch.full((16, 1, 16), 100.0, dtype=half, device=device)
    conv = reference.Convolution(weight, torch.zeros(16, device=device))
    x = torch.tensor([100.0, -100.0, float("nan"), 1.0], dtype=half, device=device)[None, :, None].expand(1, 4, 16)
    ours, theirs = (torch.empty(1, 4, 16, dtype=half, device=device) for _ in range(2))
    convolution.convolve(x.contiguous(), conv, ours, None, False)
    reference.convolve(x, conv, theirs, None, False)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert ours[0, :, 0].tolist()[:2] == [65504, -65504] and ours[0, 2].isnan().all()


@pytest.mark.parametrize("kind", [torch.int64, torch.int16], ids=str)
def test_look_up(kernels, agree, draw, window, target, kind):
    table = draw(5, 11, 24, narrow=True)
    codes = torch.tensor([[[-1, 3, 11, 10, 0], [2, 2, 2, 2, 300]]] * 3, dtype=kind, device=target[0])
    codes[1, 0] = 7
    ours, theirs = window(3, 2, 24), window(3, 2, 24)
    kernels.look_up(codes, table, ours)
    reference.look_up(codes, table, theirs)
    agree(ours, theirs)
    assert surroundings(ours).all()


@pytest.mark.parametrize("size", [(3, 4, 24), (1, 9, 1024)], ids=str)
def test_depthwise_norm(kernels, agree, draw, window, size):
    streams, samples, channels = size
    norm = reference.Norm(draw(channels), draw(channels), 1e-6)
    past, taps, bias = window(streams, samples + 6, channels), draw(7, channels), draw(channels)
    agree(kernels.depthwise_norm(past, taps, bias, norm), reference.depthwise_norm(past, taps, bias, norm))


@pytest.mark.parametrize("size", [(3, 70, 4), (1, 130, 96)], ids=str)
def test_mix_down(kernels, agree, draw, window, size):
    streams, samples, channels = size
    past, taps, bias = window(streams, samples + 6, channels), draw(7, channels) / channels**0.5, draw(1)
    ours, theirs = kernels.mix_down(past, taps, bias), reference.mix_down(past, taps, bias)
    assert theirs.abs().max() == 1, "some are clamped"
    agree(ours, theirs)
    past[0, 10] = float("nan")
    assert kernels.mix_down(past, taps, bias)[0].isnan().sum() == 7, "a broken stream is found by its audio"


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("size", [8, 12])
def test_attend_next(kernels, agree, draw, target, shared, size):
    device = torch.device(target[0])
    kv = draw(6, 3, 2, PAST, GROUPS, size, narrow=True)
    kv[2, :, :, 4:] = float("nan")  # entries that are not filled yet
    qkv = draw(4, 1, GROUPS * (shared + 2), size, narrow=True)[:, 0]
    q, k, v = qkv.split([GROUPS * shared, GROUPS, GROUPS], dim=1)
    position = torch.tensor([13, 0, 4, PAST, 2 * PAST - 1, 5], device=device)
    slot, target_slot = torch.tensor([4, 2, 0, 3], device=device), torch.tensor([4, 2, 5, 3], device=device)
    table = WindowTable(PAST, size, 10000.0, device).turns()
    ours, theirs = kv.clone(), kv.clone()
    out = kernels.attend_next(q, k, v, ours, 1, position, slot, target_slot, table)
    agree(out, reference.attend_next(q, k, v, theirs, 1, position, slot, target_slot, table))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ours[0], kv[0]), "its stream does not speak"


def test_advance(kernels, target):
    position = torch.tensor([0, 70, 141, 71, 9, 5], device=target[0])
    slot, to = torch.tensor([2, 0, 4], device=target[0]), torch.tensor([2, 0, 5], device=target[0])
    kernels.advance(position, slot, to, 1, 71)
    assert position.tolist() == [1, 70, 71, 71, 9, 10]
