"""The rows that requests become are those of the official package."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines.qwen3 import CASES, MANIFEST, asked, golden, shared

from voxcpm_grpc.attention import PagedKV, PagedRows
from voxcpm_grpc.engine.device.slots import Slots
from voxcpm_grpc.models.base import Opened, Plan, PrefillRows, Span
from voxcpm_grpc.models.qwen3_tts.model import Qwen3TTS
from voxcpm_grpc.models.qwen3_tts.predictor import Predictor
from voxcpm_grpc.models.qwen3_tts.talker import ProjectedCodes

PAGE = 16


def plan_of(variant: str, name: str) -> Plan:
    model = shared(variant)
    request, streams = asked(variant, name)
    return model.prompt_layout(model.info.checked(request), streams=streams)


def opened(model: Qwen3TTS, plan: Plan) -> Slots:
    """State of which slot 0 has a stream of this plan."""
    slots = Slots.allocate(model, 1, 4, torch.device("cpu"))
    slots.numbers[0, -model.numbers :] = torch.from_numpy(plan.numbers)
    model.open(torch.tensor([0]), [Opened(0, plan, torch.zeros(0, dtype=torch.int64))], slots.state)
    return slots


def prefill_rows(model: Qwen3TTS, plan: Plan, stop: int) -> PrefillRows:
    rows = model.rows([Span(plan, 0, stop)])
    pages = -(-stop // PAGE)
    paged = PagedRows(
        cu_seqlens=torch.tensor([0, stop], dtype=torch.int32),
        context=torch.tensor([stop], dtype=torch.int32),
        block_table=torch.arange(pages, dtype=torch.int32)[None],
        write=torch.arange(stop),
        max_rows=stop,
        max_context=stop,
        fresh=True,
    )
    first = torch.zeros(stop, dtype=torch.int64)
    position = torch.arange(stop)
    columns = torch.from_numpy(rows.columns)
    return PrefillRows(
        columns=columns, position=position, paged=paged, last=position[-1:], last_slot=first[:1], slot=first
    )


@pytest.mark.parametrize(("variant", "name"), CASES)
def test_rows_and_trail_are_official(variant, name):
    model, plan = shared(variant), plan_of(variant, name)
    wanted = golden(variant)
    slots = opened(model, plan)
    with torch.inference_mode():
        rows = model.inputs(prefill_rows(model, plan, plan.positions), slots.state.model)
        trail = [*plan.own.trail.tolist(), model.config.text_marks.tts_pad_token_id]
        text = model.networks.text(torch.tensor(trail))
    assert rows.shape == wanted[f"{name}.rows"].shape
    assert np.abs(rows.numpy() - wanted[f"{name}.rows"]).max() < 1e-6
    official = wanted[f"{name}.trail"]
    read = len(plan.own.trail) or 1  # a text that has ended is the pad
    assert len(official) == read and np.abs(text.numpy()[:read] - official).max() < 1e-6


@pytest.mark.parametrize(("variant", "name"), [("custom06", "whole"), ("custom17", "whole")])
def test_logits_of_forced_codes_are_official(variant, name):
    model, plan, wanted = shared(variant), plan_of(variant, name), golden(variant)
    steps, kept = 20, MANIFEST["kept_logits"]
    codes = torch.from_numpy(wanted[f"{name}.codes"].astype(np.int64))[:steps]
    slots = opened(model, plan)
    own = slots.state.model
    own.codes[0, :steps] = codes
    size = plan.positions + steps
    rows = prefill_rows(model, plan, size)
    layout = model.layout
    shape = layout.layers, -(-size // PAGE), PAGE, layout.heads, layout.head_dim
    kv = PagedKV(torch.zeros(shape), torch.zeros(shape))
    with torch.inference_mode():
        hidden = model.networks.talker(model.inputs(rows, own), rows.position, kv, rows.paged)
        hidden = hidden[plan.positions - 1 : size - 1]
        first = model.networks.talker.head(hidden)
        forced = _forced(model.networks.predictor, hidden, codes)
    assert np.abs(first.numpy()[:, ::kept] - wanted[f"{name}.first_logits"]).max() < 1e-4
    assert np.abs(forced[..., ::kept] - wanted[f"{name}.code_logits"]).max() < 1e-4


def _forced(predictor: Predictor, hidden: torch.Tensor, codes: torch.Tensor) -> np.ndarray:
    """The logits [steps, groups - 1, v] of a predictor that chooses these codes [steps, groups]."""
    logits = []

    def choose(given: torch.Tensor, group: int) -> torch.Tensor:
        logits.append(given)
        return codes[:, group]

    assert torch.equal(predictor(hidden, codes[:, 0], choose), codes)
    return torch.stack(logits, dim=1).numpy()


def test_the_rows_of_codes_in_a_table_are_those_through_the_projection():
    model = shared("custom17")  # its talker is wider than its predictor
    rows = model.networks.predictor._rows
    assert isinstance(rows, ProjectedCodes)
    ids, table = torch.tensor([0, 3, 1, 3]), rows.table()
    for group in (0, 1, model.config.groups - 1):
        torch.testing.assert_close(table(ids, group), rows(ids, group), atol=1e-6, rtol=1e-6)
