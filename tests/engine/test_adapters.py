"""LoRA adapters by request: several and none in one batch, more of them than places, and their end."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import goldens
from support.engines import Outcome, at_rest, collect, engine, finished, latents, mixed_requests, run, watch_launches

from voxcpm_grpc import lora_files
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest
from voxcpm_grpc.models.base import AdapterOptions
from voxcpm_grpc.request import LoraInfo, Request, Sampling

pytestmark = pytest.mark.thorough

LAYERS, ATTENTION, MERGED = (goldens.GOLDENS / name for name in ("lora_layers", "lora_attention", "lora"))
KINDS = frozenset({"attention", "mlp", "projections"})
TOLERANCE = 1e-5


def info(id: str, directory: Path) -> LoraInfo:
    fingerprint = lora_files.fingerprint(directory)
    return LoraInfo(id=id, name=id, source=str(directory), directory=str(directory), fingerprint=fingerprint)


def register(eng: Engine, id: str, directory: Path) -> None:
    registered = info(id, directory)
    eng.add_lora(registered, eng.read_lora(registered))


def adapted_engine(*, places: int = 4, rank: int = 16, targets: frozenset[str] = KINDS, **options) -> Engine:
    """An engine with the adapters of the goldens, and two copies of them under other names."""
    eng = engine(adapters=AdapterOptions(places, rank, targets), **options)
    for id, folder in (("layers", LAYERS), ("attention", ATTENTION), ("layers 2", LAYERS), ("attention 2", ATTENTION)):
        register(eng, id, folder / "adapter")
    return eng


@pytest.mark.parametrize("name", ["zero_shot", "prompt", "reference", "hifi"])
@pytest.mark.parametrize("folder", [LAYERS, ATTENTION], ids=lambda folder: folder.name)
def test_speech_with_an_adapter_equals_that_of_the_official_package(folder, name):
    golden = goldens.load(name, folder)
    eng = engine(noise=torch.from_numpy(golden.noise), adapters=AdapterOptions(2, 16, KINDS))
    register(eng, "x", folder / "adapter")
    eng.add(replace(golden.request, lora="x"))
    outcome = run(eng)[name]
    np.testing.assert_allclose(latents(outcome), golden.latents, atol=1e-4, rtol=0)
    golden.same_audio(outcome.waveform, atol=1e-4)
    assert at_rest(eng)


def requests() -> list[Request]:
    """Requests of every mode with four adapters and none, two of each with the same prompt."""
    ids = ("", "layers", "attention", "layers 2", "attention 2")
    return [
        replace(request, id=f"{request.id} {id}", lora=id)
        for index, request in enumerate(mixed_requests(6))
        for id in (ids[index % 5], ids[(index + 1) % 5])
    ]


@pytest.fixture(scope="module")
def alone() -> dict[str, Outcome]:
    """The outcome of each request with an engine of its own."""
    outcomes = {}
    for request in requests():
        eng = adapted_engine(slots=1)
        eng.add(request)
        outcomes |= run(eng)
    return outcomes


def assert_same(outcomes: dict[str, Outcome], alone: dict[str, Outcome]) -> None:
    assert outcomes.keys() == alone.keys()
    for id, expected in alone.items():
        assert finished(outcomes[id]).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcomes[id]), latents(expected), atol=TOLERANCE)
        np.testing.assert_allclose(outcomes[id].waveform, expected.waveform, atol=TOLERANCE)


@pytest.mark.parametrize("places", [1, 2, 4])
def test_adapters_and_none_in_one_batch_give_what_each_gives_alone(alone, places):
    eng = adapted_engine(slots=16, places=places)
    for request in requests():
        eng.add(request)
    assert_same(run(eng), alone)
    assert at_rest(eng)


def test_a_stream_without_an_adapter_takes_over_the_slot_of_one_with_it():
    def plain() -> Request:
        return Request(id="plain", text="a text of its own", sampling=Sampling(seed=1, max_steps=3))

    def adapted(id: str) -> Request:
        return replace(plain(), id=id, lora="layers", sampling=Sampling(seed=2, max_steps=12))

    fresh = adapted_engine()
    fresh.add(plain())
    expected = run(fresh)["plain"].waveform
    eng = adapted_engine(slots=2)
    for id in ("first", "second"):
        eng.add(adapted(id))
    run(eng)  # both slots had an adapter
    outcomes: defaultdict[str, Outcome] = defaultdict(Outcome)
    eng.add(adapted("beside"))
    collect(outcomes, eng.step())
    eng.add(plain())  # its prompt joins a prefill that reads adapters
    while eng.busy:
        collect(outcomes, eng.step())
    np.testing.assert_allclose(outcomes["plain"].waveform, expected, atol=TOLERANCE, rtol=0)


def test_preemption_keeps_the_adapter(alone):
    eng = adapted_engine(slots=16, kv_positions=128, prefill_tokens=64)
    for request in requests():
        eng.add(request)
    assert_same(run(eng), alone)
    assert eng.stats().preemptions


def test_streams_that_gave_their_slots_up_get_their_adapter_back(alone):
    eng = adapted_engine(slots=2, places=1)
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for request in requests():
        eng.add(request, credit=3)
    for _ in range(1000):
        run(eng, outcomes=outcomes)
        waiting = [id for id in alone if outcomes[id].finished is None]
        if not waiting:
            break
        for id in waiting:
            eng.grant(id, 2)
    assert_same(outcomes, alone)
    assert eng.stats().swaps and at_rest(eng)


def test_the_adapters_change_the_speech(alone):
    texts = defaultdict(list)
    for id, outcome in alone.items():
        texts[id.split(" ")[0]].append(outcome.waveform)
    for a, b in texts.values():
        size = min(len(a), len(b))
        assert np.abs(a[:size] - b[:size]).max() > 1e-3


def voiced(id: str, lora: str) -> Request:
    """A request with a long common beginning."""
    return replace(next(r for r in mixed_requests() if r.conditioning.reference is not None), id=id, lora=lora)


def test_prompts_are_shared_with_the_same_adapter_only():
    eng = adapted_engine()
    cached = {}
    for id, lora in (("a", "layers"), ("b", "attention"), ("c", ""), ("d", "layers"), ("e", "layers 2"), ("f", "")):
        eng.add(voiced(id, lora))
        admitted = run(eng)[id].admitted
        assert admitted
        cached[id] = admitted.cached_tokens
    # "layers 2" has the same files as "layers".
    assert [id for id, tokens in cached.items() if tokens] == ["d", "e", "f"]


def brief(id: str, lora: str = "", steps: int = 3) -> Request:
    sampling = Sampling(min_steps=steps, max_steps=steps, inference_timesteps=4)
    return Request(id=id, text="Hello.", lora=lora, sampling=sampling)


def order_of_admission(eng: Engine, *added: Request) -> list[str]:
    batches = watch_launches(eng)
    for request in added:
        eng.add(request)
    run(eng)
    return [sequence.id for batch in batches for sequence in batch.opened]


def test_requests_wait_for_places_in_order_and_others_pass_them():
    eng = adapted_engine(places=1, slots=4)
    order = order_of_admission(
        eng, brief("a", "layers"), brief("b", "attention"), brief("c", "layers"), brief("d"), brief("e")
    )
    assert order == ["a", "d", "e", "b", "c"]


def test_streams_without_credit_give_places_up():
    eng = adapted_engine(places=1, slots=4)
    eng.add(brief("stalled", "layers", steps=9), credit=2)
    assert not run(eng)["stalled"].finished
    eng.add(brief("other", "attention"))
    assert run(eng)["other"].finished
    eng.grant("stalled", 9)
    assert run(eng, outcomes=defaultdict(Outcome, stalled=Outcome(audio=[np.zeros(0)] * 2)))["stalled"].finished


def writes(eng: Engine) -> list[int]:
    """The places that are written from now on."""
    written: list[int] = []
    write = eng.model.write_adapter
    eng.model.write_adapter = lambda place, adapter: (written.append(place), write(place, adapter))[0]
    return written


def test_an_adapter_stays_in_its_place_until_the_least_recent_one_must_go():
    eng = adapted_engine(places=2)
    written = writes(eng)
    for number, (lora, expected) in enumerate(
        (("layers", 1), ("attention", 2), ("layers", 2), ("layers 2", 3), ("layers", 3), ("attention", 4))
    ):
        eng.add(brief(str(number), lora))
        run(eng)
        assert len(written) == expected, lora


def test_nothing_is_done_for_adapters_while_none_is_in_use(monkeypatch):
    eng = adapted_engine()
    seen = []
    for part in ("encode_history", "prefill", "generate_patch", "advance"):
        original = getattr(eng.model, part)

        def watched(*arguments, adapted, original=original, **options):
            seen.append(adapted)
            return original(*arguments, adapted=adapted, **options)

        monkeypatch.setattr(eng.model, part, watched)
    eng.add(brief("a"))
    run(eng)
    assert seen and not any(seen)
    eng.add(brief("b", "attention"))
    run(eng)
    assert any(seen)


def test_an_adapter_of_the_language_models_leaves_the_diffusion_as_it_is(monkeypatch):
    eng = adapted_engine()
    generate, seen = eng.model.generate_patch, []
    monkeypatch.setattr(
        eng.model, "generate_patch", lambda *a, adapted: (seen.append(adapted), generate(*a, adapted=adapted))[1]
    )
    eng.add(brief("a", "attention"))
    run(eng)
    assert seen and not any(seen)
    eng.add(brief("b", "layers"))
    run(eng)
    assert any(seen)


def test_an_adapter_in_use_is_not_removed():
    eng = adapted_engine()
    eng.add(brief("a", "layers"))
    eng.add(brief("b", "layers"))
    with pytest.raises(FailedPrecondition, match="2 requests use the LoRA adapter 'layers'"):
        eng.remove_lora("layers")
    eng.cancel("a")
    run(eng)
    eng.remove_lora("layers")
    assert [lora.id for lora in eng.loras()] == ["attention", "layers 2", "attention 2"]
    with pytest.raises(FailedPrecondition, match="not registered"):
        eng.add(brief("c", "layers"))
    with pytest.raises(FailedPrecondition, match="not registered"):
        eng.remove_lora("layers")
    assert at_rest(eng)


def test_an_id_in_use_is_refused():
    with pytest.raises(InvalidRequest, match="'layers' is in use"):
        register(adapted_engine(), "layers", ATTENTION / "adapter")


def test_an_engine_without_memory_for_adapters_says_so():
    with pytest.raises(FailedPrecondition, match=r"engine\.max_loras"):
        register(engine(), "x", LAYERS / "adapter")


def test_registrations_beside_streams_leave_nothing_behind(alone):
    eng = adapted_engine(slots=16, places=2)
    for request in requests():
        eng.add(request)
    known = info("x", ATTENTION / "adapter")
    adapter, outcomes, removed = eng.read_lora(known), defaultdict(Outcome), []
    for cycle in range(200):
        matrices = {name: replace(update, down=update.down.clone()) for name, update in adapter.updates.items()}
        removed.append(weakref.ref(next(iter(matrices.values())).down))
        eng.add_lora(replace(known, id=f"cycle {cycle}"), replace(adapter, updates=matrices))
        if cycle % 50 == 0:
            eng.add(brief(f"brief {cycle}", f"cycle {cycle}"))
            run(eng, outcomes=outcomes)
        eng.remove_lora(f"cycle {cycle}")
        del matrices
    assert all(outcomes.pop(f"brief {cycle}").finished for cycle in range(0, 200, 50))
    assert_same(outcomes, alone)
    gc.collect()
    assert len(eng.loras()) == 4 and not any(reference() is not None for reference in removed) and at_rest(eng)


def copied(tmp_path: Path, source: Path, change) -> Path:
    """A copy of an adapter whose tensors were changed."""
    folder = Path(shutil.copytree(source / "adapter", tmp_path / "adapter"))
    tensors = load_file(folder / lora_files.WEIGHTS)
    change(tensors)
    (folder / lora_files.WEIGHTS).unlink()  # mapped memory of the old file stays valid
    save_file(tensors, folder / lora_files.WEIGHTS)
    return folder


def test_maps_without_memory_are_refused_by_name():
    eng = adapted_engine()
    with pytest.raises(InvalidRequest, match=r"estimator\.in_proj\.lora_A.*estimator\.time_mlp\.linear_1\.lora_A"):
        register(eng, "x", MERGED / "adapter")
    few = engine(adapters=AdapterOptions(1, 16, frozenset({"attention"})))
    with pytest.raises(InvalidRequest, match=r"50 tensors .*engine\.lora_targets.*mlp\.down_proj\.lora_A"):
        register(few, "x", LAYERS / "adapter")
    assert not few.loras()


def test_a_rank_above_the_limit_is_refused():
    few = engine(adapters=AdapterOptions(1, 8, KINDS))
    with pytest.raises(InvalidRequest, match=r"rank r is 12 and at most 8 .*engine\.max_lora_rank"):
        register(few, "x", ATTENTION / "adapter")


def test_an_adapter_of_another_shape_is_refused_whole(tmp_path):
    eng = engine(adapters=AdapterOptions(1, 16, KINDS))
    name = "residual_lm.layers.0.self_attn.v_proj.lora_B"
    folder = copied(tmp_path, ATTENTION, lambda tensors: tensors.update({name: torch.zeros(3, 12)}))
    with pytest.raises(InvalidRequest, match=rf"{name} is \[3, 12\] instead of"):
        register(eng, "x", folder)
    assert not eng.loras()


def test_a_lower_rank_after_a_higher_one_leaves_nothing_of_it(tmp_path):
    """In one place, one after another: the second adapter gives what it gives alone."""
    request = next(r for r in requests() if r.lora == "layers")
    outcomes = []
    for first in (False, True):
        eng = adapted_engine(places=1)
        if first:
            eng.add(brief("first", "attention"))
            run(eng)
        eng.add(request)
        outcomes.append(run(eng)[request.id])
    assert np.array_equal(latents(outcomes[0]), latents(outcomes[1]))
