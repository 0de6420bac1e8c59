"""Prints digests of audio and speech, which a change that moves no arithmetic leaves as they are.

    .venv/bin/python -m tools.engine_digest > before            # the engine and the server on a CPU, in a minute
    .venv/bin/python -m tools.engine_digest --compare before    # at another commit: fails if a line is another
    python -m tools.engine_digest --device cuda --no-served     # an engine with CUDA graphs

Each line is a run: its name, the sha256 of all samples and, where they are at hand, that of all latents. The last line
is the sha256 of all others. Compare the lines of two commits in one environment, on one machine: other versions of
PyTorch, and other processors, round differently, so no lines are kept in the repository.

The runs are mixed requests of every conditioning mode, in two orders, with three settings of the engine, without LoRA
adapters and with some; and all golden cases of all models through servers, with seeds instead of the recorded noise.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]  # the requests are those of the tests

from support.engines import goldens  # noqa: E402
from support.engines.checkpoints import OLDER, TINY, VOICE  # noqa: E402
from support.engines.tiny import (  # noqa: E402
    Outcome,
    adapted_requests,
    finished,
    latents,
    mixed_requests,
    run,
    run_arriving,
)
from support.engines.voice_parts import latents_of  # noqa: E402
from support.servers.running import serving  # noqa: E402

from voxcpm_client import AsyncClient, Latents, Prompt  # noqa: E402
from voxcpm_grpc.engine.load import load_engine  # noqa: E402
from voxcpm_grpc.settings.engine import EngineSettings  # noqa: E402

REQUESTS = 12
TICK = 0.001  # seconds between two readings of the engine's clock
LAYERS, ATTENTION, MERGED = (goldens.GOLDENS / name for name in ("lora_layers", "lora_attention", "lora"))
ADAPTERS = {folder.name: folder / "adapter" for folder in (LAYERS, ATTENTION)}
KINDS = "attention,mlp,projections"  # of the maps that these adapters change


@dataclass(frozen=True)
class Served:
    """The golden cases of a folder, spoken by a model of a server with an adapter of its settings."""

    folder: Path
    model: str
    lora: str = ""


MODELS = {"tiny": TINY, "voice": VOICE, **{path.name: path for path in OLDER}}
CASES = (
    Served(goldens.GOLDENS, "tiny"),
    *(Served(folder, "tiny", folder.name) for folder in (LAYERS, ATTENTION)),
    *(Served(goldens.GOLDENS / name, name) for name in MODELS if name != "tiny"),
)
"""The cases of a server with all models; those of a merged adapter are spoken by another one."""


def settings(device: str) -> Iterator[tuple[str, EngineSettings]]:
    """Names and settings of engines."""
    one = EngineSettings(device=device, threads=1, max_slots=8, compile="off")
    yield "default", one
    yield "few-pages", one.model_copy(update={"kv_positions": 112, "prefill_tokens": 24})
    yield "three-slots", one.model_copy(update={"max_slots": 3, "prefix_caching": False})


def engine_runs(device: str) -> Iterator[tuple[str, Mapping[str, Outcome]]]:
    """The outcomes of mixed requests by the name of the run. Raises AssertionError if few pages preempt no stream."""
    plain, adapted = mixed_requests(REQUESTS), adapted_requests(REQUESTS, ADAPTERS)
    loras = tuple(f"{name}={path}" for name, path in ADAPTERS.items())
    for name, chosen in settings(device):
        targets = tuple(KINDS.split(","))
        with_loras = chosen.model_copy(update={"loras": loras, "lora_targets": targets, "max_loras": 1})
        for kind, requests, made in (("", plain, chosen), (" loras", adapted, with_loras)):
            with counted_time():
                engine = load_engine(TINY, "tiny", made)
                for request in requests:
                    engine.add(request)
                yield f"{name}{kind} together", run(engine)
                assert (engine.stats().preemptions > 0) == (name == "few-pages")
            with counted_time():
                yield f"{name}{kind} arriving", run_arriving(load_engine(TINY, "tiny", made), requests[::-1])


@contextmanager
def counted_time() -> Iterator[None]:
    """Within the block, the clock by which an engine waits for prompts counts its readings."""
    readings = itertools.count()
    with mock.patch("voxcpm_grpc.engine.engine.monotonic", lambda: next(readings) * TICK):
        yield


def outcomes_digest(outcomes: Mapping[str, Outcome]) -> tuple[str, str]:
    """The digests of samples and latents. Raises AssertionError for a request that failed."""
    names = sorted(outcomes)
    for name in names:
        finished(outcomes[name])
    return _digest(outcomes[name].waveform for name in names), _digest(latents(outcomes[name]) for name in names)


def _digest(arrays: Iterator[np.ndarray]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def served_digests(device: str) -> Iterator[tuple[str, str]]:
    """The name of each golden case, and the digest of its samples."""
    # A part that an earlier start has compiled rounds differently.
    flags = ("--engine.device", device, "--engine.threads", "1", "--engine.compile", "off")
    loras = [("--lora", f"tiny/{name}={path}") for name, path in ADAPTERS.items()]
    others = [("--model", f"{name}={path}") for name, path in MODELS.items() if name != "tiny"]
    several = (*flags, *itertools.chain(*loras, *others), "--engine.lora-targets", KINDS)
    yield from _spoken(CASES, f"tiny={TINY}", *several)
    yield from _spoken([Served(MERGED, "")], str(TINY), *flags, "--engine.merge-lora", str(MERGED / "adapter"))


def _spoken(served: Iterable[Served], model: str, *flags: str) -> list[tuple[str, str]]:
    async def speak(target: str) -> list[tuple[str, str]]:
        async with AsyncClient(target) as client:
            return [
                (f"{one.folder.relative_to(goldens.GOLDENS) / case['name']}", await _speak(client, one, case["name"]))
                for one in served
                for case in goldens.cases(one.folder)
            ]

    with tempfile.TemporaryDirectory() as voices, serving(voices, *flags, model=model) as server:
        return asyncio.run(speak(server.address))


async def _speak(client: AsyncClient, served: Served, name: str) -> str:
    golden = goldens.load(name, served.folder)
    sampling, conditioning = golden.request.sampling, golden.request.conditioning
    fingerprint = (await client.model_info(served.model)).model_fingerprint
    options: dict[str, Any] = {}
    if conditioning.reference is not None:
        options["reference"] = _latents(latents_of(conditioning.reference), fingerprint)
    if conditioning.prompt is not None:
        options["prompt"] = Prompt(_latents(latents_of(conditioning.prompt), fingerprint), conditioning.prompt.text)
    speech = await client.say(
        golden.request.text,
        model=served.model,
        lora=served.lora,
        style_in_text=golden.request.text.startswith("("),
        format="pcm_f32le",
        trim_leading_silence=0,
        segmentation="manual",
        seed=7,
        cfg_value=sampling.cfg_value,
        timesteps=sampling.inference_timesteps,
        min_steps=sampling.min_steps,
        max_steps=sampling.max_steps,
        **options,
    )
    return _digest(iter([speech.samples]))


def _latents(patches: np.ndarray, fingerprint: str) -> Latents:
    return Latents(data=patches.reshape(-1, patches.shape[-1]), model_fingerprint=fingerprint)


def other_lines(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The names of the runs whose digests are others, or that only one of two outputs has."""
    old, new = ({line.split("  ")[0]: line for line in lines if line.strip()} for lines in (before, now))
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Print digests of audio and speech.")
    parser.add_argument("--device", default="cpu", help="device of the engines: cpu (default), cuda, cuda:1")
    parser.add_argument("--no-served", action="store_true", help="leave out the golden cases through a server")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="fail if FILE, an earlier output, has other lines")
    options = parser.parse_args()
    lines: list[str] = []
    for name, outcomes in engine_runs(options.device):
        audio, speech = outcomes_digest(outcomes)
        lines.append(f"{name:32} {audio} {speech}")
    if not options.no_served:
        lines += [f"{name:32} {audio}" for name, audio in served_digests(options.device)]
    lines.append(f"{'all':32} {hashlib.sha256(repr(lines).encode()).hexdigest()}")
    print("\n".join(lines))
    if options.compare and (others := other_lines(options.compare.read_text("utf-8").splitlines(), lines)):
        raise SystemExit(f"other digests than in {options.compare}: {', '.join(others)}")


if __name__ == "__main__":
    main()
