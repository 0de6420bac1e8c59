"""LoRA adapters by request: several and none in one batch, more of them than banks, and their end."""

from __future__ import annotations

import gc
import shutil
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import goldens
from support.engines.tiny import (
    Lagging,
    Outcome,
    at_rest,
    collect,
    engine,
    finished,
    latents,
    mixed_requests,
    run,
    watch_launches,
    with_adapter,
)
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_grpc import lora_files
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, QueueFull, Reason, VoxCPMError
from voxcpm_grpc.kernels.launch.host_copy import HostCopy
from voxcpm_grpc.models.base import AdapterOptions
from voxcpm_grpc.models.voxcpm.model import VoxCPM
from voxcpm_grpc.request import Adapter, Priority, Request, Sampling

pytestmark = pytest.mark.thorough

LAYERS, ATTENTION, MERGED = (goldens.GOLDENS / name for name in ("lora_layers", "lora_attention", "lora"))
KINDS = frozenset({"attention", "mlp", "projections"})
TOLERANCE = 1e-5


def adapter(name: str, directory: Path) -> Adapter:
    return lora_files.describe(name, str(directory), directory)


def copied(source: Path, target: Path) -> Path:
    """A copy of an adapter with the same weights, whose content is another one because of its configuration."""
    folder = Path(shutil.copytree(source / "adapter", target))
    config = folder / lora_files.CONFIG
    config.write_text(f"{config.read_text()} \n")
    return folder


COPIES = tempfile.TemporaryDirectory()
LORAS = {
    "layers": adapter("layers", LAYERS / "adapter"),
    "attention": adapter("attention", ATTENTION / "adapter"),
    "layers 2": adapter("layers 2", copied(LAYERS, Path(COPIES.name, "layers"))),
    "attention 2": adapter("attention 2", copied(ATTENTION, Path(COPIES.name, "attention"))),
}


def adapted_engine(
    *, banks: int = 4, rank: int = 16, targets: frozenset[str] = KINDS, loras: Iterable[str] = LORAS, **options
) -> Engine:
    """An engine that has read some adapters: by default those of the goldens, and two copies of them."""
    eng = engine(adapters=AdapterOptions(banks, rank, targets), **options)
    for name in loras:
        eng.adapters.read_now(LORAS[name])
    return eng


@pytest.mark.parametrize("name", ["zero_shot", "prompt", "reference", "hifi"])
@pytest.mark.parametrize("folder", [LAYERS, ATTENTION], ids=lambda folder: folder.name)
def test_speech_with_an_adapter_equals_that_of_the_official_package(folder, name):
    golden = goldens.load(name, folder)
    eng = engine(noise=torch.from_numpy(golden.noise), adapters=AdapterOptions(2, 16, KINDS))
    eng.adapters.read_now(adapter("x", folder / "adapter"))
    eng.add(with_adapter(golden.request, adapter("x", folder / "adapter")))
    outcome = run(eng)[name]
    np.testing.assert_allclose(latents(outcome), golden.latents, atol=1e-4, rtol=0)
    golden.same_audio(outcome.waveform, atol=1e-4)
    assert at_rest(eng)


