"""Results of the official package, and the requests that must give the same results."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from support.engines.voice_parts import voice_part

from voxcpm_grpc.request import Conditioning, Request, Sampling

GOLDENS = Path(__file__).parents[2] / "goldens"
VOICE = GOLDENS / "voice"  # goldens of the bundled voice; those of older models have the names of their checkpoints


def cases(folder: Path = GOLDENS) -> list[dict]:
    return json.loads((folder / "manifest.json").read_text())["cases"]


CASES = cases()


@dataclass(frozen=True)
class Golden:
    """One case: the request, and the tensors that it must give."""

    request: Request
    tensors: dict[str, np.ndarray]
    audio_stride: int
    ended_by: str
    cap: int

    @property
    def noise(self) -> np.ndarray:
        return self.tensors["noise"]

    @property
    def latents(self) -> np.ndarray:
        return self.tensors["latents"]

    def same_audio(self, waveform: np.ndarray, atol: float) -> None:
        np.testing.assert_allclose(waveform[:: self.audio_stride], self.tensors["audio"], atol=atol, rtol=0)


def load(name: str, folder: Path = GOLDENS) -> Golden:
    entry = next(case for case in cases(folder) if case["name"] == name)
    tensors = load_file(folder / entry["file"])
    prompt = None
    if "prompt_latents" in tensors:
        prompt = voice_part(tensors["prompt_latents"], entry["prompt_text"])
    reference = voice_part(tensors["reference_latents"]) if "reference_latents" in tensors else None
    request = Request(
        id=name,
        text=entry["text"],
        sampling=Sampling(
            cfg_value=entry["cfg_value"],
            inference_timesteps=entry["timesteps"],
            temperature=1.0,  # the official package has no other
            min_steps=entry["min_len"],
            max_steps=entry["max_len"],
        ),
        conditioning=Conditioning(prompt=prompt, reference=reference),
        keep_speech=True,
    )
    return Golden(request, tensors, entry["audio_stride"], entry["ended_by"], entry["cap"])
