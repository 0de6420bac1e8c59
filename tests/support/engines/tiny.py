"""Engines for tests: the tiny model, requests of every conditioning mode, and a loop that runs them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from support.engines.checkpoints import TINY
from support.engines.voice_parts import latents_of, voice_part

from voxcpm_grpc import lora_files
from voxcpm_grpc.engine.engine import CodecChunk, Engine
from voxcpm_grpc.engine.scheduling.round import Round
from voxcpm_grpc.errors import VoxCPMError
from voxcpm_grpc.events import Admitted, AudioChunk, Finished
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.request import Adapter, Conditioning, Request, Sampling
from voxcpm_grpc.settings.engine import EngineSettings

CPU = torch.device("cpu")


def engine(
    *, slots=8, noise=None, checkpoint=TINY, adapters=None, merge_lora=None, fused=None, quantization="none", **settings
) -> Engine:
    """An engine on the CPU. adapters: AdapterOptions, the memory for LoRA adapters. Others are those of LoadOptions."""
    options = LoadOptions(
        device=CPU,
        dtype=torch.float32,
        max_slots=slots,
        recorded_noise=noise,
        adapters=adapters,
        merge_lora=merge_lora,
        fused=fused,
        quantization=quantization,
    )
    return Engine(load_model(checkpoint, options), EngineSettings(**settings), CPU)


@dataclass
class Outcome:
    """The events of one request."""

    audio: list[np.ndarray] = field(default_factory=list)
    admitted: Admitted | None = None
    finished: Finished | None = None
    error: VoxCPMError | None = None
    pieces: list[CodecChunk] = field(default_factory=list)

    @property
    def waveform(self) -> np.ndarray:
        return np.concatenate(self.audio)


def run(eng: Engine, each=lambda: None, limit=5_000, outcomes=None) -> dict[str, Outcome]:
    """Step until the engine is idle, and return the outcomes by request.

    each: called before every step. limit: most steps. outcomes: those of earlier steps, which are continued.
    """
    outcomes = defaultdict(Outcome) if outcomes is None else outcomes
    while eng.busy:
        limit -= 1
        assert limit, "the engine makes no progress"
        each()
        collect(outcomes, eng.step())
    return outcomes


def run_arriving(eng: Engine, requests: list[Request], every: int = 2) -> dict[str, Outcome]:
    """Run requests of which one arrives every so many steps."""
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for request in requests:
        eng.add(request)
        for _ in range(every):
            collect(outcomes, eng.step())
    return run(eng, outcomes=outcomes)


def watch_launches(eng: Engine) -> list[Round]:
    """The rounds that are launched from now on. At each launch, all audio before the last round must be delivered."""
    rounds: list[Round] = []
    launch = eng.runner.launch

    def watched(work):
        assert all(sequence.delivered >= sequence.launched - 2 for sequence in work.steps)
        rounds.append(work)
        return launch(work)

    eng.runner.launch = watched
    return rounds


def watch_joins(eng: Engine) -> list[Round]:
    """The prompts that join the language models of a round from now on, round by round."""
    rounds: list[Round] = []
    advance = eng.runner.advance

    def watched(steps, joined):
        if joined:
            rounds.append(joined)
        return advance(steps, joined)

    eng.runner.advance = watched
    return rounds


class Lagging:
    """A HostCopy that is never ready before `wait`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._array = tensor.numpy()
        self._arrived = False

    def ready(self) -> bool:
        return self._arrived

    def wait(self) -> np.ndarray:
        self._arrived = True
        return self._array


def collect(outcomes, results):
    for name, event in results:
        outcome = outcomes[name]
        assert outcome.finished is None and outcome.error is None, "an event follows the end of the request"
        match event:
            case Admitted():
                assert outcome.admitted is None and not outcome.audio
                outcome.admitted = event
            case AudioChunk():
                assert event.index == len(outcome.audio)
                outcome.audio.append(np.array(event.samples))
            case Finished():
                assert event.steps == len(outcome.audio)
                outcome.finished = event
            case CodecChunk():
                outcome.pieces.append(event)
            case VoxCPMError():
                outcome.error = event


def finished(outcome: Outcome) -> Finished:
    """The end of a request that has finished without an error."""
    assert outcome.error is None and outcome.finished is not None
    return outcome.finished


def latents(outcome: Outcome) -> np.ndarray:
    """The latents of a finished request that keeps them."""
    return latents_of(finished(outcome).speech)


def at_rest(eng: Engine) -> bool:
    stats = eng.stats()
    return (stats.slots_used, stats.pages_used, stats.running, stats.waiting, stats.swapped) == (0, 0, 0, 0, 0)


def voice(seed: int, patches: int, frames: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((patches, frames, 8)).astype(np.float32)


def mixed_requests(count: int = 8, *, frames: int = 4, references: bool = True) -> list[Request]:
    """Requests with different modes, texts, lengths, guidance and timesteps; two share a reference.

    frames: of a patch. references: False for a model that takes none; then some requests share a prompt.
    """
    texts = [
        "Hello there.",
        "(an old sailor)It was a dark night",
        "你好世界, how are you?",
        "The quick brown fox jumps over the lazy dog, again and again.",
    ]
    reference = voice_part(voice(1, 34, frames)) if references else None
    modes = [
        Conditioning(),
        Conditioning(reference=reference),
        Conditioning(prompt=voice_part(voice(2, 7, frames), "As I said, ")),
        Conditioning(reference=reference, prompt=voice_part(voice(3, 2, frames), "Once more: ")),
    ]
    return [
        Request(
            id=f"r{index}",
            text=texts[index % 4],
            sampling=Sampling(
                seed=100 + index,
                cfg_value=(2.0, 1.0, 3.0)[index % 3],
                inference_timesteps=(10, 4)[index % 2],
                min_steps=(2, 10)[index % 2],
                max_steps=11 + 3 * index,
            ),
            conditioning=modes[(index + index // 4) % 4],
            segment=index,
            keep_speech=True,
        )
        for index in range(count)
    ]


def adapted_requests(count: int, adapters: Mapping[str, Path]) -> list[Request]:
    """Mixed requests that take turns with no adapter and with those of an engine's settings, by name."""
    loras = (None, *(lora_files.describe(name, "", path) for name, path in adapters.items()))
    return [with_adapter(request, loras[index % len(loras)]) for index, request in enumerate(mixed_requests(count))]


def with_adapter(request: Request, adapter: Adapter | None) -> Request:
    return replace(request, conditioning=replace(request.conditioning, adapter=adapter))