def requests() -> list[Request]:
    """Requests of every mode with four adapters and none, two of each with the same prompt."""
    ids = ("", *LORAS)
    return [
        with_adapter(replace(request, id=f"{request.id} {id}"), LORAS.get(id))
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


@pytest.mark.parametrize("banks", [1, 2, 4])
def test_adapters_and_none_in_one_batch_give_what_each_gives_alone(alone, banks):
    eng = adapted_engine(slots=16, banks=banks)
    for request in requests():
        eng.add(request)
    assert_same(run(eng), alone)
    assert at_rest(eng)


def test_a_stream_without_an_adapter_takes_over_the_slot_of_one_with_it():
    def plain() -> Request:
        return Request(id="plain", text="a text of its own", sampling=Sampling(seed=1, max_steps=3))

    def adapted(id: str) -> Request:
        request = replace(plain(), id=id, sampling=Sampling(seed=2, max_steps=12))
        return with_adapter(request, LORAS["layers"])

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
    eng = adapted_engine(slots=2, banks=1)
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for request in requests():
        eng.add(request, limit=3)
    for _ in range(1000):
        run(eng, outcomes=outcomes)
        waiting = [id for id in alone if outcomes[id].finished is None]
        if not waiting:
            break
        for id in waiting:
            eng.allow(id, len(outcomes[id].audio) + 2)
    assert_same(outcomes, alone)
    assert eng.stats().swaps and at_rest(eng)


def test_the_adapters_change_the_speech(alone):
    texts = defaultdict(list)
    for id, outcome in alone.items():
        texts[id.split(" ")[0]].append(outcome.waveform)
    for a, b in texts.values():
        size = min(len(a), len(b))
        assert np.abs(a[:size] - b[:size]).max() > 1e-3


def voiced(id: str, lora: Adapter | None) -> Request:
    """A request with a long common beginning."""
    request = next(r for r in mixed_requests() if r.conditioning.reference is not None)
    return with_adapter(replace(request, id=id), lora)


def test_prompts_are_shared_with_the_same_adapter_only_under_any_name():
    eng = adapted_engine()
    cached, same = {}, replace(LORAS["layers"], name="another", source="elsewhere")
    loras = (LORAS["layers"], LORAS["attention"], None, LORAS["layers"], same, LORAS["layers 2"], None)
    for id, lora in zip("abcdefg", loras, strict=True):
        eng.add(voiced(id, lora))
        admitted = run(eng)[id].admitted
        assert admitted
        cached[id] = admitted.cached_tokens
    assert [id for id, tokens in cached.items() if tokens] == ["d", "e", "g"]


def brief(id: str, lora: str = "", steps: int = 3, **options) -> Request:
    sampling = Sampling(min_steps=steps, max_steps=steps, inference_timesteps=4)
    text = "Hello." + " And more." * (steps // 10)
    return with_adapter(Request(id=id, text=text, sampling=sampling, **options), LORAS.get(lora))


def order_of_admission(eng: Engine, *added: Request) -> list[str]:
    rounds = watch_launches(eng)
    for request in added:
        eng.add(request)
    run(eng)
    return [sequence.id for work in rounds for sequence in work.opened]


def test_requests_wait_for_banks_in_order_and_others_pass_them():
    eng = adapted_engine(banks=1, slots=4)
    order = order_of_admission(
        eng, brief("a", "layers"), brief("b", "attention"), brief("c", "layers"), brief("d"), brief("e")
    )
    assert order == ["a", "d", "e", "b", "c"]


def test_paused_streams_give_banks_up():
    eng = adapted_engine(banks=1, slots=4)
    eng.add(brief("stalled", "layers", steps=9), limit=2)
    assert not run(eng)["stalled"].finished
    eng.add(brief("other", "attention"))
    assert run(eng)["other"].finished
    eng.allow("stalled", 11)
    assert run(eng, outcomes=defaultdict(Outcome, stalled=Outcome(audio=[np.zeros(0)] * 2)))["stalled"].finished


def writes(eng: Engine) -> list[int]:
    """The banks that are written from now on."""
    written: list[int] = []
    write = eng.model.write_adapter
    eng.model.write_adapter = lambda bank, adapter: (written.append(bank), write(bank, adapter))[0]
    return written


def test_an_adapter_stays_in_its_bank_until_the_least_recent_one_must_go():
    eng = adapted_engine(banks=2)
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
    for part in ("encode", "prefill", "generate", "advance"):
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
    generate, seen = eng.model.generate, []
    monkeypatch.setattr(
        eng.model, "generate", lambda *a, adapted: (seen.append(adapted), generate(*a, adapted=adapted))[1]
    )
    eng.add(brief("a", "attention"))
    run(eng)
    assert seen and not any(seen)
    eng.add(brief("b", "layers"))
    run(eng)
    assert any(seen)


@pytest.mark.parametrize("copies", [HostCopy, Lagging], ids=["audio at once", "audio later"])
def test_an_interactive_request_takes_the_bank_of_batch_streams(monkeypatch, copies):
    """Also if slots are free. The batch streams go on later as if nothing had happened."""
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", copies)
    batch = [brief(id, "layers", 30, priority=Priority.BATCH) for id in ("batch 1", "batch 2")]
    expected = {}
    for request in batch:
        alone = adapted_engine()
        alone.add(request)
        expected |= run(alone)
    eng, outcomes = adapted_engine(banks=1, slots=6), defaultdict(Outcome)
    for request in batch:
        eng.add(request)
    for _ in range(6):
        collect(outcomes, eng.step())
    eng.add(brief("batch 3", "attention", priority=Priority.BATCH))  # it waits
    eng.add(brief("interactive", "attention"))
    for _ in range(10):
        collect(outcomes, eng.step())
    assert outcomes["interactive"].finished and not outcomes["batch 3"].admitted
    assert not any(outcomes[request.id].finished for request in batch)
    run(eng, outcomes=outcomes)
    assert finished(outcomes["batch 3"]) and eng.stats().swaps == 2 and at_rest(eng)
    for id, one in expected.items():
        np.testing.assert_allclose(outcomes[id].waveform, one.waveform, atol=TOLERANCE)


def test_a_batch_stream_without_a_bank_holds_up_no_interactive_request():
    eng, outcomes = adapted_engine(banks=2, slots=6), defaultdict(Outcome)
    for id, lora in (("batch 1", "layers"), ("batch 2", "attention")):
        eng.add(brief(id, lora, 30, priority=Priority.BATCH))
    for _ in range(4):
        collect(outcomes, eng.step())
    for id, lora in (("one", "layers 2"), ("two", "attention 2")):  # the second one while a batch stream waits
        eng.add(brief(id, lora, 12))
        for _ in range(4):
            collect(outcomes, eng.step())
    assert outcomes["one"].audio and outcomes["two"].audio
    assert all(finished(outcome) for outcome in run(eng, outcomes=outcomes).values()) and at_rest(eng)


def test_an_interactive_stream_keeps_its_bank():
    eng, outcomes = adapted_engine(banks=1, slots=4), defaultdict(Outcome)
    eng.add(brief("first", "layers", 9))
    collect(outcomes, eng.step())
    eng.add(brief("second", "attention"))
    eng.add(brief("batch", "attention 2", priority=Priority.BATCH))
    while not outcomes["first"].finished:
        assert not outcomes["second"].admitted
        collect(outcomes, eng.step())
    assert all(finished(outcome) for outcome in run(eng, outcomes=outcomes).values()) and not eng.stats().swaps


# ---- adapters that requests name before they are read


def until_read(eng: Engine) -> None:
    """Wait until the thread has read an adapter, or could not."""
    wait_until(lambda: eng.busy)


@pytest.fixture
def may_read(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until the event is set, engines that are made from now on do not read an adapter to its end."""
    read, event = VoxCPM.read_adapter, threading.Event()

    def slow(model: VoxCPM, directory: Path) -> object:
        assert event.wait(HANG_SECONDS)
        return read(model, directory)

    monkeypatch.setattr(VoxCPM, "read_adapter", slow)
    return event


def test_a_request_waits_until_its_adapter_is_read_and_others_pass_it(alone, may_read):
    mixed = requests()
    named = next(request for request in mixed if request.conditioning.adapter == LORAS["layers"])
    others = [request for request in mixed if request.conditioning.adapter is None]
    may_read.set()
    eng = adapted_engine(loras=["attention"])
    may_read.clear()
    eng.add(named)
    for request in (*others, brief("brief", "attention")):
        eng.add(request)
    outcomes = run(eng)
    assert not outcomes[named.id].admitted and finished(outcomes.pop("brief"))
    assert outcomes.keys() - {named.id} == {request.id for request in others} and eng.stats().waiting == 1
    may_read.set()
    until_read(eng)
    run(eng, outcomes=outcomes)
    assert_same(outcomes, {id: alone[id] for id in outcomes})
    assert at_rest(eng) and set(eng.adapters.fingerprints) == {LORAS["attention"].fingerprint}


def test_a_request_whose_adapter_cannot_be_read_ends_alone(tmp_path, caplog):
    changed, missing = (adapter(name, copied(LAYERS, tmp_path / name)) for name in ("changed", "missing"))
    (tmp_path / "changed" / lora_files.CONFIG).write_text("{}")
    shutil.rmtree(tmp_path / "missing")
    eng, outcomes = adapted_engine(loras=[]), defaultdict(Outcome)
    for lora in (changed, missing):
        eng.add(with_adapter(brief(lora.name), lora))
    eng.add(brief("plain", steps=30))
    while not (outcomes["changed"].error and outcomes["missing"].error):
        until_read(eng)
        collect(outcomes, eng.step())
    for name in ("changed", "missing"):
        error = outcomes[name].error
        assert isinstance(error, FailedPrecondition) and error.reason is Reason.LORA_LOST
    run(eng, outcomes=outcomes)
    assert finished(outcomes["plain"]) and at_rest(eng) and eng.stats().failed == 2
    assert not eng.adapters.fingerprints and "register it again" in caplog.text


def preloaded(eng: Engine, id: str, lora: Adapter) -> VoxCPMError | None:
    """Preload an adapter; returns the error."""
    eng.adapters.preload(id, lora)
    outcomes: defaultdict[str, Outcome] = defaultdict(Outcome)
    while not (outcomes[id].pieces or outcomes[id].error):
        until_read(eng)
        collect(outcomes, eng.step())
    return outcomes[id].error


def test_a_preload_ends_when_the_adapter_is_read(tmp_path):
    eng = adapted_engine(loras=[])
    assert preloaded(eng, "1", LORAS["layers"]) is None
    assert eng.adapters.fingerprints == ()  # nobody keeps it
    eng.adapters.keep([LORAS["layers"]])
    until_read(eng)
    assert preloaded(eng, "2", LORAS["layers"]) is None
    assert eng.adapters.fingerprints == (LORAS["layers"].fingerprint,)
    missing = replace(LORAS["attention"], directory=str(tmp_path))
    error = preloaded(eng, "3", missing)
    assert isinstance(error, InvalidRequest) and "'attention' cannot be read" in error.message
    few = engine(adapters=AdapterOptions(1, 8, KINDS))
    error = preloaded(few, "4", LORAS["attention"])
    assert isinstance(error, InvalidRequest) and error.message.startswith("the LoRA adapter 'attention': its rank r")


def test_what_is_cancelled_while_it_is_read_stays_nowhere(may_read):
    eng = engine(adapters=AdapterOptions(1, 16, KINDS))
    eng.adapters.preload("preload", LORAS["layers"])
    eng.add(brief("request", "attention"))
    eng.cancel("preload")
    eng.cancel("request")
    may_read.set()
    eng.add(brief("last", "layers 2"))
    outcomes = defaultdict(Outcome)
    while not outcomes["last"].finished:
        until_read(eng)
        collect(outcomes, eng.step())
    assert list(outcomes) == ["last"] and not eng.adapters.fingerprints and at_rest(eng)


def test_an_adapter_that_nobody_keeps_speaks_on_for_its_requests():
    eng = adapted_engine()
    lora = LORAS["layers"]
    eng.add(brief("a", "layers"))
    eng.add(brief("b", "layers"))
    eng.adapters.keep([])
    assert eng.adapters.fingerprints == (lora.fingerprint,)
    eng.cancel("a")
    assert eng.adapters.fingerprints == (lora.fingerprint,)
    assert finished(run(eng)["b"])
    assert not eng.adapters.fingerprints
    eng.add(brief("c", "layers"))  # a turn that has chosen it may go on
    until_read(eng)
    assert finished(run(eng)["c"]) and not eng.adapters.fingerprints and at_rest(eng)


def test_adapters_of_equal_content_are_one():
    eng = adapted_engine(banks=1, loras=["layers"])
    written = writes(eng)
    eng.add(brief("a", "layers"))
    eng.add(with_adapter(brief("b"), replace(LORAS["layers"], name="another", directory="/nowhere")))
    outcomes = run(eng)
    assert np.array_equal(outcomes["a"].waveform, outcomes["b"].waveform) and len(written) == 1


def test_an_engine_without_memory_for_adapters_says_so():
    eng = engine()
    for use in (
        lambda: eng.add(brief("a", "layers")),
        lambda: eng.adapters.preload("b", LORAS["layers"]),
        lambda: eng.adapters.read_now(LORAS["layers"]),
    ):
        with pytest.raises(FailedPrecondition, match=r"engine\.max_loras"):
            use()
    assert not eng.busy and at_rest(eng)


def test_a_request_that_is_refused_leaves_no_adapter_in_use():
    eng = engine(adapters=AdapterOptions(1, 16, KINDS), slots=1, max_queue=1)
    for id in ("running", "waiting"):
        eng.add(brief(id))
        eng.step()
    with pytest.raises(QueueFull):
        eng.add(brief("refused", "layers"))
    while eng.busy:
        eng.step()
    assert not eng.adapters.fingerprints and at_rest(eng)


def test_registrations_beside_streams_leave_nothing_behind(alone, tmp_path):
    eng, outcomes, removed = adapted_engine(slots=16, banks=2), defaultdict(Outcome), []
    eng.adapters.keep(LORAS.values())
    for request in requests():
        eng.add(request)
    folder = copied(ATTENTION, tmp_path / "adapter")
    for cycle in range(200):
        (folder / lora_files.CONFIG).write_text(
            (ATTENTION / "adapter" / lora_files.CONFIG).read_text() + " " * (cycle + 1)
        )
        lora = adapter("cycle", folder)
        eng.adapters.keep([*LORAS.values(), lora])
        eng.adapters.preload(f"cycle {cycle}", lora)
        while not outcomes[f"cycle {cycle}"].pieces:
            until_read(eng)
            collect(outcomes, eng.step())
        held = eng.adapters.want("test", lora)
        removed.append(weakref.ref(next(iter(held.weights.updates.values())).down))
        if cycle % 50 == 0:
            eng.add(with_adapter(brief(f"brief {cycle}"), lora))
            run(eng, outcomes=outcomes)
        eng.adapters.done("test", held)
        eng.adapters.keep(LORAS.values())
        del held, outcomes[f"cycle {cycle}"]
    run(eng, outcomes=outcomes)
    assert all(outcomes.pop(f"brief {cycle}").finished for cycle in range(0, 200, 50))
    assert_same(outcomes, alone)
    gc.collect()
    assert set(eng.adapters.fingerprints) == {lora.fingerprint for lora in LORAS.values()}
    assert not any(reference() is not None for reference in removed) and at_rest(eng)


# ---- adapters that do not fit


def changed(tmp_path: Path, source: Path, change) -> Path:
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
        eng.adapters.read_now(adapter("x", MERGED / "adapter"))
    few = engine(adapters=AdapterOptions(1, 16, frozenset({"attention"})))
    with pytest.raises(InvalidRequest, match=r"50 tensors .*engine\.lora_targets.*mlp\.down_proj\.lora_A"):
        few.adapters.read_now(LORAS["layers"])
    assert not few.adapters.fingerprints


def test_a_rank_above_the_limit_is_refused():
    few = engine(adapters=AdapterOptions(1, 8, KINDS))
    with pytest.raises(InvalidRequest, match=r"rank r is 12 and at most 8 .*engine\.max_lora_rank"):
        few.adapters.read_now(LORAS["attention"])


def test_an_adapter_of_another_shape_is_refused_whole(tmp_path):
    eng = engine(adapters=AdapterOptions(1, 16, KINDS))
    name = "residual_lm.layers.0.self_attn.v_proj.lora_B"
    folder = changed(tmp_path, ATTENTION, lambda tensors: tensors.update({name: torch.zeros(3, 12)}))
    with pytest.raises(InvalidRequest, match=rf"{name} is \[3, 12\] instead of"):
        eng.adapters.read_now(adapter("x", folder))
    assert not eng.adapters.fingerprints


def test_a_lower_rank_after_a_higher_one_leaves_nothing_of_it(tmp_path):
    """In one bank, one after another: the second adapter gives what it gives alone."""
    request = next(r for r in requests() if r.conditioning.adapter == LORAS["layers"])
    outcomes = []
    for first in (False, True):
        eng = adapted_engine(banks=1)
        if first:
            eng.add(brief("first", "attention"))
            run(eng)
        eng.add(request)
        outcomes.append(run(eng)[request.id])
    assert np.array_equal(latents(outcomes[0]), latents(outcomes[1]))
