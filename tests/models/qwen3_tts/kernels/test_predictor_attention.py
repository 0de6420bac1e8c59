"""Attention over the tokens of a step agrees with the plain one, pass by pass, and keeps the same keys and values."""

import pytest
import torch

from voxcpm_grpc.attention import HeadNorms
from voxcpm_grpc.layers.rope import build_rope
from voxcpm_grpc.models.qwen3_tts.predictor import PlainAttention

TOKENS, LAYERS = 16, 2
RELEASED, SMALL, SINGLE = (16, 8, 128), (4, 2, 16), (2, 2, 32)  # heads, KV heads, head size


@pytest.fixture
def fused():
    pytest.importorskip("triton")

    from voxcpm_grpc.models.qwen3_tts.kernels.predictor_attention import FusedAttention

    return FusedAttention


def plain(target, size):
    device, dtype = target

    def gain():
        return (1 + 0.2 * torch.randn(size)).to(device, dtype)

    rope = build_rope(TOKENS, size, 1e4, None, 1.0, dtype).to(torch.device(device)).whole()
    return PlainAttention([HeadNorms(gain(), gain(), 1e-6) for _ in range(LAYERS)], rope)


def slices(target, new, sequences, heads, groups, size):
    """q, k and v, slices of one projection."""
    device, dtype = target
    projection = torch.randn(new, sequences, heads + 2 * groups, size).to(device, dtype)
    return projection.split([heads, groups, groups], dim=2)


@pytest.mark.parametrize(
    ("shape", "sequences"),
    [(SMALL, 3), (SINGLE, 1), (RELEASED, 1), pytest.param(RELEASED, 3, marks=pytest.mark.thorough)],
    ids=str,
)
def test_passes_of_a_step_agree(fused, target, agree, shape, sequences):
    heads, groups, size = shape
    reference = plain(target, size)
    attention = fused(reference.norms, reference.rope)
    kv = torch.full((LAYERS, 2, TOKENS, sequences, groups, size), float("nan")).to(*target)
    expected_kv = kv.clone()
    for start, new, wanted in [(0, 2, range(1, 2)), (2, 1, None), (3, 1, range(1)), (4, 2, None), (15, 1, None)]:
        if start == 15:
            kv[:, :, :15], expected_kv[:, :, :15] = (torch.randn_like(kv[:, :, :15]),) * 2
        for layer in range(LAYERS):
            q, k, v = slices(target, new, sequences, heads, groups, size)
            expected = reference(q, k, v, layer, expected_kv, start, wanted)
            out = attention(q, k, v, layer, kv, start, wanted)
            agree(out, expected)
            agree(kv[layer, :, start : start + new], expected_kv[layer, :, start : start + new])


def test_what_does_not_fit_is_refused(fused, target):
    heads, groups, size = SMALL
    reference = plain(target, size)
    attention = fused(reference.norms, reference.rope)
    kv = torch.zeros(LAYERS, 2, TOKENS, 1, groups, size).to(*target)
    q, k, v = slices(target, 1, 1, heads, groups, size)
    with pytest.raises(ValueError, match="16 in all"):
        attention(q, k, v, 0, kv, 16)
    with pytest.raises(ValueError, match="3 tokens"):
        attention(*slices(target, 3, 1, heads, groups, size), 0, kv, 0)
    with pytest.raises(ValueError, match="memory"):
        attention(q, k, v, 0, kv[..., ::2], 0)
    with pytest.raises(ValueError, match="contiguous"):
        attention(q.transpose(2, 3).contiguous().transpose(2, 3), k, v, 0, kv, 0)
