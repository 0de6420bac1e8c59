"""The engine on a GPU, with graphs and kernels, gives the same speech as on a CPU."""

import random
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.engines import goldens
from support.engines.checkpoints import OLDER, TINY
from support.engines.tiny import (
    Outcome,
    at_rest,
    collect,
    finished,
    latents,
    mixed_requests,
    run,
    run_arriving,
    voice,
    watch_joins,
    watch_launches,
)
from support.engines.traces import traced
from support.engines.voice_parts import voice_part
from support.engines.waits import no_waits

from voxcpm_grpc.abilities import LatentShape
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.events import AudioChunk, History
from voxcpm_grpc.kernels.launch.graph import Priority, stream
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.voxcpm.codec.codec import VoxCPMCodec
from voxcpm_grpc.request import Conditioning, Request, Role, Sampling
from voxcpm_grpc.settings.engine import EngineSettings

pytestmark = pytest.mark.gpu


def engine(*, slots=8, noise=None, attention="triton", checkpoint=TINY, some_graphs_later=False, **settings) -> Engine:
    device = torch.device("cuda", 0)
    options = LoadOptions(
        device=device,
        dtype=torch.float32,
        attention=attention,
        max_slots=slots,
        recorded_noise=noise,
    )
    wanted = EngineSettings(**settings)
    model = load_model(checkpoint, options)
    graphs = wanted.graphs and model.capturable
    return Engine(model, wanted, device, graphs=graphs, some_graphs_later=some_graphs_later)


def graphs_of(eng: Engine):
    """The captured graphs of an engine."""
    graphs = eng.runner._graphs
    assert graphs is not None
    return graphs


def codec(eng: Engine) -> VoxCPMCodec:
    """The codec of an engine without graphs."""
    assert isinstance(eng.model.codec, VoxCPMCodec)
    return eng.model.codec


@pytest.mark.parametrize("attention", ["reference", "triton"])
@pytest.mark.parametrize("name", ["zero_shot_cfg2_n4", "design_cfg3_n4", "prompt", "reference", "hifi"])
def test_the_engine_generates_the_speech_of_the_official_package(name, attention):
    golden = goldens.load(name)
    eng = engine(noise=torch.from_numpy(golden.noise), attention=attention)
    eng.add(golden.request)
    outcome = run(eng)[name]
    assert outcome.error is None
    np.testing.assert_allclose(latents(outcome), golden.latents, atol=1e-3, rtol=0)
    golden.same_audio(outcome.waveform, atol=1e-3)
    assert at_rest(eng)


@pytest.mark.parametrize("attention", ["reference", "triton"])
@pytest.mark.parametrize("name", ["zero_shot_cfg3_n4", "prompt_cfg2_n10", "prompt_two_patches"])
@pytest.mark.parametrize("checkpoint", OLDER, ids=lambda path: path.name)
def test_engines_of_older_models_generate_the_official_speech(checkpoint, name, attention):
    golden = goldens.load(name, goldens.GOLDENS / checkpoint.name)
    eng = engine(noise=torch.from_numpy(golden.noise), attention=attention, checkpoint=checkpoint)
    eng.add(golden.request)
    outcome = run(eng)[name]
    assert outcome.error is None
    np.testing.assert_allclose(latents(outcome), golden.latents, atol=1e-3, rtol=0)
    golden.same_audio(outcome.waveform, atol=1e-3)
    assert at_rest(eng)


