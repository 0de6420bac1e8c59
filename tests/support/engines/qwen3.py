"""Engines of the tiny Qwen3-TTS checkpoints, their requests, and the official results."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from support.engines.qwen3_codec import checkpoint
from support.engines.tiny import Outcome, finished

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.qwen3_tts.config.abilities import LANGUAGES
from voxcpm_grpc.models.qwen3_tts.model import Qwen3TTS
from voxcpm_grpc.request import Conditioning, Request, Sampling, VoicePart
from voxcpm_grpc.settings.engine import EngineSettings

GOLDENS = Path(__file__).parents[2] / "goldens" / "qwen3_tts"
MANIFEST: dict[str, Any] = json.loads((GOLDENS / "cases.json").read_text("utf-8"))
CASES = [(variant, name) for variant, cases in MANIFEST["cases"].items() for name in cases]
GREEDY = Sampling(temperature=0, code_temperature=0, max_steps=40)
HIDDEN, CODES = 64, 512  # of all tiny checkpoints
TAGS = {name: tag for tag, name in LANGUAGES.items()}
CPU = torch.device("cpu")
TEXT = "The quick brown fox is over the lazy dog, and 你好世界 to all."


def load(variant: str, slots: int = 8, device: torch.device = CPU, **options: Any) -> Qwen3TTS:
    """The model of a tiny checkpoint."""
    given = {"dtype": torch.float32, **options}
    model = load_model(checkpoint(variant), LoadOptions(device=device, max_slots=slots, **given))
    assert isinstance(model, Qwen3TTS)
    return model


@functools.cache
def shared(variant: str) -> Qwen3TTS:
    """A model that no test changes. Its streams live in the engine."""
    return load(variant)


def engine(variant: str, *, slots: int = 8, **settings: Any) -> Engine:
    model = shared(variant) if slots == 8 else load(variant, slots)
    return Engine(model, EngineSettings(**settings), CPU)


@functools.cache
def golden(variant: str) -> dict[str, np.ndarray]:
    return load_file(GOLDENS / f"{variant}.safetensors")


def cloned(frames: int, seed: int = 11, text: str = MANIFEST["heard"]) -> Conditioning:
    """The voice that make_qwen3_goldens.py makes; without frames it has a speaker vector only."""
    rng = np.random.Generator(np.random.Philox(seed))
    speaker = (rng.integers(-1000, 1000, HIDDEN) / 1000).astype(np.float32)
    codes = rng.integers(0, CODES, (frames, 16)).astype(np.int16)
    if not frames:
        return Conditioning(reference=VoicePart(content={"speaker": speaker}, tracks=()))
    return Conditioning(prompt=VoicePart(content={"codes": codes, "speaker": speaker}, tracks=("codes",), text=text))


def asked(variant: str, name: str, **changes: Any) -> tuple[Request, bool]:
    """The request of a golden case, and whether its text runs beside the speech."""
    case = MANIFEST["cases"][variant][name]
    voice = cloned(case["frames"]) if "frames" in case else Conditioning(speaker=case.get("speaker", ""))
    language = case["language"].lower()
    fields = {
        "id": name,
        "text": case["text"],
        "style": case.get("instruct", ""),
        "language": "" if language == "auto" else TAGS[language],
        "conditioning": voice,
        "sampling": GREEDY,
        "keep_speech": True,
        **changes,
    }
    return Request(**fields), not case.get("non_streaming_mode", "frames" not in case)


def codes_of(outcome: Outcome) -> np.ndarray:
    """The codes of a finished request that keeps them."""
    speech = finished(outcome).speech
    assert speech is not None
    return speech.content["codes"]


def voices(variant: str) -> list[Conditioning]:
    if variant == "custom17":
        return [Conditioning(), Conditioning(speaker="Eric"), Conditioning(speaker="vivian")]
    if variant == "design":
        return [Conditioning()] * 3
    hifi = Conditioning(prompt=cloned(30, 3).prompt, reference=cloned(0, 4).reference)
    return [cloned(0), cloned(25), hifi]


def asks(variant: str, count: int = 6, steps: int = 7) -> list[Request]:
    """Requests with different voices, texts, options and layouts."""
    chosen = voices(variant)
    return [
        Request(
            id=f"r{number}",
            text=TEXT[3 * number : 25 + 4 * number],
            style="" if variant == "base17" or number % 2 else "Very calm.",
            language=("", "en", "zh")[number % 3],
            sampling=Sampling(
                seed=number,
                temperature=(0.9, 0.0, 1.3)[number % 3],
                top_p=(1.0, 0.8)[number % 2],
                min_steps=steps,
                max_steps=steps,
            ),
            conditioning=chosen[number % 3],
            turn=number % 2,
            segment=number % 3,
            keep_speech=True,
            arrives=number % 2 == 1,
        )
        for number in range(count)
    ]
