"""Both stages draw as the official sampler does."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support.engines.chi_square import chi_square, quantile
from support.engines.qwen3 import GOLDENS, MANIFEST, shared
from torch import Tensor

from voxcpm_grpc.models.qwen3_tts.sampling import GumbelNoise, Options, PlainSampler, draw, filtered, penalized

CPU = torch.device("cpu")
DRAWS, SIGNIFICANCE = 10_000, 1e-3
CASES = range(len(MANIFEST["samplings"]))
GROUPS = 16


@functools.cache
def golden() -> dict[str, np.ndarray]:
    return load_file(GOLDENS / "sampler.safetensors")


def options_of(case: int, rows: int) -> Options:
    given = MANIFEST["samplings"][case]
    return Options(
        temperature=torch.full((rows,), given["temperature"]),
        top_k=torch.full((rows,), int(given["top_k"])),
        cut=torch.full((rows,), 1 - given["top_p"]),
    )


def first_logits(case: int) -> Tensor:
    """The logits of the first codes of the golden steps, as the model passes them to the sampler."""
    model, codes = shared("custom17"), golden()[f"{case}.codes"].astype(np.int64)
    steps = len(codes)
    seen = torch.zeros(steps, model.config.talker.vocab_size, dtype=torch.bool)
    for step in range(steps):
        seen[step, codes[:step, 0]] = True
    penalty = torch.full((steps,), MANIFEST["samplings"][case]["repetition_penalty"])
    logits = torch.from_numpy(golden()[f"{case}.first_logits"])
    sampler = model.networks.sampler
    assert isinstance(sampler, PlainSampler)
    return sampler.allowed(penalized(logits, seen, penalty), torch.arange(steps) < 2)


def equal(found: Tensor, wanted: np.ndarray) -> bool:
    """True for equal probabilities [rows, v]. Ids of equal logits, of which top_p keeps some, may change places:

    the official sort is not stable.
    """
    same_values = np.abs(np.sort(found.numpy()) - np.sort(wanted)).max() < 1e-6
    strict = wanted > np.where(wanted > 0, wanted, 2).min(-1, keepdims=True) + 1e-6
    return bool(same_values and np.abs(found.numpy() - wanted)[strict].max() < 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_probabilities_of_first_codes_are_official(case):
    logits = first_logits(case)
    assert equal(filtered(logits, options_of(case, len(logits))).softmax(-1), golden()[f"{case}.first_probabilities"])


@pytest.mark.parametrize("case", CASES)
def test_the_probabilities_of_other_codes_are_official(case):
    logits = torch.from_numpy(golden()[f"{case}.code_logits"]).flatten(0, 1)
    wanted = golden()[f"{case}.code_probabilities"].reshape(logits.shape)
    assert equal(filtered(logits, options_of(case, len(logits))).softmax(-1), wanted)


def test_ties_at_the_last_rank_are_all_kept():
    logits = torch.tensor([[3.0, 1.0, 2.0, 1.0, 0.5, 1.0]])
    kept = filtered(logits, Options(torch.ones(1), torch.tensor([3]), torch.zeros(1)))
    assert (kept > -math.inf).tolist() == [[True, True, True, True, False, True]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stage", ["first", "code"])
def test_draws_have_the_official_distribution(case, stage):
    """The chi-square statistic of 10,000 draws is not among the largest, with Bonferroni's bound for all cases."""
    logits = first_logits(case) if stage == "first" else torch.from_numpy(golden()[f"{case}.code_logits"]).flatten(0, 1)
    probabilities = filtered(logits, options_of(case, len(logits))).softmax(-1)
    assert equal(probabilities, golden()[f"{case}.{stage}_probabilities"].reshape(logits.shape))
    for row in (0, len(logits) - 1):
        possible = probabilities[row] > 0
        noise = torch.zeros(DRAWS, logits.shape[-1])  # an id that is not drawn needs none
        noise[:, possible] = noise_of(DRAWS, int(possible.sum()), seed=100 * case + row)
        drawn = draw(logits[row].expand(DRAWS, -1), options_of(case, DRAWS), noise)
        wanted = probabilities[row].numpy()
        counts = np.bincount(drawn.numpy(), minlength=len(wanted))
        assert not counts[wanted == 0].any()
        statistic, degrees = chi_square(counts, wanted)
        assert statistic < quantile(degrees, SIGNIFICANCE / (2 * 2 * len(CASES)))


def noise_of(steps: int, size: int, seed: int) -> Tensor:
    """Noise [steps, size] of one draw of each step."""
    same = torch.zeros(steps, dtype=torch.int64)
    noise = GumbelNoise(GROUPS, CPU)(same + seed, same + 1, same + 2, torch.arange(steps), range(3, 4), size)
    return noise[:, 0]


def noise_at(points: Tensor, stages: range, size: int) -> Tensor:
    """Noise at points [4, n]: seeds, turns, segments and steps."""
    seed, turn, segment, step = points
    return GumbelNoise(GROUPS, CPU)(seed, turn, segment, step, stages, size)


def test_noise_depends_on_its_coordinates_alone():
    points = torch.arange(12, dtype=torch.int64).view(4, 3)
    whole = noise_at(points, range(1, 16), 70)
    assert torch.equal(noise_at(points[:, 1:2], range(4, 6), 70), whole[1:2, 3:5])
    assert torch.equal(noise_at(points, range(1, 16), 9), whole[..., :9])
    for coordinate in range(4):
        other = points.clone()
        other[coordinate] += 1
        assert not (noise_at(other, range(1, 2), 70)[:, 0] == whole[:, 0]).any()
    high = points.clone()
    high[0] += 1 << 40
    assert not (noise_at(high, range(1, 2), 70)[:, 0] == whole[:, 0]).any()


def test_the_noise_is_that_of_gumbel():
    noise = noise_of(2000, 512, seed=9)
    assert noise.isfinite().all()
    assert abs(float(noise.mean()) - 0.5772) < 0.01 and abs(float(noise.var()) - math.pi**2 / 6) < 0.02


def test_temperature_zero_is_greedy_beside_others():
    logits = torch.randn(2, 512, generator=torch.Generator().manual_seed(1))
    options = Options(torch.tensor([0.0, 1.0]), torch.tensor([50, 50]), torch.zeros(2))
    drawn = torch.stack([draw(logits, options, noise_of(2, 512, seed)) for seed in range(50)])
    assert (drawn[:, 0] == logits[0].argmax()).all() and len(drawn[:, 1].unique()) > 10
