"""The residual units of a block in one launch agree with their plain definition, however a stream is divided."""

import dataclasses
from concurrent.futures import Future

import pytest
import torch

from voxcpm_grpc.kernels.conv import reference
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable

units = pytest.importorskip("voxcpm_grpc.models.voxcpm.kernels.residual_units", reason="needs Triton")

LIMIT = 1e-3  # half precision against float32


def modules(channels: int, device: str = "cpu", stride: int = 2):
    generator = torch.Generator().manual_seed(channels)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    def snake() -> reference.Snake:
        alpha = normal(channels).abs() + 0.5
        return reference.Snake(alpha, 1 / alpha)

    def product(size: int, inputs: int, activation: reference.Snake, affine: bool) -> reference.Pointwise:
        weight = (normal(size, inputs) / inputs**0.5).half()
        both = (normal(channels).abs() + 0.5, normal(channels)) if affine else None
        return reference.Pointwise(weight, normal(channels).repeat(size // channels) * 0.3, activation, both)

    entry = snake()
    repeated = reference.Snake(entry.alpha.repeat(stride), entry.inverse.repeat(stride))
    upsample = product(stride * channels, 4 * channels, repeated, affine=False)
    return upsample, [
        (
            reference.Depthwise(normal(7, channels) / 3, normal(channels) * 0.3, dilation, snake()),
            product(channels, channels, snake(), affine=dilation == 9),
        )
        for dilation in (1, 3, 9)
    ]


def cut_name(cut) -> str:
    return str(cut.channels)


def test_weights_lie_in_shared_memory_as_the_matrix_unit_reads_them():
    upsample, parts = modules(64)
    weights, values = units.pack(upsample, parts, pairs=True)
    first = 128 * 256  # elements of the upsampling's weight
    assert len(weights) == first + 3 * 64 * 64
    for unit, row, k in ((0, 0, 0), (1, 9, 13), (2, 63, 40)):
        part = k // 8 ^ row % 8
        channel = row // 32 * 32 + row % 8 // 2 * 8 + row % 32 // 8 * 2 + row % 2
        assert weights[first + (unit * 64 + row) * 64 + part * 8 + k % 8] == parts[unit][1].weight[channel, k]
    per_unit = values[4 * 64 :].view(3, 12 * 64)
    octets = per_unit[1, : 8 * 64].view(8, 64)
    convolution = parts[1][0]
    assert convolution.snake is not None
    assert torch.equal(octets[2, :32].view(torch.float16).view(8, 8)[3, :7], convolution.taps[:, 19].half())
    assert torch.equal(octets[2, 32:].view(4, 8)[1, 2:4], convolution.bias[18:20])
    assert torch.equal(octets[2, 32:].view(4, 8)[1, 6:], convolution.snake.inverse[18:20])


def test_a_sum_has_the_biases_of_all_products_in_it():
    upsample, parts = modules(64)
    shifts = [units.pack(upsample, parts, pairs)[1][4 * 64 :].view(3, 12, 64)[:, 9] for pairs in (False, True)]
    biases = [second.bias for _, second in parts]
    torch.testing.assert_close(shifts[0][1], biases[0] + biases[1])
    torch.testing.assert_close(shifts[1][1], upsample.bias[:64] + biases[0] + biases[1])
    affine = parts[2][1].affine
    assert affine is not None
    scale, shift = affine
    torch.testing.assert_close(shifts[0][2], scale * sum(biases) + shift)


def test_the_orders_of_channels_and_inputs_are_permutations():
    for size in (32, 64, 256):
        assert units.column_order(size).sort().values.tolist() == list(range(size))
        assert units.depth_order(size).sort().values.tolist() == list(range(size))


@pytest.mark.parametrize("streams", [1, 8, 64, 300])
@pytest.mark.parametrize("samples", [100, 960, 7680])
def test_segments_cover_a_stream(streams, samples):
    segments, length = units.plan(streams, samples, 64, 132)
    end = length + (segments - 1) * (length - units.HISTORY)
    assert length % 64 == 0
    assert end >= samples
    assert segments == 1 or end - (length - units.HISTORY) < samples


@pytest.mark.parametrize("cut", units.CUTS, ids=cut_name)
def test_every_cut_compiles(compiles, cut):
    compiles(units.compile_units, cut)


@pytest.fixture
def on_hopper(monkeypatch):
    """Lets a kernel on the CPU believe that there is a Hopper GPU. Returns the result of the compiler."""
    code: Future[bytes] = Future()
    monkeypatch.setattr("voxcpm_grpc.kernels.cuda.compiler.require_hopper", lambda device: None)
    monkeypatch.setattr("voxcpm_grpc.kernels.cuda.compiler.load_function", lambda code, *_: code.result())
    monkeypatch.setattr(units, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(units, "compile_units", lambda cut: code)
    return code


def test_serves_many_samples_only(on_hopper):
    on_hopper.set_result(b"")
    kernel = units.ResidualUnits(*modules(64))
    assert kernel.serves(1, 3840)
    assert kernel.serves(2, 1920)
    assert not kernel.serves(3, 960)
    assert not kernel.serves(5000, units.REACH - 1)


def test_serves_nothing_if_it_does_not_compile(on_hopper, caplog):
    on_hopper.set_exception(KernelUnavailable("no compiler"))
    kernel = units.ResidualUnits(*modules(64))
    assert not kernel.serves(64, 3840)
    assert not kernel.serves(64, 3840)
    assert caplog.text.count("no compiler") == 1


def test_modules_of_another_design_are_refused():
    with pytest.raises(KernelUnavailable, match="96 channels"):
        units.choose_cut(*modules(96))
    with pytest.raises(KernelUnavailable, match="64 channels"):
        units.choose_cut(*modules(64, stride=3))
    assert units.choose_cut(*modules(128, stride=3)).channels == 128
    upsample, parts = modules(64)
    with pytest.raises(KernelUnavailable, match="dilations"):
        units.choose_cut(upsample, parts[:2])
    wide = dataclasses.replace(upsample, weight=upsample.weight.float())
    with pytest.raises(KernelUnavailable, match="float16"):
        units.choose_cut(wide, parts)
    with pytest.raises(KernelUnavailable, match="cpu"):
        units.ResidualUnits(upsample, parts)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("streams", "samples", "length"), [(1, 54, None), (3, 300, 192), (2, 1920, None), (70, 960, None), (1, 7680, 256)]
)
@pytest.mark.parametrize("cut", units.CUTS, ids=cut_name)
def test_agrees_with_the_reference(device, cut, streams, samples, length):
    """Input and output are windows into larger rows, with NaN around the output."""
    upsample, parts = modules(cut.channels, device)
    kernel, channels = units.ResidualUnits(upsample, parts), cut.channels
    shape = (1 + samples // 2, 2 * channels) if kernel.pairs else (samples, channels)
    x = torch.randn(streams, 2 + shape[0], shape[1], device=device).half()[:, 2:]
    before = torch.randn(streams, units.HISTORY, channels, device=device).half()
    room = torch.full((streams, samples + 8, channels), float("nan"), device=device).half()
    after, out = torch.full_like(before, float("nan")), room[:, 6:-2]
    expected_after, expected = torch.empty_like(before), torch.empty_like(out)
    kernel(x, before, after, out, length=length)
    reference.residual_units(x, before, expected_after, expected, upsample, parts, kernel.pairs)
    for ours, theirs in ((out, expected), (after, expected_after)):
        assert float((ours.double() - theirs.double()).norm() / theirs.double().norm()) < LIMIT
    assert room[:, :6].isnan().all()
    assert room[:, -2:].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("cut", units.CUTS, ids=cut_name)
def test_calls_are_bit_identical(device, cut):
    channels = cut.channels
    upsample, parts = modules(channels, device)
    kernel = units.ResidualUnits(upsample, parts)
    shape = (241, 2 * channels) if kernel.pairs else (480, channels)
    x = torch.randn(5, *shape, device=device).half()
    before = torch.randn(5, units.HISTORY, channels, device=device).half()
    results = []
    for _ in range(20):
        after, out = torch.empty_like(before), torch.empty(5, 480, channels, device=device).half()
        kernel(x, before, after, out)
        results.append((after, out))
    assert all(torch.equal(a, b) for pair in results for a, b in zip(pair, results[0], strict=True))


@pytest.mark.gpu
def test_other_arguments_are_refused(device):
    upsample, parts = modules(64, device)
    kernel = units.ResidualUnits(upsample, parts)
    past, out = (torch.zeros(2, n, 64, device=device).half() for n in (units.HISTORY, 128))
    with pytest.raises(ValueError, match="expected contiguous float16"):
        kernel(out, past, past, out)
    x = torch.zeros(2, 26, 128, device=device).half()
    with pytest.raises(ValueError, match="at least 54 samples"):
        kernel(x, past, past, out[:, :50])