@pytest.mark.parametrize("checkpoint", OLDER, ids=lambda path: path.name)
@pytest.mark.parametrize("kv_positions", [None, 96])
def test_streams_of_older_models_in_captured_steps_equal_those_alone(checkpoint, kv_positions):
    frames = 2 if checkpoint == OLDER[0] else 4
    alone = {}
    for request in mixed_requests(frames=frames, references=False):
        eng = engine(slots=1, graphs=False, checkpoint=checkpoint)
        eng.add(request)
        alone |= run(eng)
    eng = engine(kv_positions=kv_positions, checkpoint=checkpoint)
    assert eng.model.info.latents == LatentShape(frames=frames, dim=8) and graphs_of(eng)
    for request in mixed_requests(frames=frames, references=False):
        eng.add(request)
    outcomes = run(eng)
    for name, expected in alone.items():
        assert finished(outcomes[name]).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcomes[name]), latents(expected), atol=1e-3)
        np.testing.assert_allclose(outcomes[name].waveform, expected.waveform, atol=1e-3)
    assert (eng.stats().preemptions > 0) == (kv_positions is not None)
    assert at_rest(eng)


@pytest.fixture(scope="module")
def alone() -> dict[str, Outcome]:
    """The outcome of each request with an engine of its own."""
    outcomes = {}
    for request in mixed_requests():
        eng = engine(slots=1, graphs=False)
        eng.add(request)
        outcomes |= run(eng)
    return outcomes


@pytest.mark.parametrize("options", [{}, {"kv_positions": 160}, {"prefill_tokens": 24}, {"graphs": False}])
@pytest.mark.parametrize("every", [1, 3])
def test_prompts_that_join_a_round_give_the_speech_of_prompts_alone(alone, options, every):
    eng = engine(**options)
    eng.join_from = 1
    joins = watch_joins(eng)
    outcomes = run_arriving(eng, mixed_requests(), every)
    assert joins and at_rest(eng)
    for name, expected in alone.items():
        assert finished(outcomes[name]).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcomes[name]), latents(expected), atol=1e-3)
        np.testing.assert_allclose(outcomes[name].waveform, expected.waveform, atol=1e-3)


@pytest.mark.parametrize("seconds", [0.0, 0.05], ids=["at every step", "now and then"])
def test_graphs_that_are_captured_while_requests_run_change_no_speech(alone, monkeypatch, seconds):
    monkeypatch.setattr("voxcpm_grpc.engine.engine.CAPTURE_SECONDS", seconds)
    eng = engine(some_graphs_later=True)
    eng.warm_up()
    assert graphs_of(eng)._advance[False].sizes == [1, 2, 4, 8]
    for _ in range(3):
        for request in mixed_requests():
            eng.add(request)
        outcomes = run(eng)  # the first time until all are captured
        for name, expected in alone.items():
            assert finished(outcomes[name]).steps == finished(expected).steps
            np.testing.assert_allclose(latents(outcomes[name]), latents(expected), atol=1e-3)
            np.testing.assert_allclose(outcomes[name].waveform, expected.waveform, atol=1e-3)
    later, whole = graphs_of(eng), graphs_of(engine())
    assert later.complete
    assert later._decode.sizes == whole._decode.sizes
    for part in ("_advance", "_prefill", "_encode"):
        assert getattr(later, part)[False].sizes == getattr(whole, part)[False].sizes
    assert at_rest(eng)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kv_positions", [None, 128])
def test_batched_equals_alone_also_under_preemption(kv_positions, graphs):
    alone = {}
    for request in mixed_requests():
        eng = engine(slots=1, graphs=False)
        eng.add(request)
        alone |= run(eng)
    eng = engine(kv_positions=kv_positions, graphs=graphs)
    for request in mixed_requests():
        eng.add(request)
    outcomes = run(eng)
    for name, expected in alone.items():
        outcome = outcomes[name]
        assert finished(outcome).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcome), latents(expected), atol=1e-3)
        np.testing.assert_allclose(outcome.waveform, expected.waveform, atol=1e-3)
    assert (eng.stats().preemptions > 0) == (kv_positions is not None)
    assert at_rest(eng)


