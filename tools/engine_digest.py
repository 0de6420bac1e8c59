"""Prints digests of audio and speech, which a change that moves no arithmetic leaves as they are.

    .venv/bin/python tools/engine_digest.py                    # the engine and the server on a CPU, in half a minute
    python tools/engine_digest.py --device cuda --no-served    # an engine with CUDA graphs

Each line is a run: its name, the sha256 of all samples and, where they are at hand, that of all latents. Compare the
lines of two commits in one environment, on one machine: other versions of PyTorch, and other processors, round
differently.

The runs are mixed requests of every conditioning mode, in two orders, with three settings of the engine, and all golden
cases through a server, with seeds instead of the recorded noise.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]  # the requests are those of the tests

from support import goldens  # noqa: E402
from support.checkpoints import TINY  # noqa: E402
from support.engines import Outcome, finished, latents, mixed_requests, run, run_arriving  # noqa: E402
from support.servers import serving  # noqa: E402

from voxcpm_client import AsyncClient, Latents, Prompt  # noqa: E402
from voxcpm_grpc.engine.load import load_engine  # noqa: E402
from voxcpm_grpc.settings.engine import EngineSettings  # noqa: E402

REQUESTS = 12
TICK = 0.001  # seconds between two readings of the engine's clock


def settings(device: str) -> Iterator[tuple[str, EngineSettings]]:
    """Names and settings of engines."""
    one = EngineSettings(device=device, threads=1, max_slots=8)
    yield "default", one
    yield "few-pages", one.model_copy(update={"kv_positions": 112, "prefill_tokens": 24})
    yield "three-slots", one.model_copy(update={"max_slots": 3, "prefix_caching": False})


def engine_runs(device: str) -> Iterator[tuple[str, Mapping[str, Outcome]]]:
    """The outcomes of mixed requests by the name of the run. Raises AssertionError if few pages preempt no stream."""
    requests = mixed_requests(REQUESTS)
    for name, chosen in settings(device):
        with counted_time():
            engine = load_engine(TINY, "tiny", chosen)
            for request in requests:
                engine.add(request)
            yield f"{name} together", run(engine)
            assert (engine.stats().preemptions > 0) == (name == "few-pages")
        with counted_time():
            yield f"{name} arriving", run_arriving(load_engine(TINY, "tiny", chosen), requests[::-1])


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


async def served_digests(target: str) -> list[tuple[str, str]]:
    """The name of each golden case, and the digest of its samples."""
    async with AsyncClient(target) as client:
        fingerprint = (await client.model_info()).model_fingerprint
        return [await _served(client, case["name"], fingerprint) for case in goldens.cases()]


async def _served(client: AsyncClient, name: str, fingerprint: str) -> tuple[str, str]:
    golden = goldens.load(name)
    sampling, conditioning = golden.request.sampling, golden.request.conditioning
    options: dict[str, Any] = {}
    if conditioning.reference is not None:
        options["reference"] = _latents(conditioning.reference, fingerprint)
    if conditioning.prompt is not None:
        options["prompt"] = Prompt(_latents(conditioning.prompt.latents, fingerprint), conditioning.prompt.text)
    speech = await client.say(
        golden.request.text,
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
    return name, _digest(iter([speech.samples]))


def _latents(patches: np.ndarray, fingerprint: str) -> Latents:
    return Latents(data=patches.reshape(-1, patches.shape[-1]), model_fingerprint=fingerprint)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print digests of audio and speech.")
    parser.add_argument("--device", default="cpu", help="device of the engines: cpu (default), cuda, cuda:1")
    parser.add_argument("--no-served", action="store_true", help="leave out the golden cases through a server")
    options = parser.parse_args()
    lines: list[str] = []
    for name, outcomes in engine_runs(options.device):
        audio, speech = outcomes_digest(outcomes)
        lines.append(f"{name:28} {audio} {speech}")
    if not options.no_served:
        flags = ("--engine.device", options.device, "--engine.threads", "1")
        with tempfile.TemporaryDirectory() as voices, serving(voices, *flags) as server:
            lines += [f"{name:28} {audio}" for name, audio in asyncio.run(served_digests(server.address))]
    lines.append(f"{'all':28} {hashlib.sha256(repr(lines).encode()).hexdigest()}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
