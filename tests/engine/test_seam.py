"""An engine serves a family that is unlike VoxCPM: what it gives equals what plain Python computes."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines.tiny import Outcome, at_rest, collect, engine, finished, run, run_arriving
from support.engines.toy_engines import TEXT, asks, check, check_all, part, toy_engine
from support.engines.toy_family import SAMPLES, Toy, expected

from voxcpm_grpc.engine.runner import InFlight
from voxcpm_grpc.engine.scheduling import sequence
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, QueueFull, TooLong
from voxcpm_grpc.events import FinishReason
from voxcpm_grpc.request import Conditioning, Request, Role, Sampling, VoicePart


@pytest.fixture(autouse=True, params=[False, True], ids=["audio in time", "late audio"])
def _late_audio(request, monkeypatch):
    """With late audio, no frame has reached the host when the next round is launched."""
    if request.param:
        monkeypatch.setattr(Toy, "late_audio", True)
        monkeypatch.setattr(InFlight, "ready", lambda _: False)


STREAMED = Request(id="s", text=TEXT, sampling=Sampling(seed=4, min_steps=14), keep_speech=True)


@pytest.mark.parametrize("page_size", [16, 32])
@pytest.mark.parametrize("count", range(1, 9))
def test_any_order_of_requests_gives_the_same(count, page_size):
    requests, eng = asks(count), toy_engine(prefill_tokens=5, page_size=page_size)
    for seed in range(2):
        random.Random(seed).shuffle(requests)
        for request in requests:
            eng.add(request)
        check_all(requests, run(eng), eng)
        check_all(requests, run_arriving(eng, requests, every=1 + seed), eng)
    assert at_rest(eng)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("count", [1, 3, 8, 17])
def test_a_gpu_gives_the_same(count, graphs):
    requests, eng = asks(count), toy_engine(slots=17, device="cuda", graphs=graphs, prefill_tokens=64)
    for request in requests:
        eng.add(request)
    check_all(requests, run(eng), eng)
    check_all(requests, run_arriving(eng, requests), eng)


@pytest.mark.parametrize("seed", range(6))
def test_streams_that_are_cancelled_leave_the_others_as_they_are(seed):
    draws, eng, outcomes = (
        random.Random(seed),
        toy_engine(slots=4, prefill_tokens=16),
        defaultdict[str, Outcome](Outcome),
    )
    requests = asks(12, least=10)
    gone = set(draws.sample([request.id for request in requests], 6))
    for request in requests:
        eng.add(request)
    while eng.busy:
        eng.collect()
        if gone and draws.random() < 0.3:  # also between the wait for a round and the launch of the next one
            eng.cancel(gone.pop())
        collect(outcomes, eng.step())
    left = [request for request in requests if outcomes[request.id].finished]
    check_all(left, outcomes, eng)
    assert len(left) >= 6 and at_rest(eng)


def test_streams_that_are_preempted_are_computed_again():
    requests, eng = asks(8, least=30), toy_engine(slots=4, kv_positions=96, prefill_tokens=16)
    for request in requests:
        eng.add(request)
    check_all(requests, run(eng), eng)
    assert eng.stats().preemptions > 0 and at_rest(eng)


def test_a_stream_goes_on_in_another_slot():
    first, second, *others = asks(6, first=2)
    eng, outcomes = toy_engine(slots=2), defaultdict[str, Outcome](Outcome)
    for request in (first, second):
        eng.add(request, 2)
    run(eng, outcomes=outcomes)
    for request in others:
        eng.add(request)
    run(eng, outcomes=outcomes)
    for request in (second, first):
        eng.allow(request.id, 1 << 40)
    check_all([first, second, *others], run(eng, outcomes=outcomes), eng)
    assert eng.stats().swaps >= 2 and at_rest(eng)


@pytest.mark.parametrize(
    ("other", "hits"),
    [
        (part(40, 5, "some words"), 32),
        (part(40, 6, "some words", speaker=5), 0),
        (part(40, 5, "other words"), 0),
        (part(40, 5, "some words", speaker=9), 0),
    ],
    ids=["same", "codes", "text", "speaker"],
)
def test_common_prefixes_are_found_and_no_others(other, hits):
    eng = toy_engine()
    requests = [
        Request(id=str(number), text="a few words", conditioning=Conditioning(prompt=voice))
        for number, voice in enumerate((part(40, 5, "some words"), other))
    ]
    for request in requests:
        eng.add(request)
        check(request, run(eng)[request.id], eng)
    assert eng.stats().prefix_hit_tokens == hits


def test_seed_turn_and_segment_draw_other_codes_and_only_with_a_temperature():
    eng, plain = toy_engine(), replace(STREAMED, id="plain")

    def codes(**changed: object) -> bytes:
        request = replace(plain, **changed)
        eng.add(request)
        outcome = run(eng)[request.id]
        check(request, outcome, eng)
        speech = finished(outcome).speech
        assert speech is not None
        return speech.content["codes"].tobytes()

    changes = {"sampling": replace(plain.sampling, seed=5)}, {"turn": 1}, {"segment": 1}
    made = [codes(), *(codes(**change) for change in changes)]
    assert len({*made}) == 4 and codes() == made[0]
    cold = replace(plain.sampling, temperature=0.0)
    assert len({codes(sampling=cold), codes(sampling=replace(cold, seed=5)), codes(sampling=cold, turn=1)}) == 1


def test_a_step_without_audio_is_not_counted():
    requests, eng = asks(8), toy_engine()
    for request in requests:
        eng.add(request)
    outcomes = run(eng)
    ended = [expected(request, eng.info.completed) for request in requests]
    assert any(one.stopped for one in ended) and any(one.unread for one in ended)
    assert eng.stats().chunks == sum(len(outcome.audio) for outcome in outcomes.values())
    steps, request = max((len(one.codes), ask.id) for one, ask in zip(ended, requests, strict=True) if one.stopped)
    eng.add(next(ask for ask in requests if ask.id == request), steps)
    outcome = run(eng)[request]
    assert outcome.finished is None and len(outcome.audio) == steps
    eng.allow(request, steps + 1)
    assert finished(run(eng, outcomes={request: outcome})[request]).steps == steps


def test_the_model_alone_keeps_the_end_from_early_steps():
    """The engine would count a stop of its own, if it applied min_steps, too."""
    eng = toy_engine()
    least = {str(seed): seed % 9 for seed in range(30)}
    requests = [
        replace(STREAMED, id=id, sampling=Sampling(seed=int(id), min_steps=steps)) for id, steps in least.items()
    ]
    for request in requests:
        eng.add(request)
    outcomes = run(eng)
    check_all(requests, outcomes, eng)
    assert any(finished(outcomes[id]).steps == steps for id, steps in least.items())


def test_silence_ends_a_stream_that_others_survive(monkeypatch):
    """Only its audio tells. With late audio the next step of the stream is launched then, and gives nothing."""
    level = 0.6
    monkeypatch.setattr(sequence, "SILENCE_RMS", level)
    eng = toy_engine(slots=3)
    requests = [replace(ask, sampling=replace(ask.sampling, max_silent_steps=2)) for ask in asks(8, least=12)]
    for request in requests:
        eng.add(request)
    outcomes, ended = run(eng), 0
    for request in requests:
        wanted = expected(request, eng.info.completed).audio.reshape(-1, SAMPLES)
        loud = np.sqrt((wanted**2).mean(1)) > level
        quiet = (step for step in range(2, len(loud)) if loud[: step - 1].any() and not loud[step - 1 : step + 1].any())
        steps = next(quiet, len(loud) - 1) + 1
        assert np.array_equal(outcomes[request.id].waveform, wanted[:steps].ravel())
        if steps < len(loud):
            ended += 1
            end = finished(outcomes[request.id])
            assert end.reason is FinishReason.SILENCE and end.steps == steps
            assert end.speech is not None and len(end.speech.content["codes"]) == steps
    assert 2 <= ended < len(requests) and at_rest(eng)


def test_a_stream_takes_no_step_behind_its_end():
    eng, request = toy_engine(), next(ask for ask in asks(8) if expected(ask, toy_engine().info.completed).stopped)
    eng.add(request)
    check(request, run(eng)[request.id], eng)
    assert eng.stats().steps == eng.stats().chunks + 1  # the end has no audio


def test_speech_is_carried_on_as_it_is():
    eng, carried = toy_engine(), list[VoicePart]()
    for number in range(4):
        voice = Conditioning(prompt=replace(carried[-1], text="one two") if carried else None)
        request = replace(STREAMED, id=str(number), conditioning=voice, segment=number)
        eng.add(request)
        outcome = run(eng)[request.id]
        check(request, outcome, eng)
        speech = finished(outcome).speech
        assert speech is not None and speech.content["codes"].dtype == np.int16
        carried.append(speech)


@pytest.mark.parametrize("role", Role)
def test_recordings_are_encoded_and_speech_is_decoded(role):
    eng, waveform = toy_engine(), np.arange(83, dtype=np.float32) / 100
    eng.encode("e", waveform, role)
    pieces = run(eng)["e"].pieces[:-1]
    content = {name: np.concatenate([p.array for p in pieces if p.name == name]) for name in {p.name for p in pieces}}
    assert {name: array.dtype for name, array in content.items()} == (
        {"codes": np.int16, "speaker": np.int32} if role is Role.PROMPT else {"speaker": np.int32}
    )
    voice = VoicePart(content=content, tracks=("codes",) if role is Role.PROMPT else (), text="a b")
    request = replace(STREAMED, conditioning=replace(Conditioning(), **{role.value: voice}))
    eng.add(request)
    outcome = run(eng)["s"]
    check(request, outcome, eng)
    plain = replace(STREAMED, id="plain")
    eng.add(plain)
    outcome = run(eng)["plain"]
    speech = finished(outcome).speech
    assert speech is not None
    eng.decode("d", speech.content)
    assert np.array_equal(np.concatenate([piece.array for piece in run(eng)["d"].pieces[:-1]]), outcome.waveform)


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"style": "sad"}, FailedPrecondition, "has no style; leave it out"),
        ({"language": "de"}, FailedPrecondition, "has no language; leave it out"),
        ({"text": " "}, InvalidRequest, "blank"),
        (
            {"sampling": Sampling(cfg_value=2.0)},
            FailedPrecondition,
            "its sampling options are inference_timesteps, temp",
        ),
        (
            {"sampling": Sampling(inference_timesteps=3)},
            FailedPrecondition,
            "inference_timesteps is 3 and this server runs 1, 2",
        ),
        (
            {"sampling": Sampling(temperature=float("nan"))},
            InvalidRequest,
            "temperature is nan; it must be from 0 to 2",
        ),
        ({"text": "a " * 500}, TooLong, "positions"),
        (
            {"conditioning": Conditioning(reference=VoicePart(content={"latents": np.zeros((2, 4, 8))}, tracks=()))},
            InvalidRequest,
            "is of another model",
        ),
    ],
)
def test_the_family_says_what_it_refuses_and_nothing_is_queued(changes, kind, said):
    eng = toy_engine()
    with pytest.raises(kind, match=said):
        eng.add(replace(STREAMED, **changes))
    assert not eng.busy and at_rest(eng)


# ---- text into a running generation


def stream(eng, text: str, cuts: list[int], pauses: list[int], request: Request = STREAMED) -> Outcome:
    """Speak a text of which the parts between cuts come after so many steps."""
    outcomes = defaultdict[str, Outcome](Outcome)
    ends = [0, *sorted(cuts), len(text)]
    eng.add(replace(request, text="", open=True))
    for number, (start, end) in enumerate(pairwise(ends)):
        eng.append(request.id, text[start:end], last=number == len(ends) - 2)
        for _ in range(pauses[number % len(pauses)]):
            collect(outcomes, eng.step())
    return run(eng, outcomes=outcomes)[request.id]


def cut_texts(examples: int):
    @settings(max_examples=examples, deadline=None)
    @given(
        st.lists(st.integers(0, len(TEXT)), max_size=12),
        st.lists(st.integers(0, 6), min_size=1, max_size=5),
        st.integers(0, 40),
        st.booleans(),
    )
    def check_cuts(cuts, pauses, seed, crowded):
        eng, request = (
            toy_engine(slots=2, kv_positions=128),
            replace(STREAMED, sampling=Sampling(seed=seed, min_steps=14)),
        )
        others = asks(3) if crowded else []
        for other in others:
            eng.add(other)
        outcome = stream(eng, TEXT, cuts, pauses, request)
        check(request, outcome, eng, cut=True)
        assert at_rest(eng)

    return check_cuts


def test_the_audio_depends_on_the_text_and_not_on_its_cuts():
    cut_texts(30)()


@pytest.mark.thorough
@pytest.mark.nightly
def test_the_audio_depends_on_the_text_and_not_on_any_of_its_cuts():
    cut_texts(500)()


def test_a_stream_that_waits_for_text_takes_no_step_and_gives_its_slot_up():
    eng, outcomes = toy_engine(slots=1), defaultdict[str, Outcome](Outcome)
    eng.add(replace(STREAMED, text="the quick brown ", open=True))
    run(eng, outcomes=outcomes)
    steps = eng.stats().steps
    assert len(outcomes["s"].audio) == 2 and not eng.busy and eng.paused("s")
    eng.append("s", "fo", last=False)
    assert not eng.busy and eng.stats().steps == steps, "the end of the word may follow"
    other = asks(1)[0]
    eng.add(other)
    check(other, run(eng)[other.id], eng)
    assert eng.stats().swaps == 1
    eng.append("s", TEXT.removeprefix("the quick brown fo"), last=True)
    check(STREAMED, run(eng, outcomes=outcomes)["s"], eng)
    assert at_rest(eng)


def test_a_request_without_a_word_takes_neither_slot_nor_queue():
    eng = toy_engine(slots=1, max_queue=1)
    for number in range(5):
        eng.add(replace(STREAMED, id=f"w{number}", text="", open=True))
    assert not eng.busy and eng.stats().waiting == eng.stats().slots_used == 0
    eng.add(STREAMED)
    check(STREAMED, run(eng)["s"], eng)
    eng.append("w0", TEXT, last=True)
    eng.append("w1", TEXT, last=True)
    eng.append("w2", TEXT, last=True)
    outcomes = run(eng)
    check(STREAMED, outcomes["w0"], eng)
    assert isinstance(outcomes["w2"].error, QueueFull)
    eng.cancel("w3")
    eng.append("w4", "", last=True)
    assert isinstance(run(eng)["w4"].error, InvalidRequest) and at_rest(eng)


def test_text_for_an_unknown_or_cancelled_request_is_ignored():
    eng = toy_engine()
    eng.append("nobody", "text", last=True)
    eng.add(replace(STREAMED, open=True))
    run(eng)
    eng.cancel("s")
    eng.append("s", "more", last=True)
    assert not eng.busy and at_rest(eng)


def test_the_end_tells_how_much_text_there_was():
    """Text that is on its way when the speech ends is not part of it."""
    eng, outcomes = toy_engine(), defaultdict[str, Outcome](Outcome)
    eng.add(replace(STREAMED, text="the ", open=True, sampling=Sampling(seed=4, min_steps=2, max_steps=2)))
    run(eng, outcomes=outcomes)
    eng.append("s", "quick brown fox ju", last=False)
    run(eng, outcomes=outcomes)
    eng.append("s", "mps", last=False)
    end = finished(outcomes["s"])
    assert (end.characters, end.unread) == (len("the quick brown fox ju"), " fox ju") and at_rest(eng)


def test_text_after_the_end_ends_the_request():
    eng = toy_engine()
    eng.add(STREAMED)
    eng.append("s", "more", last=True)
    error = run(eng)["s"].error
    assert isinstance(error, InvalidRequest) and error.field == "text" and "has ended" in error.message
    assert at_rest(eng)


def test_text_beyond_the_limit_ends_the_request():
    eng = toy_engine(positions=64)
    eng.add(replace(STREAMED, text="a b ", open=True))
    run(eng)
    eng.append("s", "a " * 500, last=False)
    assert isinstance(run(eng)["s"].error, TooLong) and at_rest(eng)


def test_a_model_that_cannot_stream_text_says_so():
    eng = engine(slots=1)
    with pytest.raises(
        FailedPrecondition, match="reads all text of a segment before it speaks, and has the segmentation modes"
    ) as error:
        eng.add(Request(id="a", text="Hello.", open=True))
    assert error.value.field == "text" and not eng.busy
    eng.add(Request(id="a", text="Hello.", sampling=Sampling(max_steps=3)))
    eng.append("a", "more", last=True)
    assert isinstance(run(eng)["a"].error, FailedPrecondition) and at_rest(eng)


def test_text_arrives_while_a_stream_is_preempted_and_while_it_is_swapped_out():
    for slots, kv_positions in ((4, 96), (1, None)):
        requests = asks(6, first=1, least=30)  # no speech ends before the text does
        eng = toy_engine(slots=slots, kv_positions=kv_positions, prefill_tokens=16)
        outcomes = defaultdict[str, Outcome](Outcome)
        words = {request.id: request.text.split() for request in requests}
        for request in requests:
            eng.add(replace(request, text=words[request.id][0] + " ", open=True))
        for place in range(1, 14):
            for request in requests:
                if place < len(own := words[request.id]):
                    eng.append(request.id, own[place] + " ", last=place == len(own) - 1)
            run(eng, outcomes=outcomes)
        check_all(requests, outcomes, eng)
        assert (eng.stats().swaps if slots == 1 else eng.stats().preemptions) > 0 and at_rest(eng)