@pytest.mark.parametrize(("graphs", "late"), [(False, False), (True, False), (True, True)])
def test_streams_that_are_swapped_out_make_the_same_audio(monkeypatch, graphs, late):
    """Also if the audio of a slot is decoded long after the step that is followed by the swap."""
    alone = {}
    for request in mixed_requests():
        eng = engine(slots=1, graphs=False)
        eng.add(request)
        alone |= run(eng)
    eng = engine(slots=2, graphs=graphs)
    if late:
        captured = graphs_of(eng)
        replay = captured._decode.replay

        def decode_late(count):
            torch.cuda._sleep(20_000_000)  # clocks: about 10 ms
            return replay(count)

        monkeypatch.setattr(captured._decode, "replay", decode_late)
    outcomes: defaultdict[str, Outcome] = defaultdict(Outcome)
    unfinished = [request.id for request in mixed_requests()]
    for request in mixed_requests():
        eng.add(request, limit=2)
    while unfinished:
        run(eng, outcomes=outcomes)
        unfinished = [id for id in unfinished if outcomes[id].finished is None]
        for id in unfinished[::2]:
            eng.allow(id, len(outcomes[id].audio) + 3)
    for id, expected in alone.items():
        assert finished(outcomes[id]).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcomes[id]), latents(expected), atol=1e-3)
        np.testing.assert_allclose(outcomes[id].waveform, expected.waveform, atol=1e-3)
    assert eng.stats().swaps > 8 and at_rest(eng)


@pytest.mark.parametrize("graphs", [False, True])
def test_no_step_waits_for_the_device(graphs):
    """With voices, swaps, prompts that join, more of them than are primed at once, and steps of another engine."""
    eng = engine(slots=11, graphs=graphs)
    address = eng.runner._staging.memory.data_ptr()
    for turn in range(2):  # the first turn compiles and allocates
        with no_waits() if turn else nullcontext():
            for number in range(10):
                part = voice_part(voice(number, 30), "As I said, ")
                request = Request(id=f"p{number}", text="Hello there.", conditioning=Conditioning(prompt=part))
                eng.add(replace(request, sampling=Sampling(min_steps=4, max_steps=4)), limit=2)
            outcomes = run_arriving(eng, mixed_requests())
            for number in range(10):
                eng.allow(f"p{number}", 4)
            outcomes = run(eng, outcomes=defaultdict(Outcome, outcomes))
            for patches in (30, 2):  # the codec depends on five of them
                part = voice_part(voice(1, patches), "As I said, ")
                request = Request(id="h", text="Hello there.", conditioning=Conditioning(prompt=part))
                made = History(steps=bytes(2 * eng.model.step_bytes), chunks=2)
                eng.add(replace(request, sampling=Sampling(min_steps=4, max_steps=4)), history=made)
                while eng.busy:
                    eng.step()
        assert all(finished(outcome) for outcome in outcomes.values()) and len(outcomes) == 18
    assert eng.stats().swaps > 0 and at_rest(eng)
    assert not graphs or eng.runner._staging.memory.data_ptr() == address  # captured prefills read there


def test_a_swap_does_not_wait_for_the_device():
    eng = engine(slots=1)
    request = Request(id="a", text="Hello.", sampling=Sampling(min_steps=30, max_steps=30))
    for turn in range(2):  # the first turn allocates pinned memory
        eng.add(replace(request, id=f"out {turn}"), limit=3)
        run(eng)
        eng.add(replace(request, id=f"in {turn}"))
        torch.cuda._sleep(600_000_000)  # clocks: about 300 ms, longer than a busy host takes for a launch
        asleep = torch.cuda.Event()
        asleep.record()
        eng.step()
        if turn:
            assert not asleep.query(), "the launch has waited"
        assert eng.stats().swapped == 1
        eng.cancel(f"in {turn}")
        eng.cancel(f"out {turn}")  # frees that memory


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_audio_that_is_decoded_later_than_the_language_models_run_is_the_same(monkeypatch, slots):
    """Also if its slot is opened again at once, or if the next batch has another size and other timesteps."""
    requests = [
        replace(request, sampling=replace(request.sampling, min_steps=5, max_steps=5)) for request in mixed_requests()
    ]
    alone = {}
    for request in requests:
        eng = engine(slots=1, graphs=False)
        eng.add(request)
        alone |= run(eng)
    eng = engine(slots=slots)
    graphs = graphs_of(eng)
    replay = graphs._decode.replay

    def late(count):
        torch.cuda._sleep(20_000_000)  # clocks: about 10 ms, several steps
        return replay(count)

    monkeypatch.setattr(graphs._decode, "replay", late)
    for request in requests:
        eng.add(request)
    for id, outcome in run(eng).items():
        np.testing.assert_allclose(outcome.waveform, alone[id].waveform, atol=1e-3)
    assert at_rest(eng)


