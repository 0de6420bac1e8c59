"""A stack with fused kernels agrees with the same stack with plain operations, for every number of rows."""

from functools import partial

import pytest
import torch
from support.engines.gpus import needs_hopper
from support.engines.stacks import ODD, SHAPE, dense, random_stack, run

from voxcpm_grpc.attention import Rotation
from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.low_rank import LowRank
from voxcpm_grpc.layers.ops import ResidualStream, RMSNorm, TorchOps
from voxcpm_grpc.layers.transformer import StackShape


def check(
    shape: StackShape, rows: tuple[int, int], device: str, dtype: torch.dtype, *, tiled: bool, quantize: bool = False
) -> None:
    """`rows` are sequences and tokens. All tokens are compared, and ranges of tokens that the last layer computes.

    With `quantize`, the truth has the weights that the fused stack has rounded to 8 bits.
    """
    from voxcpm_grpc.attention.paged_triton import TritonAttention
    from voxcpm_grpc.layers.fused import TritonOps

    ops = TritonOps(torch.device(device), tiled=tiled)
    x = torch.randn(*reversed(rows), shape.hidden).to(dtype).to(device)
    plain = random_stack(shape, TorchOps(), device, torch.float32)
    if quantize:
        plain = dense(random_stack(shape, ops, device, dtype, quantize=True))
    truth = run(plain, x.float(), ReferenceAttention())
    for wanted in (None, range(1), range(len(x) * 7 // 11, len(x))):
        out = run(random_stack(shape, ops, device, dtype, quantize=quantize), x, TritonAttention(), wanted)
        expected = truth if wanted is None else truth[wanted.start : wanted.stop]
        assert out.shape == expected.shape
        assert out.dtype == dtype
        assert (out.float() - expected).norm() / expected.norm() < (1e-2 if dtype == torch.bfloat16 else 5e-3)


@pytest.fixture
def interpreter():
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels run there, not interpreted")


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [(1, 1), (2, 11)], ids=str)
@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("quantize", [False, True])
def test_agrees_in_the_interpreter(interpreter, rows, tiled, quantize):
    check(SHAPE, rows, "cpu", torch.float32, tiled=tiled, quantize=quantize)


NOT_SERVED = pytest.mark.parametrize(
    "case",
    [
        {"rows": 4},
        {"rows": 9, "tiled": False},
        {"rows": 9, "dtype": torch.float32},
        {"rows": 9, "bias": True},
        {"rows": 9, "adapted": True},
    ],
    ids=str,
)  # by the stand-ins below


@pytest.fixture
def gated_product(interpreter, monkeypatch):
    """Stands for the kernel on the CPU, for 5 rows and more. The value has the rows of its calls."""
    from voxcpm_grpc.kernels.products import gated_cuts, reference
    from voxcpm_grpc.layers import fused

    calls = []

    def compute(x, eps, weight, packets, cut):
        calls.append(len(x))
        return reference.norm_gated(x, eps, weight)

    monkeypatch.setattr(gated_cuts, "choose_cut", lambda rows, *_: "a cut" if rows > 4 else None)
    monkeypatch.setattr(fused, "choose_tile", lambda *_: None)
    monkeypatch.setattr(fused, "gated_product", compute)
    monkeypatch.setattr(gated_cuts, "load_cuts", lambda _: True)
    return calls


def check_gated(rows, *, tiled=True, dtype=torch.bfloat16, bias=False, adapted=False):
    """Compare gate and up with plain operations. `adapted`: the map has adapters, and each row uses one."""
    from voxcpm_grpc.layers.fused import TritonOps

    def random(*shape):
        return torch.randn(*shape, generator=draws).to(dtype)

    draws = torch.Generator().manual_seed(rows)
    low_rank = LowRank(random(1, 2, 16, 64) / 8, random(1, 256, 16) / 4, (128, 128)) if adapted else None
    linear = Linear(random(256, 64) / 8, random(256) if bias else None, low_rank)
    adapter = torch.zeros(rows, dtype=torch.int64) if adapted else None
    x, norm = random(rows, 64), RMSNorm(None, 1e-5)
    truth = TorchOps().norm_gated(ResidualStream(x, adapter=adapter), norm, linear).float()
    ops = TritonOps(torch.device("cpu"), tiled=tiled)
    out = ops.norm_gated(ResidualStream(x, adapter=adapter), norm, linear).float()
    assert (out - truth).norm() / truth.norm() < 2e-2


def test_gate_and_up_of_many_rows_are_one_launch(gated_product):
    check_gated(9)
    assert gated_product == [9]


@NOT_SERVED
def test_other_kernels_compute_gate_and_up_that_the_launch_does_not_serve(gated_product, case):
    check_gated(**case)
    assert gated_product == []


def test_other_kernels_compute_gate_and_up_where_the_launch_is_unavailable(gated_product, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.kernels.products.gated_cuts.load_cuts", lambda _: False)
    check_gated(9)
    assert gated_product == []


def test_a_product_with_more_rows_than_needed_agrees(interpreter, monkeypatch):
    from voxcpm_grpc.attention.paged_triton import TritonAttention
    from voxcpm_grpc.kernels.rows import padded_rows
    from voxcpm_grpc.layers import fused

    computed = []

    def widened(x, rows):
        wide = padded_rows.widened(x, rows)
        computed.append(None if wide is None else len(wide))
        if wide is not None:
            wide[len(x) :] = float("nan")  # no row depends on another
        return wide

    monkeypatch.setattr(fused, "choose_tile", lambda *_: None)
    monkeypatch.setattr(fused, "rows_to_compute", lambda rows, *_: rows + 3)
    monkeypatch.setattr(fused, "widened", widened)
    x = torch.randn(11, 2, SHAPE.hidden)
    rows = padded_rows.empty_rows(x, 22, SHAPE.hidden).copy_(x.flatten(0, 1))
    rotate = Rotation(torch.ones(11, 1, 1, SHAPE.head_dim // 2), torch.zeros(11, 1, 1, SHAPE.head_dim // 2))

    def attend(attention, q, k, v, layer, norm, wanted=None):
        return attention.attend_full(q, k, v, rotate, norm, wanted)

    ops = fused.TritonOps(torch.device("cpu"), tiled=True)
    out = random_stack(SHAPE, ops, "cpu", torch.float32).run(
        ResidualStream(rows, exclusive=True), (11, 2), partial(attend, TritonAttention()), range(7, 11)
    )
    plain = random_stack(SHAPE, TorchOps(), "cpu", torch.float32).run(
        ResidualStream(x.flatten(0, 1)), (11, 2), partial(attend, ReferenceAttention()), range(7, 11)
    )
    assert set(computed) == {25, 11}
    torch.testing.assert_close(out.x, plain.x, atol=1e-3, rtol=1e-3)


@pytest.fixture
def split_product(interpreter, monkeypatch):
    """Stands for the kernel on the CPU, for 5 rows and more. The value has, for each call, whether it was in place."""
    from voxcpm_grpc.kernels.products import reference, split_cuts
    from voxcpm_grpc.layers import fused

    calls = []

    def compute(x, weight, residual, scale, cut, *, in_place):
        calls.append(in_place)
        out = reference.linear_add(x, weight, residual, scale)
        return out, out.float().square().sum(1)[None]

    monkeypatch.setattr(split_cuts, "choose_cut", lambda rows, *_: "a cut" if rows > 4 else None)
    monkeypatch.setattr(split_cuts, "load_cuts", lambda _: True)
    monkeypatch.setattr(fused, "choose_tile", lambda *_: None)
    monkeypatch.setattr(fused, "split_linear_add", compute)
    return calls


def check_added(rows, *, tiled=True, dtype=torch.bfloat16, bias=False, adapted=False, exclusive=False):
    """Compare a product added to the stream with plain operations. `adapted`: each row uses an adapter."""
    from voxcpm_grpc.layers.fused import TritonOps

    def random(*shape):
        return torch.randn(*shape, generator=draws).to(dtype)

    draws = torch.Generator().manual_seed(rows)
    low_rank = LowRank(random(1, 1, 16, 64) / 8, random(1, 128, 16) / 4, (128,)) if adapted else None
    linear = Linear(random(128, 64) / 8, random(128) if bias else None, low_rank)
    adapter = torch.zeros(rows, dtype=torch.int64) if adapted else None
    x, residual = random(rows, 64), random(rows, 128)
    truth = TorchOps().linear_add(x, linear, ResidualStream(residual.clone(), adapter=adapter), 0.5).x.float()
    stream = ResidualStream(residual, exclusive=exclusive, adapter=adapter)
    out = TritonOps(torch.device("cpu"), tiled=tiled).linear_add(x, linear, stream, 0.5)
    assert (out.x.float() - truth).norm() / truth.norm() < 2e-2
    return out


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_product_is_added_in_one_launch_that_hands_on_squares(split_product, exclusive):
    out = check_added(9, exclusive=exclusive)
    assert split_product == [exclusive]
    assert out.exclusive
    assert out.squares is not None
    torch.testing.assert_close(out.squares.sum(0), out.x.float().square().sum(1))


@NOT_SERVED
def test_other_kernels_add_a_product_that_the_launch_does_not_serve(split_product, case):
    check_added(**case)
    assert split_product == []


def test_other_kernels_add_a_product_where_the_launch_is_unavailable(split_product, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.kernels.products.split_cuts.load_cuts", lambda _: False)
    check_added(9)
    assert split_product == []


def test_sizes_without_a_tile_use_other_kernels(interpreter):
    check(ODD, (1, 3), "cpu", torch.float32, tiled=True)


@pytest.mark.gpu
@pytest.mark.parametrize("streams", [1, 2, 3, 5, 6, 8, 9, 16, 64])
@pytest.mark.parametrize("tokens", [1, 5, 11])
@pytest.mark.parametrize("hidden", [1024, 2048])
@pytest.mark.parametrize("quantize", [False, pytest.param(True, marks=needs_hopper)])
def test_agrees_on_a_gpu(streams, tokens, hidden, quantize):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    ffn = {1024: 4096, 2048: 6144}[hidden]
    shape = StackShape(hidden=hidden, ffn=ffn, heads=16, kv_heads=2, head_dim=128, layers=2, eps=1e-5)
    tiled = torch.cuda.get_device_capability()[0] == 9
    check(shape, (streams * (2 if tokens == 11 else 1), tokens), "cuda", torch.bfloat16, tiled=tiled, quantize=quantize)
