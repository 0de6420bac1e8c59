"""Codes drawn in one launch are those of the plain sampler."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.engines.chi_square import chi_square, quantile
from torch import Tensor

from voxcpm_grpc.models.qwen3_tts.sampling import CodeIds, FirstCodes, Options, PlainSampler, Points, filtered

IDS = CodeIds(groups=4, codes=2048, vocabulary=3072, end=2150)
TEMPERATURES, TOP_KS, TOP_PS = (0.0, 0.1, 0.9, 2.0), (1, 50, 2048, 3072), (0.2, 0.8, 1.0, 1.0)
INTERPRETED, LAUNCHED = 40, 10_000  # rows of a test
BATCH = 500  # rows of a launch: the plain noise of more takes gigabytes
DRAWS, SIGNIFICANCE = 10_000, 1e-3

Target = tuple[str, torch.dtype]


class Slots:
    """The numbers of n slots in the layout of an engine: columns of one tensor."""

    def __init__(self, n: int, device: str, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)

        def chosen(values: tuple[float, ...]) -> Tensor:
            return torch.tensor(values)[torch.randint(len(values), (n,), generator=random)]

        points = torch.randint(2**33, (n, 4), generator=random)
        points[:, 0] += torch.randint(-(2**62), 2**62, (n,), generator=random)  # seeds of 64 bits
        integers = torch.stack([chosen(TOP_KS), points[:, 3] + torch.arange(n) % 2], dim=1)
        penalty = 1 + torch.rand(n, generator=random)
        floats = torch.stack([chosen(TEMPERATURES), 1 - chosen(TOP_PS), penalty, torch.zeros(n)], dim=1)
        numbers = torch.cat([integers, floats.view(torch.int64)], dim=1).to(device)
        top_k, least, *_ = numbers.unbind(1)
        temperature, cut, penalty, _ = numbers[:, 2:].view(torch.float32).unbind(1)
        self.points = Points(*points.to(device).unbind(1))
        self.options = Options(temperature, top_k, cut)
        self.seen = (torch.rand(n, IDS.vocabulary, generator=random) < 0.2).to(device)
        self.penalty, self.least = penalty, least

    def first(self) -> FirstCodes:
        """The state of first codes; `seen` is a copy, to which they are added."""
        return FirstCodes(self.penalty, self.seen.clone(), self.least)


def logits_of(kind: str, b: int, size: int, seed: int = 7) -> Tensor:
    """Logits float32 [b, size] that exist in bfloat16 too, except those of `normal`."""
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(b, size, generator=random)
    match kind:
        case "normal":
            return logits
        case "rounded":
            return logits.bfloat16().float()
        case "tied":  # with both zeros
            return (logits / 2).round() / 2
        case "flat":
            return torch.full((b, size), 1.25)
        case "impossible":
            few = torch.rand(b, size, generator=random) < 0.01
            return logits.bfloat16().float().where(few, -math.inf)
    raise ValueError(kind)


KINDS = ("normal", "rounded", "tied", "flat", "impossible")
SOME_KINDS = [
    "tied",
    "impossible",
    *(pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS[:2] + KINDS[3:4]),
]


def samplers(device: str) -> tuple[PlainSampler, Any]:
    from voxcpm_grpc.models.qwen3_tts.kernels.draw import FusedSampler

    return PlainSampler(IDS, torch.device(device)), FusedSampler(IDS)


def batches(kind: str, size: int, target: Target):
    """Slots, logits [b, size] and the slots [b] of the rows, for each launch of a test."""
    device, dtype = target
    rows = INTERPRETED if device == "cpu" else LAUNCHED
    count = min(rows, BATCH)
    for start in range(0, rows, count):
        slots = Slots(count + 3, device, seed=start)
        order = torch.randperm(count + 3, generator=torch.Generator().manual_seed(start))[:count]
        yield slots, logits_of(kind, count, size, seed=start).to(device, dtype), order.to(device)


def differing(found: list[Tensor], wanted: list[Tensor]) -> int:
    return int((torch.cat(found) != torch.cat(wanted)).sum())


def accepted(target: Target) -> int:
    """On a GPU both samplers may round the noise differently, which decides between ids of almost equal sums."""
    return 0 if target[0] == "cpu" else 1


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_codes_are_those_of_the_plain_sampler(kind, target):
    plain, fused = samplers(target[0])
    found, wanted = [], []
    for number, (slots, logits, slot) in enumerate(batches(kind, IDS.codes, target)):
        group = 1 + number % (IDS.groups - 1)
        found.append(fused.others(slot, slots.points, slots.options)(logits, group))
        wanted.append(plain.others(slot, slots.points, slots.options)(logits, group))
    assert differing(found, wanted) <= accepted(target)
    assert len(torch.cat(wanted).unique()) > INTERPRETED / 3


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_first_codes_are_those_of_the_plain_sampler(kind, target):
    plain, fused = samplers(target[0])
    found, wanted, ends = [], [], 0
    for slots, logits, slot in batches(kind, IDS.vocabulary, target):
        logits[::3, IDS.end] = 20  # a likely end, where it is not too early
        states = slots.first(), slots.first()
        found.append(fused.first(logits, slot, slots.points, slots.options, states[0]))
        wanted.append(plain.first(logits, slot, slots.points, slots.options, states[1]))
        same = slot[found[-1] == wanted[-1]]
        assert torch.equal(states[0].seen[same], states[1].seen[same])
        ends += int((found[-1] == IDS.end).sum())
    assert differing(found, wanted) <= accepted(target)
    assert ends > INTERPRETED / 50 and ((torch.cat(found) <= IDS.end) & (torch.cat(found) >= 0)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_many_codes_are_those_of_the_plain_sampler(kind, seed, target):
    device, dtype = target
    plain, fused = samplers(device)
    rows = INTERPRETED if device == "cpu" else 100
    slots, slot = Slots(rows, device, seed), torch.arange(rows, device=device)
    logits = logits_of(kind, rows, IDS.vocabulary, seed).to(device, dtype)
    found = [fused.first(logits, slot, slots.points, slots.options, slots.first())]
    wanted = [plain.first(logits, slot, slots.points, slots.options, slots.first())]
    codes = logits[:, : IDS.codes].contiguous()
    found.append(fused.others(slot, slots.points, slots.options)(codes, 2))
    wanted.append(plain.others(slot, slots.points, slots.options)(codes, 2))
    assert differing(found, wanted) <= accepted(target)


@pytest.mark.parametrize("size", [36, 512])
def test_vocabularies_may_have_any_size(size, target):
    from voxcpm_grpc.models.qwen3_tts.kernels.draw import FusedSampler

    device, dtype = target
    ids = CodeIds(groups=2, codes=size, vocabulary=size + 7, end=size + 1)
    slots, slot = Slots(20, device), torch.arange(20, device=device)
    plain = PlainSampler(ids, torch.device(device))
    logits = logits_of("rounded", 20, size).to(device, dtype)
    found = FusedSampler(ids).others(slot, slots.points, slots.options)(logits, 1)
    assert torch.equal(found, plain.others(slot, slots.points, slots.options)(logits, 1))
    logits = logits_of("rounded", 20, size + 7).to(device, dtype)
    states = [replace(slots.first(), seen=slots.seen[:, : size + 7].contiguous()) for _ in range(2)]
    found = FusedSampler(ids).first(logits, slot, slots.points, slots.options, states[0])
    assert torch.equal(found, plain.first(logits, slot, slots.points, slots.options, states[1]))
    assert torch.equal(states[0].seen, states[1].seen)


def test_equal_scores_at_the_bounds_are_kept_and_dropped_as_in_the_plain_sampler(target):
    """Of 64 equal scores top_k keeps all, and top_p drops those with the smallest ids, never the last of them."""
    device, dtype = target
    plain, fused = samplers(device)
    cuts = (0.0, 0.3, 0.9, 1.0)
    slots = Slots(32, device)
    cut = torch.tensor(cuts, device=device).repeat(8)
    options = Options(torch.full_like(cut, 1.5), torch.full_like(slots.options.top_k[:32], 3), cut)
    logits = torch.zeros(32, IDS.codes, device=device, dtype=dtype)
    tied = torch.randperm(IDS.codes, generator=torch.Generator().manual_seed(1))[:64].sort().values.to(device)
    logits[:, tied] = 2
    slot = torch.arange(32, device=device)
    found = fused.others(slot, slots.points, options)(logits, 1)
    assert torch.equal(found, plain.others(slot, slots.points, options)(logits, 1))
    for number, share in enumerate(cuts):
        least = tied[min(int(share * 64), 63)]
        assert ((found[number::4] >= least) & torch.isin(found[number::4], tied)).all()


def test_rows_of_a_slot_draw_the_same_beside_any_others(target):
    device, dtype = target
    _, fused = samplers(device)
    slots = Slots(8, device)
    logits = logits_of("normal", 1, IDS.codes).to(device, dtype)

    def drawn(*slot: int) -> list[int]:
        choose = fused.others(torch.tensor(slot, device=device), slots.points, slots.options)
        return choose(logits.repeat(len(slot), 1), 3).tolist()

    whole = drawn(7, 7, 2, 3, 0, 3)
    assert whole[0] == whole[1] and whole[3] == whole[5]
    assert drawn(2, 0) == [whole[2], whole[4]]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, in the interpreter
def test_logits_that_are_no_numbers_give_ids(target):
    device, dtype = target
    _, fused = samplers(device)
    slots, slot = Slots(12, device), torch.arange(12, device=device)
    logits = logits_of("normal", 12, IDS.vocabulary).to(device, dtype)
    for row, value in enumerate((math.nan, -math.nan, math.inf, -math.inf)):
        logits[row] = value
        logits[row + 4, ::3] = value
    found = fused.first(logits, slot, slots.points, slots.options, slots.first())
    assert ((found >= 0) & (found < IDS.vocabulary)).all()


@pytest.mark.gpu
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(0.9, 50, 1.0), (1.3, 2048, 0.8), (0.7, 20, 0.5)])
def test_draws_have_the_wanted_distribution(temperature, top_k, top_p):
    """The chi-square statistic of 10,000 draws is not among the largest."""
    device = "cuda"
    _, fused = samplers(device)
    step = torch.arange(DRAWS, device=device)
    points = Points(torch.full_like(step, 5), torch.full_like(step, 1), torch.full_like(step, 2), step)
    ones = torch.ones(DRAWS, device=device)
    options = Options(temperature * ones, torch.full_like(step, top_k), (1 - top_p) * ones)
    logits = logits_of("rounded", 1, IDS.codes).to(device, torch.bfloat16)
    found = fused.others(step, points, options)(logits.repeat(DRAWS, 1), 1)
    one = torch.zeros(1, dtype=torch.int64, device=device)
    wanted = filtered(logits.float(), options.of(one)).softmax(-1)[0].cpu().numpy()
    counts = np.bincount(found.cpu().numpy(), minlength=len(wanted))
    assert not counts[wanted == 0].any()
    statistic, degrees = chi_square(counts, wanted)
    assert statistic < quantile(degrees, SIGNIFICANCE / 3)


@pytest.mark.gpu
def test_a_captured_draw_gives_the_codes_of_a_call(device, replays_equal_calls):
    _, fused = samplers("cuda")
    slots, slot = Slots(40, "cuda"), torch.arange(40, device=device).flip(0)
    logits = logits_of("rounded", 40, IDS.vocabulary).to(device, torch.bfloat16)
    codes = logits[:, : IDS.codes].contiguous()
    state = slots.first()

    def chain(launched) -> Tensor:
        state.seen.copy_(slots.seen)
        drawn = [fused.first(logits, slot, slots.points, slots.options, state)]
        launched()
        choose = fused.others(slot, slots.points, slots.options)
        for group in (1, 2, 3):
            drawn.append(choose(codes, group))
            launched()
        return torch.stack(drawn).float()

    replays_equal_calls(chain)


def refused(change: str) -> dict[str, Any]:
    """The arguments of `FusedSampler.first`, of which one is wrong."""
    slots, slot = Slots(6, "cpu"), torch.arange(4)
    given: dict[str, Any] = {"logits": torch.zeros(4, IDS.vocabulary), "slot": slot, "points": slots.points}
    given |= {"options": slots.options, "state": slots.first()}
    points, options, state = slots.points, slots.options, slots.first()
    wrong = {
        "logits are torch.float64": {"logits": given["logits"].double()},
        "3071": {"logits": torch.zeros(4, IDS.vocabulary - 1)},
        "not contiguous bfloat16 or float32": {"logits": torch.zeros(IDS.vocabulary, 4).T},
        r"\[3, 3072\]": {"slot": slot[:3]},
        "slots must be": {"slot": slot.int()},
        "with the same stride": {"points": replace(points, step=points.step.clone())},
        "coordinates must be int64": {"points": replace(points, turn=points.turn.int())},
        "options must be float32": {"options": replace(options, top_k=options.top_k.int())},
        "cuts must have the same stride": {"options": replace(options, cut=options.cut.clone())},
        "penalties must be float32": {"state": replace(state, penalty=state.penalty.double())},
        "stride of the other options": {"state": replace(state, least=state.least.clone())},
        "seen ids are": {"state": replace(state, seen=state.seen[:, :-1])},
    }
    return given | wrong[change]


@pytest.mark.parametrize(
    "change",
    [
        "logits are torch.float64",
        "3071",
        "not contiguous bfloat16 or float32",
        r"\[3, 3072\]",
        "slots must be",
        "with the same stride",
        "coordinates must be int64",
        "options must be float32",
        "cuts must have the same stride",
        "penalties must be float32",
        "stride of the other options",
        "seen ids are",
    ],
)
def test_other_tensors_are_refused_before_a_launch(change):
    _, fused = samplers("cpu")
    with pytest.raises(ValueError, match=change):
        fused.first(**refused(change))


def test_a_step_has_no_further_codes():
    _, fused = samplers("cpu")
    slots = Slots(6, "cpu")
    choose = fused.others(torch.arange(2), slots.points, slots.options)
    for group in (0, IDS.groups):
        with pytest.raises(ValueError, match="codes 1 to 3"):
            choose(torch.zeros(2, IDS.codes), group)
    with pytest.raises(ValueError, match="3072"):
        choose(torch.zeros(2, IDS.vocabulary), 1)
