"""Python programs load a model and generate speech without a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from support.engines import goldens
from support.engines.checkpoints import TINY
from support.engines.voice_parts import latents_of
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS

import voxcpm_grpc
from voxcpm_grpc.audio import BadAudio, wav_bytes
from voxcpm_grpc.embedded.async_model import AsyncModel, Samples
from voxcpm_grpc.embedded.model import Model
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, NotFound, StartupError, Unavailable
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.request import Request, Sampling

SHORT = Sampling(seed=3, min_steps=0, max_steps=4)
LONG = Sampling(min_steps=100, max_steps=200, inference_timesteps=4)
# A busy host must not take the engine for lost.
PATIENT = {"supervision.silence_seconds": NEVER_SECONDS, "supervision.step_seconds": NEVER_SECONDS}
ONE_SLOT = {"engine.max_slots": 1, "engine.graphs": False, **PATIENT}


@pytest.fixture(scope="module")
def model():
    with voxcpm_grpc.load(TINY, devices=["cpu"], settings=ONE_SLOT) as model:
        yield model


def recording(seconds: float, rate: int) -> Samples:
    return Samples(np.sin(np.arange(int(seconds * rate)) * 0.1).astype(np.float32), rate)


def spoken(model: Model, text: str = "Hello.", **options: object) -> np.ndarray:
    return np.concatenate(list(model.generate(text, sampling=SHORT, **options)))  # type: ignore[arg-type]


def test_a_model_generates_a_step_at_a_time(model):
    steps = list(model.generate("Hello.", sampling=SHORT))
    assert [len(step) for step in steps] == [model.info.samples_per_step] * len(steps)
    assert 1 <= len(steps) <= 4
    assert steps[0].dtype == np.float32


def test_adapters_are_chosen_by_name(model):
    adapter = goldens.GOLDENS / "lora_attention" / "adapter"
    with voxcpm_grpc.load(TINY, devices=["cpu"], settings={**ONE_SLOT, "lora": [f"anna={adapter}"]}) as adapted:
        assert adapted.loras == ("anna",)
        assert np.array_equal(spoken(adapted), spoken(model))
        assert not np.array_equal(spoken(adapted, lora="anna"), spoken(model))
        with pytest.raises(NotFound, match="no LoRA adapter 'bert'; the server has anna"):
            spoken(adapted, lora="bert")
    with pytest.raises(NotFound, match="--lora"):
        spoken(model, lora="anna")


def test_a_seed_repeats(model):
    assert np.array_equal(spoken(model), spoken(model))
    other = np.concatenate(list(model.generate("Hello.", sampling=Sampling(seed=4, max_steps=4))))
    assert not np.array_equal(spoken(model)[:100], other[:100])


def test_a_closed_generator_frees_its_slot(model):
    unfinished = model.generate("Hello.", sampling=LONG)
    next(unfinished)
    unfinished.close()
    assert len(spoken(model))


def test_an_interactive_call_takes_the_slot_of_a_batch_call_which_goes_on_afterwards(model):
    text = "A long story that takes its time. " * 4
    expected = list(model.generate(text, sampling=LONG))
    batch = model.generate(text, sampling=LONG, priority="batch")
    heard = [next(batch)]
    assert len(spoken(model))
    assert model._model.pool.replicas[0].calls, "the batch call still has steps to make"
    heard += batch
    assert len(heard) == len(expected)
    np.testing.assert_allclose(np.concatenate(heard), np.concatenate(expected), atol=1e-5)
    with pytest.raises(InvalidRequest, match="priority is 'low'; it must be interactive or batch"):
        spoken(model, priority="low")


def test_a_dropped_generator_frees_its_slot(model):
    unfinished = model.generate("Hello.", sampling=LONG)
    next(unfinished)
    del unfinished
    assert len(spoken(model))


@pytest.mark.parametrize("kind", ["samples", "bytes", "path"])
def test_a_recording_gives_the_voice(model, tmp_path, kind):
    samples = recording(1.0, 16_000)
    data = wav_bytes(samples.samples, 16_000)
    path = tmp_path / "speaker.wav"
    path.write_bytes(data)
    voice = model.encode_voice(reference={"samples": samples, "bytes": data, "path": path}[kind])
    assert voice.reference is not None
    assert latents_of(voice.reference).shape[1:] == (model.info.latents.frames, model.info.latents.dim)
    assert not np.array_equal(spoken(model, voice=voice), spoken(model))


def test_a_prompt_and_a_style_change_the_voice(model):
    prompt = model.encode_voice(prompt=recording(1.0, 16_000), transcript="One, two. ")
    assert prompt.prompt is not None
    assert prompt.prompt.text == "One, two. "
    assert not np.array_equal(spoken(model, voice=prompt), spoken(model))
    assert not np.array_equal(spoken(model, style="a calm old man"), spoken(model))


def test_what_cannot_be_spoken_is_refused(model):
    with pytest.raises(InvalidRequest, match="empty"):
        next(model.generate(" "))
    with pytest.raises(InvalidRequest, match="positions"):
        next(model.generate("word " * 5000))
    with pytest.raises(InvalidRequest, match="recording"):
        model.encode_voice()
    with pytest.raises(InvalidRequest, match="together"):
        model.encode_voice(prompt=recording(1.0, 16_000))
    with pytest.raises(BadAudio, match="the limit is"):
        model.encode_voice(reference=recording(100.0, 16_000))
    prompt = model.encode_voice(prompt=recording(1.0, 16_000), transcript="One. ")
    with pytest.raises(InvalidRequest, match="style"):
        next(model.generate("Hello.", voice=prompt, style="a calm old man"))
    with pytest.raises(FailedPrecondition, match="takes no language"):
        next(model.generate("Hello.", language="de"))


def test_a_model_that_cannot_load_says_why(tmp_path):
    with pytest.raises(StartupError, match="config"):
        voxcpm_grpc.load(tmp_path, devices=["cpu"])
    with pytest.raises(StartupError, match="max_slots"):
        voxcpm_grpc.load(TINY, devices=["cpu"], settings={"engine.max_slot": 1})
    with pytest.raises(StartupError, match="99"):
        voxcpm_grpc.load(TINY, devices=[99])


def test_a_deprecated_setting_is_warned_of(tmp_path, caplog):
    with pytest.raises(StartupError):
        voxcpm_grpc.load(tmp_path, settings={"engine.page_size": 32})
    assert "engine.page_size is deprecated, and the next version refuses it: leave it out" in caplog.text


def test_a_closed_model_stops(tmp_path):
    model = voxcpm_grpc.load(TINY, devices=["cpu"])
    running = model.generate("Hello.", sampling=LONG)
    next(running)
    model.close()
    model.close()
    for call in (running, model.generate("Hello.")):
        with pytest.raises(Unavailable, match="closed"):
            next(call)


@pytest.fixture
async def async_model():
    async with await voxcpm_grpc.load_async(TINY, devices=["cpu"], settings=ONE_SLOT) as model:
        yield model


async def audio_of(model: AsyncModel, sampling: Sampling) -> np.ndarray:
    return np.concatenate([samples async for samples in model.generate("Hello.", sampling=sampling)])


async def test_calls_with_asyncio(async_model, model):
    same = await audio_of(async_model, SHORT)
    assert np.array_equal(same, spoken(model)), "both doors lead to the same engine"
    events = async_model.pool.generate(Request(id="own", text="Hello.", sampling=SHORT))
    chunks = [event.samples async for event in events if isinstance(event, AudioChunk)]
    assert np.array_equal(same, np.concatenate(chunks)), "the pool itself gives the same audio"
    async with aclosing(async_model.generate("Hello.", sampling=LONG)) as unfinished:
        await anext(unfinished)
    assert len(await audio_of(async_model, SHORT))
    task = asyncio.create_task(audio_of(async_model, LONG))
    await asyncio.sleep(0)
    task.cancel()
    assert len(await audio_of(async_model, SHORT))


SCRIPT = """
import voxcpm_grpc

if __name__ == "__main__":
    with voxcpm_grpc.load({model!r}, devices=["cpu"]) as model:
        print(sum(len(samples) for samples in model.generate("Hello.")) > 0)
"""


def test_a_script(tmp_path):
    path = tmp_path / "speak.py"
    path.write_text(SCRIPT.format(model=str(TINY)))
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=HANG_SECONDS, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "True\n"
    assert not ran.stderr


def test_a_script_without_a_guard_says_what_to_change(tmp_path):
    path = tmp_path / "speak.py"
    path.write_text(f"import voxcpm_grpc\nvoxcpm_grpc.load({str(TINY)!r}, devices=['cpu'])\n")
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=HANG_SECONDS, cwd=tmp_path)
    assert ran.returncode == 1
    assert "put the call under `if __name__ == '__main__':`" in ran.stderr


def test_the_package_needs_no_torch(tmp_path: Path):
    code = "import sys, voxcpm_grpc; print(sorted({'torch', 'pydantic', 'zmq'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert ran.stdout == "[]\n"
