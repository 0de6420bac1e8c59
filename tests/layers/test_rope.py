import torch

from voxcpm_grpc.layers.rope import build_rope, longrope_amplitude


def test_a_product_of_rotated_vectors_depends_only_on_their_distance():
    rope = build_rope(200, 16, 10000.0, None, 1.0, torch.float32)
    q, k = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0)).unbind()

    def product(at: int, to: int) -> float:
        return float((rope.at(torch.tensor([at]))(q) * rope.at(torch.tensor([to]))(k)).sum())

    assert abs(product(3, 10) - product(150, 157)) < 1e-4
    assert abs(product(3, 10) - product(3, 11)) > 1e-3


def test_divisors_slow_frequencies_down():
    plain = build_rope(50, 4, 10000.0, None, 1.0, torch.float32)
    slowed = build_rope(50, 4, 10000.0, (2.0, 5.0), 1.0, torch.float32)
    assert torch.allclose(slowed.cos[40, 0, 0], plain.cos[20, 0, 0], atol=1e-6)
    assert torch.allclose(slowed.sin[40, 0, 1], plain.sin[8, 0, 1], atol=1e-6)


def test_amplitude_grows_only_beyond_the_trained_length():
    assert longrope_amplitude(32768, 32768) == 1
    assert longrope_amplitude(131072, 32768) > 1.06


def test_positions_past_the_table_read_its_end():
    rope = build_rope(8, 4, 10000.0, None, 1.0, torch.float32)
    assert torch.equal(rope.at(torch.tensor([99])).cos, rope.at(torch.tensor([7])).cos)


def test_rotation_keeps_the_dtype_and_is_the_same_for_sequences_side_by_side():
    rope = build_rope(3, 4, 10000.0, None, 1.0, torch.bfloat16)
    x = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = rope.whole()(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out[:, 1], rope.at(torch.arange(3))(x[:, 1]))
    assert torch.equal(out[0], x[0])  # position 0 is not rotated