def test_a_round_is_launched_while_the_language_models_of_the_previous_one_run(monkeypatch):
    """A frame is read before its round is complete, and returned after the next round was launched."""
    eng = engine(graphs=True)
    launched = watch_launches(eng)
    graphs = graphs_of(eng)
    advance, over = graphs._advance[False].replay, torch.cuda.Event()

    def slow(*arguments):
        result = advance(*arguments)
        torch.cuda._sleep(600_000_000)  # clocks: about 300 ms, longer than a busy host takes for the next round
        over.record()
        return result

    steps = 5
    request = Request(id="first", text="Hello.", sampling=Sampling(min_steps=steps, max_steps=steps))
    eng.add(request)
    run(eng)  # allocates pinned memory, for which the device is waited for
    launched.clear()
    monkeypatch.setattr(graphs._advance[False], "replay", slow)
    eng.add(replace(request, id="a"))
    eng.step()
    received = []
    while len(received) < steps:
        eng.collect()
        assert not over.query(), f"the GPU was idle after {len(received)} frames"
        for _, event in eng.step():
            if isinstance(event, AudioChunk):
                received.append((event.index, len(launched)))
    assert received == [(index, min(index + 2, steps)) for index in range(steps)]
    assert at_rest(eng)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("slots", [2, 8])
def test_a_stream_that_has_ended_has_no_further_steps(slots, graphs):
    eng = engine(slots=slots, graphs=graphs, kv_positions=400)
    launched = watch_launches(eng)
    for request in mixed_requests():
        eng.add(request)
    outcomes = run(eng)
    assert {finished(outcome).reason for outcome in outcomes.values()} == {"stop", "max_steps"}
    made = sum(finished(outcome).steps for outcome in outcomes.values())
    assert sum(len(work.steps) for work in launched) == made and at_rest(eng)


def test_codec_jobs_and_captured_steps_do_not_affect_each_other():
    rng = np.random.default_rng(0)
    waveforms = {f"enc{i}": rng.uniform(-0.3, 0.3, 16000 * 3).astype(np.float32) for i in range(3)}
    eng, plain = engine(), codec(engine(graphs=False))
    patches = {f"dec{i}": voice(i, plain.chunk_patches * 2 + i) for i in range(3)}
    for request in mixed_requests():
        eng.add(request)
    undisturbed = run(eng)
    for request in mixed_requests():
        eng.add(request)
    for id, waveform in waveforms.items():
        eng.encode(id, waveform, Role.PROMPT)
    for id, array in patches.items():
        eng.decode(id, {"latents": array})
    outcomes = run(eng)
    for request in mixed_requests():
        expected = undisturbed[request.id].waveform
        np.testing.assert_allclose(outcomes[request.id].waveform, expected, atol=1e-3)  # the batches differ
    with torch.inference_mode():
        alone = {id: [chunk for _, chunk in plain.encode(waveform, Role.PROMPT)] for id, waveform in waveforms.items()}
        alone |= {id: [*plain.decode({"latents": array})] for id, array in patches.items()}
    for id, expected in alone.items():
        pieces = [piece.array for piece in outcomes[id].pieces if len(piece.array)]
        np.testing.assert_allclose(np.concatenate(pieces), torch.cat(expected).cpu().numpy(), atol=1e-5)
    assert at_rest(eng)


