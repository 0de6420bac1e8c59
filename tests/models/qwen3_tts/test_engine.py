"""The speech of a request does not depend on others, on slots, on memory, or on how its text arrives."""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines.disturbances import break_launches, disturb
from support.engines.qwen3 import TEXT, asks, checkpoint, cloned, codes_of, engine, load, shared, voices
from support.engines.tiny import Lagging, Outcome, at_rest, collect, finished, run, run_arriving
from support.engines.tiny import engine as any_engine
from support.engines.waits import no_waits

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.events import AudioChunk, Finished, FinishReason, History
from voxcpm_grpc.request import Conditioning, Request, Sampling, VoicePart, joined
from voxcpm_grpc.settings.engine import EngineSettings

STEPS = 7
AUDIO_ERROR = 2e-5
GPU_AUDIO_ERROR = 2e-3  # whose convolutions may be in TF32
VARIANTS = ("custom17", "base17", "design")


@functools.cache
def alone(variant: str, steps: int = STEPS) -> dict[str, Outcome]:
    eng, outcomes = engine(variant), dict[str, Outcome]()
    for request in asks(variant, steps=steps):
        eng.add(request)
        outcomes |= run(eng)
    return outcomes


def check(outcomes: dict[str, Outcome], variant: str, steps: int = STEPS, error: float = AUDIO_ERROR) -> None:
    for id, wanted in alone(variant, steps).items():
        assert np.array_equal(codes_of(outcomes[id]), codes_of(wanted)), id
        assert np.abs(outcomes[id].waveform - wanted.waveform).max() < error


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_a_batch_as_alone(variant):
    eng = engine(variant)
    for request in asks(variant):
        eng.add(request)
    check(run(eng), variant)
    assert at_rest(eng)


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_chunks_of_the_prompt_while_others_run(variant):
    eng = engine(variant, prefill_tokens=7, page_size=32)
    check(run_arriving(eng, asks(variant)), variant)


