"""Codec jobs in an engine."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from support.doubles.cycles import no_garbage
from support.engines.tiny import engine, mixed_requests, run, voice
from support.engines.voice_parts import encoded

from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import Request, Role, Sampling


def test_codec_jobs_run_beside_streams_and_match_the_codec_alone():
    eng = engine()
    waveform = np.random.default_rng(0).uniform(-0.3, 0.3, 16000 * 3).astype(np.float32)
    eng.add(mixed_requests(1)[0])
    eng.encode("enc", waveform, Role.PROMPT)
    eng.decode("dec", {"latents": voice(4, 12)})
    outcomes = run(eng)
    latents = np.concatenate([piece.array for piece in outcomes["enc"].pieces if len(piece.array)])
    audio = np.concatenate([piece.array for piece in outcomes["dec"].pieces])
    assert latents.shape == (19, 4, 8) and audio.shape == (12 * 7680,)
    with torch.inference_mode():
        np.testing.assert_array_equal(latents, encoded(eng.model.codec, waveform, Role.PROMPT))
        np.testing.assert_array_equal(audio, np.concatenate(list(eng.model.codec.decode({"latents": voice(4, 12)}))))
    assert [piece.last for piece in outcomes["enc"].pieces][-1] and outcomes["r0"].finished


def cpu_of(work: Callable[[], object]) -> float:
    """CPU seconds of this thread for a call, in the best of several rounds."""
    rounds = []
    for _ in range(5):
        before = time.thread_time()
        work()
        rounds.append(time.thread_time() - before)
    return min(rounds)


def test_on_a_cpu_a_chunk_of_a_codec_job_takes_no_longer_than_a_step():
    """A chunk delays the next step of all streams. The test compares the work of both for the bundled model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thread_time counts one
    try:
        eng = engine(checkpoint=resolve("demo"), slots=1)
        eng.add(Request(id="stream", text="Hello there.", sampling=Sampling(min_steps=60, max_steps=60)))
        for _ in range(3):
            eng.step()  # with the prefill
        step = cpu_of(eng.step)
        codec, seconds = eng.model.codec, 20
        waveform = np.zeros(seconds * eng.info.input_sample_rate, np.float32)
        shape = eng.info.latents
        assert shape is not None
        latents = np.zeros((waveform.size // eng.info.input_samples_per_step, shape.frames, shape.dim))
        with torch.inference_mode():
            for chunks in (codec.encode(waveform, Role.REFERENCE), codec.decode({"latents": latents})):
                assert cpu_of(lambda chunks=chunks: next(chunks)) < step
    finally:
        torch.set_num_threads(threads)


def test_a_codec_job_that_fails_leaves_nothing_to_the_garbage_collector(monkeypatch):
    def fails(*_: object, **__: object) -> Iterator[torch.Tensor]:
        raise InvalidRequest("the recording is wrong")
        yield

    eng = engine()
    monkeypatch.setattr(eng.runner.codec, "encode", fails)
    with no_garbage():
        eng.encode("enc", np.zeros(16000, np.float32), Role.REFERENCE)
        assert isinstance(run(eng)["enc"].error, InvalidRequest)