def test_cancelled_codec_jobs_do_not_affect_the_others():
    eng, plain = engine(), codec(engine(graphs=False))
    patches = {f"dec{i}": voice(i, plain.chunk_patches * 2 + i) for i in range(4)}
    for clocks in (200_000_000, 2_000_000_000, 20_000_000_000):  # 0.1 to 10 s, until a step takes less
        for id, array in patches.items():
            eng.decode(id, {"latents": array})
        eng.add(mixed_requests()[0])
        held_up = torch.cuda.Event()
        with torch.cuda.stream(stream(Priority.SPARE, torch.device("cuda", 0))):
            torch.cuda._sleep(clocks)
            held_up.record()
        outcomes: defaultdict[str, Outcome] = defaultdict(Outcome)
        collect(outcomes, eng.step())
        if not held_up.query():
            break
        for id in (*patches, mixed_requests()[0].id):
            eng.cancel(id)
        run(eng)
    assert not any(id in outcomes for id in patches)  # the first chunk of the first job is running
    for id in ("dec0", "dec2"):
        eng.cancel(id)
    run(eng, outcomes=outcomes)
    assert not {"dec0", "dec2"} & outcomes.keys()
    for id in ("dec1", "dec3"):
        with torch.inference_mode():
            expected = torch.cat([*plain.decode({"latents": patches[id]})]).cpu().numpy()
        pieces = [piece.array for piece in outcomes[id].pieces if len(piece.array)]
        np.testing.assert_allclose(np.concatenate(pieces), expected, atol=1e-5)
    assert at_rest(eng)


def test_codec_jobs_run_only_graphs_and_copies_from_and_to_the_host(tmp_path):
    """A single kernel beside the steps could slow down every graph: see kernels.graph.stream."""
    eng = engine()

    def code():
        eng.encode("enc", np.zeros(16000 * 3, np.float32), Role.PROMPT)
        eng.decode("dec", {"latents": voice(0, 30)})
        run(eng)

    code()
    ran = traced(code, tmp_path)
    assert any(activity.in_graph for activity in ran)
    alone = {activity.name.split(" (")[0] for activity in ran if not activity.in_graph}
    assert alone == {"Memcpy HtoD", "Memcpy DtoH"}


def test_cancels_with_a_step_in_flight_leave_nothing():
    eng = engine(slots=3)
    for request in mixed_requests():
        eng.add(request)
    for _ in range(4):
        eng.step()
    for request in mixed_requests():
        eng.cancel(request.id)
    while eng.busy:
        assert not eng.step()
    assert at_rest(eng)


def test_ten_thousand_requests_and_cancels_leak_no_slots_pages_or_memory():
    eng, rng = engine(slots=16, kv_positions=1024, max_queue=64), random.Random(0)
    templates = mixed_requests()
    for number in range(16):  # all slots open at once, so that buffers have their largest size
        eng.add(replace(templates[3], id=f"first {number}"))
    run(eng)
    active: list[str] = []
    held = None
    for serial in range(10_000):
        template = templates[serial % len(templates)]
        eng.add(replace(template, id=str(serial), keep_speech=serial % 3 == 0))
        active.append(str(serial))
        while len(active) > 40 or (active and rng.random() < 0.4):
            eng.cancel(active.pop(rng.randrange(len(active))))
        if rng.random() < 0.3:
            eng.step()
        if serial in (2_000, 9_999):
            for id in active:
                eng.cancel(id)
            active.clear()
            while eng.busy:
                eng.step()
            assert at_rest(eng)
            torch.cuda.synchronize()
            now = torch.cuda.memory_allocated()
            assert held is None or now <= held
            held = now
    assert eng.stats().cancelled + eng.stats().finished == 10_016
