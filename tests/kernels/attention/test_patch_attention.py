"""Attention inside patches in registers, for each cut, agrees with its definition."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from voxcpm_grpc.kernels.attention import reference

pytest.importorskip("triton")
from voxcpm_grpc.kernels.attention.patch_attention import (
    CUTS,
    SIZE,
    Cut,
    Sizes,
    _load_all,
    choose_cut,
    compile_patch_attention,
    find_cut,
    patch_attention,
)

LIMIT = 6e-3  # bfloat16 against float32
EPS = 1e-5
RELEASED = Sizes(tokens=11, heads=16, groups=2, inputs=1024, rotate=True)
ALL = [cut for _, cut in CUTS]


def test_streams_have_the_cut_that_was_measured():
    assert choose_cut(1, RELEASED) == choose_cut(16, RELEASED) == Cut(heads=1, warps=4)
    assert choose_cut(32, RELEASED) == choose_cut(64, RELEASED) == Cut(heads=1, warps=8)
    assert choose_cut(96, RELEASED) == choose_cut(256, RELEASED) == Cut(heads=2, warps=8)


def test_a_cut_divides_the_heads():
    assert choose_cut(500, replace(RELEASED, heads=8, groups=8)) == Cut(heads=1, warps=8)
    assert choose_cut(500, replace(RELEASED, heads=4)) == Cut(heads=1, warps=4)
    assert choose_cut(500, replace(RELEASED, heads=3, groups=3)) is None


def test_on_a_cpu_there_is_no_cut():
    q = torch.zeros(11, 128, 20, SIZE, dtype=torch.bfloat16)
    assert find_cut(q[:, :, :16], q[:, :, 16:18], q[:, :, 18:], None, None) is None


def test_a_device_without_the_kernel_logs_the_reason_once(caplog):
    with caplog.at_level("INFO"):
        assert [_load_all(RELEASED, torch.device("cpu", 7)) for _ in range(2)] == [False, False]
    assert caplog.text.count("not for cpu:7") == 1


@pytest.mark.parametrize("cut", ALL, ids=str)
@pytest.mark.parametrize("tokens", [5, 11])
@pytest.mark.parametrize("inputs", [0, 1024])
def test_every_cut_compiles(compiles, cut, tokens, inputs):
    compiles(compile_patch_attention, replace(RELEASED, tokens=tokens, inputs=inputs), cut)


def operands(device, tokens, sequences, *, channels=1024, late=True, heads=16, groups=2):
    """q, k, v, cos, sin and the rows of the norm. Rows differ in size by orders of magnitude, in no order."""
    generator = torch.Generator("cuda").manual_seed(tokens * sequences + channels)
    order = torch.randperm(tokens * sequences, generator=generator, device=device)
    size = torch.logspace(-1, 1, tokens * sequences, device=device)[order][:, None]
    rows = torch.randn(tokens * sequences, channels, generator=generator, device=device) * size
    mapped = torch.randn(tokens * sequences, (heads + 2 * groups) * SIZE, generator=generator, device=device)
    mapped = (mapped * size if late else mapped).bfloat16().view(tokens, sequences, -1, SIZE)
    angle = torch.arange(tokens, device=device)[:, None] * 10 ** -torch.linspace(0, 2, SIZE // 2, device=device)
    late_norm = {"rows": rows.bfloat16(), "eps": EPS} if late else {}
    return *mapped.split([heads, groups, groups], dim=2), angle.cos(), angle.sin(), late_norm


def truth_of(q, k, v, cos, sin, late, wanted=None):
    wide: dict[str, Any] = {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in late.items()}
    return reference.local_attention(q.float(), k.float(), v.float(), cos, sin, **wide, wanted=wanted)


def check(out, truth):
    assert out.shape == truth.shape
    assert float((out.double() - truth.double()).norm() / truth.double().norm()) < LIMIT


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
@pytest.mark.parametrize(
    ("tokens", "late", "rotated"),
    [
        *((tokens, True, True) for tokens in (1, 5, 8, 9, 11, 16)),
        (5, False, False),
        (11, False, True),
        (11, True, False),
    ],
)
def test_agrees_with_the_reference(device, cut, tokens, late, rotated):
    q, k, v, cos, sin, norm = operands(device, tokens, 37, late=late)
    if not rotated:
        cos = sin = None
    check(patch_attention(q, k, v, cos, sin, cut, **norm), truth_of(q, k, v, cos, sin, norm))


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
@pytest.mark.parametrize("wanted", [range(7, 11), range(1), range(3, 5)], ids=str)
def test_wanted_tokens_equal_those_of_the_whole_result(device, cut, wanted):
    """Other rows are read as keys and values but not as queries: their queries are NaN here."""
    q, k, v, cos, sin, norm = operands(device, 11, 5)
    truth = truth_of(q, k, v, cos, sin, norm, wanted)
    q = q.clone()
    q[: wanted.start] = q[wanted.stop :] = float("nan")
    check(patch_attention(q, k, v, cos, sin, cut, **norm, wanted=wanted), truth)


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
@pytest.mark.parametrize("tokens", [5, 11])
def test_a_sequence_does_not_read_another_one(device, cut, tokens):
    q, k, v, cos, sin, norm = operands(device, tokens, 4)
    expected = patch_attention(q, k, v, cos, sin, cut, **norm)
    for x in (q, k, v):
        x[:, 2] = float("nan")
    out = patch_attention(q, k, v, cos, sin, cut, **norm)
    others = [0, 1, 3]
    assert torch.equal(out[:, others], expected[:, others])


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
def test_launches_that_overlap_wait_for_each_other(replays_equal_calls, device, cut):
    """Each launch reads the result of the previous one."""
    q, k, v, cos, sin, norm = operands(device, 11, 64)

    def chain(pause):
        x = q
        for _ in range(6):
            x = patch_attention(x, k, v, cos, sin, cut, **norm)
            pause()
        return x

    replays_equal_calls(chain)


@pytest.mark.gpu
def test_calls_that_the_kernel_does_not_take_are_refused(device):
    q, k, v, cos, sin, _ = operands(device, 17, 2)
    with pytest.raises(ValueError, match="does not serve"):
        patch_attention(q, k, v, cos, sin, ALL[0])
    q, k, v, cos, sin, _ = operands(device, 11, 2)
    assert find_cut(q.float(), k.float(), v.float(), cos, None) is None
    with pytest.raises(ValueError, match="does not serve"):
        patch_attention(q, k, v, cos, sin, Cut(heads=3, warps=2))
