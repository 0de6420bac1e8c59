"""Codebooks and the choice of their entries."""

from __future__ import annotations

import torch
from torch import Tensor

from voxcpm_grpc.layers.weights import Weights, check
from voxcpm_grpc.models.qwen3_tts.codec.quantizer import Quantizer, codebook

SIZE, WIDTH, HIDDEN = 32, 4, 8


def weights(tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> Weights:
    return Weights("file", dict(tensors), torch.device("cpu"), dtype, torch.float32)


def test_an_entry_that_nothing_has_chosen_stays_finite():
    book = {"embed_sum": torch.full((3, 2), 1e-3), "cluster_usage": torch.tensor([2.0, 1e-6, 0.0])}
    entries = codebook(weights(book, torch.float16), "embed_sum", 3, 2)
    assert entries.dtype == torch.float32, "16 bits have neither such sums nor such quotients"
    torch.testing.assert_close(entries[:, 0], torch.tensor([5e-4, 100.0, 100.0]))


def test_each_quantizer_takes_the_nearest_entry_to_what_is_left():
    random = torch.Generator().manual_seed(0)
    names = {"input_proj.weight": (WIDTH, HIDDEN, 1), "output_proj.weight": (HIDDEN, WIDTH, 1)}
    for layer in range(3):
        shapes = {"embed_sum": (SIZE, WIDTH), "cluster_usage": (SIZE,), "initialized": (1,)}
        names |= {f"layers.{layer}.codebook.{name}": shape for name, shape in shapes.items()}
    tensors = {name: torch.rand(shape, generator=random) + 0.1 for name, shape in names.items()}
    file = weights(tensors)
    quantizer = Quantizer.load(file, 2, 1, SIZE, WIDTH, HIDDEN)
    check(file)
    x = torch.randn(20, HIDDEN, generator=random)
    rest, expected = x @ tensors["input_proj.weight"][..., 0].T, []
    for layer in range(2):
        book = f"layers.{layer}.codebook"
        entries = tensors[f"{book}.embed_sum"] / tensors[f"{book}.cluster_usage"][:, None]
        nearest = (rest[:, None] - entries).norm(dim=-1).argmin(-1)
        expected.append(nearest)
        rest = rest - entries[nearest]
    assert torch.equal(quantizer(x), torch.stack(expected, dim=1))
