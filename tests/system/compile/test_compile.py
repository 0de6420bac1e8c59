"""The diffusion of a tiny model is compiled for real: a second start finds it, and streams equal those of the first."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.engines.checkpoints import TINY

from tools.make_checkpoint import Random, vae_tensors
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.engine.start.compilation import compile_now
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.models.voxcpm.compiled.decoder import CompiledDecoder
from voxcpm_grpc.models.voxcpm.flow.cpu_flow import CpuFlow
from voxcpm_grpc.request import Request, Sampling
from voxcpm_grpc.settings.engine import EngineSettings

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
STREAMS = 2


def speak(engine, count):
    """The audio of `count` streams, which run together."""
    audio = {str(index): [] for index in range(count)}
    for id in audio:
        sampling = Sampling(min_steps=5, max_steps=5, seed=int(id))
        engine.add(Request(id=id, text=f"Text number {id}.", sampling=sampling))
    while engine.busy:
        for id, event in engine.step():
            if isinstance(event, AudioChunk):
                audio[id].append(event.samples)
    return {id: np.concatenate(parts) for id, parts in audio.items()}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The tiny model with two instead of six blocks in its decoder, which take the compiler a third of the time."""
    made = shutil.copytree(TINY, tmp_path_factory.mktemp("model") / "tiny")
    config = json.loads((made / "config.json").read_text("utf-8"))
    config["audio_vae_config"]["decoder_rates"] = [64, 30]
    (made / "config.json").write_text(json.dumps(config))
    save_file(vae_tensors(config["audio_vae_config"], Random(1, "cpu")), made / "audiovae.safetensors")
    return made


@pytest.fixture(scope="module")
def starts(checkpoint, tmp_path_factory):
    """The engines of a first start, whose compilation has finished, and of a second one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", str(tmp_path_factory.mktemp("cache")))
        settings = EngineSettings(device="cpu", max_slots=STREAMS, compile="on")
        first = load_engine(checkpoint, "tiny", settings)
        assert first.compilation
        compile_now(first.compilation)
        second = load_engine(checkpoint, "tiny", settings)
        assert second.compilation is None
        yield first, second


def test_the_second_start_finds_every_size(starts):
    first, second = (start.model.flow.batch for start in starts)
    assert not getattr(first, "evaluations", None)
    assert isinstance(second, CpuFlow)
    assert sorted(second.evaluations) == [1, 2]
    decoder = starts[1].model.codec.decoder
    assert isinstance(decoder, CompiledDecoder) and decoder.one and decoder.several


def test_latents_equal_those_of_plain_operations(starts):
    first, second = (start.model.flow for start in starts)
    dit, config = starts[0].model.networks.dit, starts[0].model.config
    for streams in (1, 2):
        shape = streams, config.patch_size, config.feat_dim
        inputs = torch.randn(shape), torch.randn(streams, dit.mu_tokens, dit.hidden), torch.randn(shape)
        with torch.inference_mode():
            plain, made = (flow(*inputs, torch.full((streams,), 2.0), 10) for flow in (first, second))
        torch.testing.assert_close(made, plain, atol=1e-4, rtol=0)


def test_a_stream_in_a_batch_equals_one_alone(starts):
    together, alone = speak(starts[1], 2)["0"], speak(starts[1], 1)["0"]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_speech_equals_that_of_the_first_start(starts):
    for made, plain in zip(speak(starts[1], 2).values(), speak(starts[0], 2).values(), strict=True):
        np.testing.assert_allclose(made, plain, atol=1e-4)
