import pytest
import torch

from voxcpm_grpc.layers.noise import GaussianNoise, Philox

CPU = torch.device("cpu")

# counter, key and output of philox4x32-10, from the known-answer file of the Random123 distribution
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> torch.Tensor:
    return torch.tensor([int(word, 16) for word in text.split()])


def points(*rows: tuple[int, int, int, int]) -> list[torch.Tensor]:
    """The columns of these rows: seeds, turns, segments and steps."""
    return list(torch.tensor(rows).T)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_philox_gives_the_published_words(counter, key, output):
    assert torch.equal(Philox(CPU).words(words(counter), words(key)), words(output))


def test_philox_of_a_batch_equals_philox_of_each_row():
    counters = torch.stack([words(counter) for counter, _, _ in KNOWN])
    keys = torch.stack([words(key) for _, key, _ in KNOWN])
    assert torch.equal(Philox(CPU).words(counters, keys), torch.stack([words(output) for _, _, output in KNOWN]))


def test_noise_is_standard_normal():
    noise = GaussianNoise(256, CPU)(*points(*((7, 1, 2, step) for step in range(2000)))).double()
    assert noise.shape == (2000, 256)
    assert abs(noise.mean()) < 0.01
    assert abs(noise.var() - 1) < 0.01
    assert abs((noise**3).mean()) < 0.02
    assert abs((noise**4).mean() - 3) < 0.05
    assert 4 < noise.abs().max() < 7
    assert abs((noise[:, 0::2] * noise[:, 1::2]).mean()) < 0.01  # the two values of one pair
    assert abs((noise[1:] * noise[:-1]).mean()) < 0.01  # neighbouring steps


def test_noise_does_not_depend_on_the_batch():
    draw = GaussianNoise(256, CPU)
    rows = [(2**63 - 1, 0, 0, 0), (5, 1, 0, 3), (5, 0, 1, 3), (0, 0, 0, 0)]
    together = draw(*points(*rows))
    for row, noise in zip(rows, together, strict=True):
        assert torch.equal(draw(*points(row))[0], noise)


def test_every_coordinate_and_both_halves_of_a_seed_change_the_noise():
    near = [(5, 6, 7, 8), (4, 6, 7, 8), (5 + 2**32, 6, 7, 8), (5, 7, 7, 8), (5, 6, 8, 8), (5, 6, 7, 9), (5, 7, 6, 8)]
    noise = GaussianNoise(64, CPU)(*points(*near))
    correlation = torch.corrcoef(noise).fill_diagonal_(0)
    assert correlation.abs().max() < 0.6


@pytest.mark.parametrize("size", [1, 6, 33])
def test_any_size_is_a_prefix_of_a_larger_one(size):
    here = points((1, 2, 3, 4))
    assert torch.equal(GaussianNoise(size, CPU)(*here), GaussianNoise(64, CPU)(*here)[:, :size])