@pytest.mark.parametrize(("variant", "share_of_faults"), [("custom17", 0.0), ("base17", 0.08), ("design", 0.0)])
def test_cancelled_moved_and_broken_as_alone(variant, share_of_faults, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", Lagging)  # the audio is late, as on a GPU
    eng, draws = engine(variant, slots=3, page_size=32), random.Random(1)
    failed = break_launches(eng, draws, share_of_faults)
    check(disturb(eng, asks(variant), draws), variant)
    assert bool(failed) == bool(share_of_faults)


@pytest.mark.parametrize(("variant", "positions"), [("custom17", 128), ("base17", 112)])
def test_preempted_as_alone(variant, positions):
    eng = engine(variant, kv_positions=positions, prefix_caching=False)
    for request in asks(variant, steps=16):
        eng.add(request)
    check(run(eng), variant, steps=16)
    assert eng.stats().preemptions > 0 and at_rest(eng)


@pytest.mark.parametrize("variant", VARIANTS[:2])
def test_in_another_slot_as_alone(variant):
    eng, outcomes = engine(variant, slots=2), defaultdict[str, Outcome](Outcome)
    first, second, *others = asks(variant)
    for request in (first, second):
        eng.add(request, 3)
    run(eng, outcomes=outcomes)
    for request in others:
        eng.add(request)
    run(eng, outcomes=outcomes)
    for request in (second, first):
        eng.allow(request.id, 1 << 40)
    check(run(eng, outcomes=outcomes), variant)
    assert eng.stats().swaps >= 2 and at_rest(eng)


@pytest.mark.parametrize("variant", VARIANTS)
def test_behind_the_steps_of_another_engine_as_alone(variant):
    eng, made = engine(variant), alone(variant)
    steps = chunks_of(variant)
    for request in asks(variant):
        eng.add(request, history=History(steps=b"".join(steps[request.id][:4]), chunks=4))
    outcomes = run_resumed(eng, 4)
    for id, wanted in made.items():
        assert np.array_equal(codes_of(outcomes[id]), codes_of(wanted)), id
        assert np.abs(outcomes[id].waveform - wanted.waveform[4 * 1920 :]).max() < AUDIO_ERROR


def chunks_of(variant: str) -> dict[str, list[bytes]]:
    """The content of each step, as a front keeps it."""
    return {id: [row.tobytes() for row in codes_of(outcome)] for id, outcome in alone(variant).items()}


def run_resumed(eng: Engine, first: int) -> dict[str, Outcome]:
    """The outcomes of requests that go on behind `first` chunks."""
    outcomes: defaultdict[str, Outcome] = defaultdict(Outcome)
    while eng.busy:
        for name, event in eng.step():
            if isinstance(event, AudioChunk):
                assert event.index == first + len(outcomes[name].audio)
                outcomes[name].audio.append(np.array(event.samples))
            elif isinstance(event, Finished):
                outcomes[name].finished = event
    return outcomes


def test_a_common_prefix_is_found_and_no_other():
    voice = cloned(40, 5)
    assert voice.prompt is not None
    content = voice.prompt.content
    other_speaker = {**content, "speaker": content["speaker"] + 1}
    other_codes = content["codes"].copy()
    other_codes[20] += 1 - 2 * (other_codes[20] > 0)
    variants = {
        "same": content,
        "speaker": other_speaker,
        "codes": {**content, "codes": other_codes},
    }
    eng, hits, audio = engine("base17"), [0], dict[str, np.ndarray]()
    for name, arrays in variants.items():
        for number in range(2 if name == "same" else 1):
            part = VoicePart(content=arrays, tracks=("codes",), text="as is said")
            request = Request(
                id=f"{name}{number}",
                text=TEXT,
                sampling=Sampling(seed=1, min_steps=4, max_steps=4),
                conditioning=Conditioning(prompt=part),
                keep_speech=True,
            )
            eng.add(request)
            audio[request.id] = codes_of(run(eng)[request.id])
            hits.append(eng.stats().prefix_hit_tokens)
    assert np.array_equal(audio["same0"], audio["same1"])
    assert np.diff(hits).tolist() == [0, 48, 0, 16]  # 8 + 41 positions; entry 20 of the codes is in the second page
    assert not np.array_equal(audio["same0"], audio["speaker0"]) and not np.array_equal(audio["same0"], audio["codes0"])


def test_audio_is_that_of_the_codes_behind_those_of_the_voice():
    model = shared("base17")
    for request in asks("base17")[:3]:
        outcome, prompt = alone("base17")[request.id], request.conditioning.prompt
        heard = prompt.content["codes"] if prompt else np.zeros((0, 16), np.int16)
        whole = np.concatenate([heard, codes_of(outcome)])
        decoded = torch.cat(list(model.codec.decode({"codes": whole}))).numpy()
        assert np.abs(decoded[1920 * len(heard) :] - outcome.waveform).max() < AUDIO_ERROR


def test_speech_is_carried_on():
    eng, carried, voice = engine("base17"), list[VoicePart](), cloned(0)
    for number in range(3):
        parts = Conditioning(prompt=joined(carried, "Hello world." * len(carried)) if carried else None)
        if not carried:
            parts = voice
        request = replace(asks("base17")[0], id=str(number), segment=number, conditioning=parts)
        eng.add(request)
        speech = finished(run(eng)[request.id]).speech
        assert speech is not None and speech.content["codes"].dtype == np.int16
        assert voice.reference is not None
        assert np.array_equal(speech.content["speaker"], voice.reference.content["speaker"])
        carried.append(speech)


# ---- text that arrives


def stream(eng: Engine, request: Request, cuts: list[int], pauses: list[int]) -> Outcome:
    """Speak a text of which the parts between cuts come after so many steps."""
    outcomes, text = defaultdict[str, Outcome](Outcome), request.text
    ends = [0, *sorted(cuts), len(text)]
    eng.add(replace(request, text="", open=True, arrives=True))
    for number, (start, end) in enumerate(pairwise(ends)):
        eng.append(request.id, text[start:end], last=number == len(ends) - 2)
        for _ in range(pauses[number % len(pauses)]):
            collect(outcomes, eng.step())
    return run(eng, outcomes=outcomes)[request.id]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_speech_depends_on_the_text_and_not_on_its_cuts(variant):
    rng = random.Random(3)
    for number in range(2 if variant == "base17" else 1):
        sampling = Sampling(seed=4, min_steps=14, max_steps=14)
        voice = voices(variant)[number]
        request = Request(
            id="s", text=TEXT, sampling=sampling, conditioning=voice, keep_speech=True, arrives=True, segment=number
        )
        eng = engine(variant)
        eng.add(request)
        whole = run(eng)["s"]
        cuts = rng.sample(range(len(TEXT)), 9)
        for other in asks(variant, 2):
            eng.add(other)
        parts = stream(eng, request, cuts, [0, 3, 1])
        assert np.array_equal(codes_of(parts), codes_of(whole))
        assert np.abs(parts.waveform - whole.waveform).max() < AUDIO_ERROR


def test_a_stream_takes_no_step_whose_text_it_does_not_know():
    eng, outcomes = engine("custom17", slots=1), defaultdict[str, Outcome](Outcome)
    request = replace(
        asks("custom17")[0], id="s", text=TEXT, arrives=True, sampling=Sampling(seed=1, min_steps=40, max_steps=40)
    )
    eng.add(replace(request, text="", open=True))
    assert not eng.busy
    eng.append("s", " The", last=False)
    assert not eng.busy, "the word may go on"
    eng.append("s", " quick brown f", last=False)
    run(eng, outcomes=outcomes)
    assert len(outcomes["s"].audio) == 2 and eng.paused("s")  # The, quick, brown: the next steps read the last two
    other = asks("custom17")[1]
    eng.add(other)
    assert np.array_equal(codes_of(run(eng)[other.id]), codes_of(alone("custom17")[other.id]))
    assert eng.stats().swaps == 1
    eng.append("s", TEXT.removeprefix("The quick brown f"), last=True)
    parts = run(eng, outcomes=outcomes)["s"]
    whole = engine("custom17")
    whole.add(request)
    assert np.array_equal(codes_of(parts), codes_of(run(whole)["s"]))


def test_an_engine_that_gets_the_text_whole_speaks_as_the_one_that_was_lost():
    """A front sends all text with the steps that it has kept, and the text may be complete by then."""
    eng = engine("custom17")
    request = Request(id="s", text=TEXT, sampling=Sampling(seed=2, min_steps=6, max_steps=6), keep_speech=True)
    request = replace(request, arrives=True)
    lost = stream(eng, request, [20], [2])
    steps = b"".join(row.tobytes() for row in codes_of(lost)[:3])
    eng.add(request, history=History(steps=steps, chunks=3))
    assert np.array_equal(codes_of(run_resumed(eng, 3)["s"]), codes_of(lost))


def test_text_that_was_not_read_is_told():
    eng = engine("custom17")
    request = Request(id="s", text=TEXT, sampling=Sampling(seed=2, min_steps=3, max_steps=3), arrives=True)
    eng.add(request)
    end = finished(run(eng)["s"])
    ids = shared("custom17").prompt_layout.tokenizer(TEXT)
    assert end.reason is FinishReason.MAX_STEPS and TEXT.endswith(end.unread)
    assert shared("custom17").prompt_layout.tokenizer.text_of(ids, 4) == end.unread
    eng.add(replace(request, arrives=False))
    assert finished(run(eng)["s"]).unread == ""


def test_the_end_ends_the_speech_without_audio():
    eng = engine("custom17")
    request = Request(id="s", text="Hello world.", sampling=Sampling(seed=2, min_steps=0), keep_speech=True)
    end = torch.arange(1536) == shared("custom17").config.marks.codec_eos_token_id
    sampler = shared("custom17").networks.sampler
    with mock.patch.object(sampler, "allowed", lambda logits, early: logits.masked_fill(~end, -torch.inf)):
        eng.add(request)
        outcome = run(eng)["s"]
    ended = finished(outcome)
    assert ended.reason is FinishReason.STOP and ended.steps == 0 and not outcome.audio
    assert ended.speech is not None and ended.speech.content["codes"].shape == (0, 16)


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_blank_text_is_refused(text):
    eng = engine("design")
    with pytest.raises(InvalidRequest, match="blank"):
        eng.add(Request(id="s", text=text))
    eng.add(Request(id="s", text=text, open=True))
    eng.append("s", "", last=True)
    assert isinstance(run(eng)["s"].error, InvalidRequest) and at_rest(eng)


@pytest.mark.parametrize("variant", ["custom06", "base06", "design"])
def test_an_engine_warms_up_with_each_variant(variant):
    eng = any_engine(slots=2, checkpoint=checkpoint(variant), max_queue=4)
    assert eng.warm_up() > 0 and at_rest(eng)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("graphs", [False, True])
def test_a_gpu_gives_the_same_in_any_batch(variant, graphs):
    """In float32, whose codes are those of the CPU, too."""
    cuda = torch.device("cuda")
    model = load(variant, device=cuda, attention="triton")
    eng = Engine(model, EngineSettings(prefill_tokens=64), cuda, graphs=graphs)
    outcomes = dict[str, Outcome]()
    for request in asks(variant):
        eng.add(request)
        outcomes |= run(eng)
    check(outcomes, variant, error=GPU_AUDIO_ERROR)
    check(run_arriving(eng, asks(variant)), variant, error=GPU_AUDIO_ERROR)
    assert at_rest(eng)


def arriving(variant: str, number: int) -> Request:
    """A request whose text arrives, with a voice of this number."""
    sampling, voice = Sampling(seed=number, min_steps=9, max_steps=9), voices(variant)[number]
    return Request(id="s", text=TEXT, sampling=sampling, conditioning=voice, keep_speech=True, arrives=True)


@functools.cache
def codes_at_once(variant: str, number: int) -> np.ndarray:
    eng = engine(variant)
    eng.add(arriving(variant, number))
    return codes_of(run(eng)["s"])


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(VARIANTS),
    st.lists(st.integers(0, len(TEXT)), max_size=12),
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.integers(0, 2),
)
def test_the_speech_depends_on_no_cut_and_no_pause(variant, cuts, pauses, number):
    request, eng = arriving(variant, number), engine(variant)
    whole = codes_at_once(variant, number)
    assert np.array_equal(codes_of(stream(eng, request, cuts, pauses)), whole) and at_rest(eng)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
def test_no_step_waits_for_the_gpu(graphs):
    """With cloned voices, swaps, text that arrives, and steps of another engine."""
    cuda = torch.device("cuda")
    eng = Engine(load("base17", slots=2, device=cuda, attention="triton"), EngineSettings(), cuda, graphs=graphs)
    arriving = Request(id="s", text="", open=True, arrives=True, sampling=Sampling(min_steps=5, max_steps=5))
    for turn in range(2):  # the first turn compiles and allocates
        requests = asks("base17", count=6, steps=5)
        with no_waits() if turn else nullcontext():
            for request in requests:
                eng.add(request, limit=2)
            eng.add(arriving)
            eng.append("s", TEXT[:20], last=False)
            outcomes = run(eng)
            eng.append("s", TEXT[20:], last=True)
            for request in requests:
                eng.allow(request.id, 5)
            outcomes = run(eng, outcomes=outcomes)
            eng.add(replace(requests[0], id="h"), history=History(steps=np.ones((3, 16), np.int16).tobytes(), chunks=3))
            run_resumed(eng, 3)
        assert all(finished(outcome).steps == 5 for outcome in outcomes.values()) and len(outcomes) == 7
    assert eng.stats().swaps > 0 and at_rest(eng)
