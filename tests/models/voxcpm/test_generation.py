"""A stream does not depend on other streams, on the past of its slot, or on how it was prefilled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines.plans import plan_of
from support.engines.voice_parts import voice_part

from voxcpm_grpc.request import Conditioning, Request, Sampling


def requests() -> list[Request]:
    """Requests with different modes, lengths, seeds and strengths."""
    draw = np.random.default_rng(0)
    prompt, reference = (draw.normal(size=(n, 4, 8)).astype(np.float32) for n in (6, 3))
    voices = (
        Conditioning(),
        Conditioning(prompt=voice_part(prompt, "你好")),
        Conditioning(reference=voice_part(reference)),
    )
    return [
        Request(id=str(i), text=text, conditioning=voice, sampling=Sampling(seed=i, cfg_value=1.5 + i))
        for i, (text, voice) in enumerate(zip(("hello world", "你好世界, hello", "old"), voices, strict=True))
    ]


def test_streams_in_a_batch_equal_streams_alone(tiny, driver):
    together = driver(tiny)
    for slot, request in enumerate(requests()):
        together.start(slot, plan_of(tiny, request), request.sampling)
    batches = [together.step(0, 1, 2) for _ in range(3)]
    batches += [together.step(2, 0, 1) for _ in range(2)]
    order = [(0, 1, 2)] * 3 + [(2, 0, 1)] * 2
    for slot, request in enumerate(requests()):
        alone = driver(tiny)
        alone.start(2, plan_of(tiny, request), request.sampling, chunk=5)
        for frame, slots in zip(batches, order, strict=True):
            single = alone.step(2)
            at = slots.index(slot)
            assert (single.audio[0] - frame.audio[at]).abs().max() < 1e-4
            assert single.stop[0] == frame.stop[at]
        assert (alone.made(2) - together.made(slot)).abs().max() < 1e-4


def test_a_step_changes_no_other_slot(tiny, driver):
    run = driver(tiny)
    for slot, request in enumerate(requests()):
        run.start(slot, plan_of(tiny, request), request.sampling)
    s = run.state
    own = s.model
    state = [s.step, s.position, own.history, own.semantic, own.acoustic, own.condition, own.codec]
    before = [x.clone() for x in state]
    run.step(1)
    for old, new in zip(before, state, strict=True):
        assert torch.equal(old[[0, 2]], new[[0, 2]])
        assert not torch.equal(old[1], new[1])


def test_audio_is_the_same_before_and_after_the_language_models(tiny, driver):
    """An engine may therefore decode at the same time as the language models run."""
    before, after = driver(tiny), driver(tiny)
    for run in (before, after):
        for slot, request in enumerate(requests()):
            run.start(slot, plan_of(tiny, request), request.sampling)
    slots = before.long((0, 1, 2))
    for _ in range(3):
        frame = before.step(0, 1, 2)
        rows = after.rows(0, 1, 2)
        tiny.generate(slots, 10, after.state)
        tiny.advance(rows, after.state, after.kv)
        late = tiny.decode(slots, after.state)
        assert torch.equal(late.audio, frame.audio)
        assert torch.equal(late.stop, frame.stop)
    for name in before.state.model.__dataclass_fields__:
        assert torch.equal(getattr(before.state.model, name), getattr(after.state.model, name)), name


def test_a_slot_keeps_nothing_of_its_last_stream(tiny, driver):
    first, second, third = requests()
    fresh, used = driver(tiny), driver(tiny)
    used.start(0, plan_of(tiny, second), second.sampling)
    used.step(0)
    for request in (first, third):
        for run in (fresh, used):
            run.start(0, plan_of(tiny, request), request.sampling)
        assert torch.equal(fresh.step(0).audio, used.step(0).audio)


def test_generation_continues_after_the_cache_was_computed_again(tiny, driver):
    """Preemption drops the pages and keeps the slot: the prompt and the generated patches are prefilled again."""
    request = requests()[1]
    rows = plan_of(tiny, request)
    kept, dropped = driver(tiny), driver(tiny)
    for run in (kept, dropped):
        run.start(0, rows, request.sampling)
        for _ in range(4):
            run.step(0)
    dropped.kv.k.fill_(torch.nan)
    dropped.kv.v.fill_(torch.nan)
    dropped.prefill(0, np.append(rows.own.tokens, [0] * 4), np.append(rows.own.audio, [True] * 4), chunk=6)
    for _ in range(3):
        assert (kept.step(0).audio - dropped.step(0).audio).abs().max() < 1e-4


def test_a_prompt_primes_the_codec(tiny, driver):
    """The first audio continues that of the whole prompt; after silence it would differ."""
    request = requests()[1]
    rows = plan_of(tiny, request)
    run = driver(tiny)
    run.start(0, rows, request.sampling)
    audio = torch.cat([run.step(0).audio[0] for _ in range(3)]).numpy()
    made = run.made(0).numpy()
    joined, alone = (
        np.concatenate(list(tiny.codec.decode({"latents": x})))
        for x in (np.concatenate([rows.own.patches, made]), made)
    )
    assert np.abs(audio - joined[-len(audio) :]).max() < 1e-5
    assert np.abs(audio - alone).max() > 1e-3


def test_seed_turn_segment_and_temperature_change_the_noise(tiny, driver):
    request = requests()[0]

    def first(**columns: float) -> torch.Tensor:
        run = driver(tiny)
        run.start(0, plan_of(tiny, request), request.sampling)
        for name, value in columns.items():
            getattr(run.state.model if name == "temperature" else run.state, name)[0] = value
        return run.step(0).audio[0]

    base = first()
    assert torch.equal(base, first(seed=0, turn=0, segment=0, temperature=1))
    assert torch.equal(first(temperature=0), first(temperature=0, seed=9))
    for change in ({"seed": 9}, {"turn": 1}, {"segment": 1}, {"temperature": 0.5}):
        assert (first(**change) - base).abs().max() > 1e-3


@pytest.mark.parametrize("broken", [torch.nan, 1e38])
def test_a_broken_stream_is_reported_and_does_not_affect_others(tiny, driver, monkeypatch, broken):
    """Also a stream with finite latents that are too large for the language models."""
    first, second, _ = requests()
    run, alone = driver(tiny), driver(tiny)
    for d in (run, alone):
        d.start(0, plan_of(tiny, first), first.sampling)
        d.start(1, plan_of(tiny, second), second.sampling)
    flow = tiny.flow

    def break_first(*inputs):
        latents = flow(*inputs)
        latents[0] = broken
        return latents

    monkeypatch.setattr(tiny, "flow", break_first)
    frame = run.step(0, 1)
    monkeypatch.undo()
    assert frame.finite.tolist() == [False, True]
    assert torch.allclose(frame.audio[1], alone.step(0, 1).audio[1], atol=1e-5)
    assert run.state.model.history[0].isfinite().all()
    assert run.kv.k.isfinite().all()
    assert run.kv.v.isfinite().all()


def test_padding_can_share_the_scratch_slot_for_any_time(tiny, driver):
    run = driver(tiny, positions=48)
    request = requests()[0]
    run.start(0, plan_of(tiny, request), request.sampling)
    s = run.state
    s.block_table[2] = 0
    rows = run.rows(0, 2, 2)
    s.position[2], s.step[2] = 10**6, 10**6  # as after days of padding
    frame = tiny.step(rows, 4, s, run.kv)
    assert frame.finite.all()
    assert s.position[0] == plan_of(tiny, request).positions + 1


def test_language_models_advance_padding_for_which_no_patch_was_generated(tiny, driver):
    """Not even values that are not numbers get from the scratch slot to another one."""
    run, alone = driver(tiny), driver(tiny)
    for d, advanced in ((run, (0, 1, 3, 3)), (alone, (0, 1))):
        for slot, request in enumerate(requests()[:2]):
            d.start(slot, plan_of(tiny, request), request.sampling)
        d.state.block_table[3] = 0
        for _ in range(2):
            d.state.model.condition[3] = torch.nan
            tiny.generate(d.long([0, 1]), 4, d.state)
            tiny.advance(d.rows(*advanced), d.state, d.kv)
    assert run.state.model.semantic[3].isnan().all()
    for slot in (0, 1):
        assert torch.allclose(run.made(slot), alone.made(slot), atol=1e-5)
        assert torch.allclose(run.state.model.semantic[slot], alone.state.model.semantic[slot], atol=1e-5)


def test_steps_in_bfloat16_are_finite(load, driver):
    model = load(dtype=torch.bfloat16)
    run = driver(model)
    for slot, request in enumerate(requests()):
        run.start(slot, plan_of(model, request), request.sampling)
    frames = [run.step(0, 1, 2) for _ in range(3)]
    assert run.state.model.history.dtype == torch.bfloat16
    assert all(frame.finite.all() and frame.audio.dtype == torch.float32 for frame in frames)
