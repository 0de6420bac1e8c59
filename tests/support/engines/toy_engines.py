"""Engines of the toy family, and requests whose results are known."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from support.engines import toy, toy_family
from support.engines.tiny import Outcome, finished

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.events import FinishReason
from voxcpm_grpc.models import families
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.request import Conditioning, Request, Sampling, VoicePart
from voxcpm_grpc.settings.engine import EngineSettings

TEXT = "the quick brown fox jumps over a lazy dog and runs through wide green fields until night falls"


def toy_engine(
    *, slots: int = 8, device: str = "cpu", graphs: bool = False, positions: int = 512, **settings
) -> Engine:
    known = mock.patch.object(families, "FAMILIES", (*families.FAMILIES, toy.TOY))
    with known, tempfile.TemporaryDirectory() as folder:
        made = toy.checkpoint(Path(folder), positions)
        model = load_model(made, LoadOptions(device=torch.device(device), dtype=torch.float32, max_slots=slots))
    return Engine(model, EngineSettings(**settings), torch.device(device), graphs=graphs)


def part(steps: int, seed: int, text: str = "", *, speaker: int | None = None) -> VoicePart:
    codes = np.random.default_rng(seed).integers(0, 1021, (steps, 4)).astype(np.int16)
    content = {"codes": codes, "speaker": np.array([seed if speaker is None else speaker], np.int32)}
    return VoicePart(content=content, tracks=("codes",), text=text)


def asks(count: int = 8, *, first: int = 0, least: int = 0) -> list[Request]:
    """Requests with different voices, texts, lengths and rounds, which keep their speech of `least` steps or more."""
    voices = (
        Conditioning(),
        Conditioning(prompt=part(7, 3, "a recording with words")),
        Conditioning(reference=VoicePart(content={"speaker": np.array([700], np.int32)}, tracks=())),
        Conditioning(prompt=part(21, 5, "more words"), reference=part(2, 900)),
    )
    return [
        Request(
            id=f"r{number}",
            text=" ".join(TEXT.split()[number % 5 : number % 5 + 3 + 2 * (number % 6)]),
            sampling=Sampling(seed=number, inference_timesteps=1 + number % 2, min_steps=least + 3 * (number % 4)),
            conditioning=voices[number % 4],
            turn=number % 3,
            segment=number % 2,
            keep_speech=True,
        )
        for number in range(first, first + count)
    ]


def check(request: Request, outcome: Outcome, eng: Engine, *, cut: bool = False) -> None:
    """Everything that a request gives is what plain Python gives. With `cut`, text may have followed the end."""
    wanted, end = toy_family.expected(request, eng.info.completed), finished(outcome)
    audio = outcome.waveform if outcome.audio else np.zeros(0, np.float32)
    assert np.array_equal(audio, wanted.audio), request.id
    assert end.steps == len(wanted.codes)
    assert wanted.unread.startswith(end.unread) if cut else wanted.unread == end.unread
    assert end.reason is (FinishReason.STOP if wanted.stopped else FinishReason.MAX_STEPS)
    if request.keep_speech:
        assert end.speech is not None
        assert end.speech.content["codes"].dtype == np.int16
        assert np.array_equal(end.speech.content["codes"], wanted.codes)


def check_all(requests: Iterable[Request], outcomes: dict[str, Outcome], eng: Engine) -> None:
    for request in requests:
        check(replace(request, open=False), outcomes[request.id], eng)
