"""LoRA adapters: their files, and speech of a model with a merged one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import goldens
from support.engines.plans import plan_of

from voxcpm_grpc.errors import StartupError

GOLDENS = goldens.GOLDENS / "lora"
WEIGHTS = "lora_weights.safetensors"
QUERY = "base_lm.layers.0.self_attn.q_proj"


@pytest.fixture
def adapter(tmp_path):
    return Path(shutil.copytree(GOLDENS / "adapter", tmp_path / "adapter"))


def change_tensors(adapter, change):
    tensors = load_file(adapter / WEIGHTS)
    change(tensors)
    (adapter / WEIGHTS).unlink()  # mapped memory of the old file stays valid
    save_file(tensors, adapter / WEIGHTS)


def change_config(adapter, **changes):
    path = adapter / "lora_config.json"
    content = json.loads(path.read_text())
    content["lora_config"] |= changes
    path.write_text(json.dumps(content))


def refusal(load, adapter):
    with pytest.raises(StartupError) as caught:
        load(merge_lora=adapter)
    return str(caught.value)


def speak(driver, model, golden):
    """The latents and the audio of as many patches as the official package made."""
    request = golden.request
    run = driver(model)
    run.start(1, plan_of(model, request), request.sampling, chunk=7)
    timesteps = request.sampling.inference_timesteps
    audio = [run.step(1, timesteps=timesteps).audio[0] for _ in range(len(golden.latents))]
    return run.made(1), torch.cat(audio)


def loading(golden):
    """The options that load a model for a golden."""
    timesteps = (golden.request.sampling.inference_timesteps,)
    return {"recorded_noise": torch.from_numpy(golden.noise), "timesteps": timesteps}


@pytest.mark.parametrize("name", ["zero_shot", "prompt", "reference", "hifi"])
def test_speech_with_a_merged_adapter_equals_that_of_the_official_package(load, driver, name):
    golden = goldens.load(name, GOLDENS)
    latents, audio = speak(driver, load(merge_lora=GOLDENS / "adapter", **loading(golden)), golden)
    assert np.abs(latents.numpy() - golden.latents).max() < 1e-4
    golden.same_audio(audio.numpy(), atol=1e-4)


def test_the_adapter_of_the_goldens_changes_the_speech(load, driver):
    golden = goldens.load("zero_shot", GOLDENS)
    latents, _ = speak(driver, load(**loading(golden)), golden)
    assert np.abs(latents.numpy() - golden.latents).max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adapters_of_16_bits_are_read(load, adapter, dtype):
    change_tensors(adapter, lambda tensors: tensors.update({name: t.to(dtype) for name, t in tensors.items()}))
    assert load(merge_lora=adapter).info.dtype == "float32"


def test_one_error_names_all_tensors_that_do_not_fit(load, adapter):
    def spoil(tensors):
        tensors["feat_encoder.encoder.layers.0.self_attn.q_proj.lora_A"] = torch.zeros(4, 8)
        tensors[f"{QUERY}.weight"] = torch.zeros(4, 8)
        del tensors[f"{QUERY}.lora_B"]
        tensors["lm_to_dit_proj.lora_A"] = torch.zeros(4, 3)
        tensors["res_to_dit_proj.lora_A"] = tensors["res_to_dit_proj.lora_A"].double()
        tensors["enc_to_lm_proj.lora_B"][0, 0] = torch.nan

    change_tensors(adapter, spoil)
    message = refusal(load, adapter)
    assert "2 tensors belong to no module that an adapter may change: base_lm.layers.0.self_attn.q_proj.weight, " in (
        message
    )
    assert "feat_encoder.encoder.layers.0.self_attn.q_proj.lora_A" in message
    assert f"1 tensors are missing: {QUERY}.lora_B" in message
    assert "lm_to_dit_proj.lora_A is [4, 3] instead of [4, " in message
    assert "res_to_dit_proj.lora_A is float64" in message
    assert "1 tensors contain infinities or NaN: enc_to_lm_proj.lora_B" in message


def test_the_embedding_is_no_target(load, adapter):
    change_tensors(adapter, lambda t: t.update({"base_lm.embed_tokens.lora_A": torch.zeros(4, 8)}))
    assert "base_lm.embed_tokens.lora_A" in refusal(load, adapter)


def test_a_file_without_tensors_is_refused(load, adapter):
    change_tensors(adapter, dict.clear)
    assert "it has no tensors" in refusal(load, adapter)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 129}, "r of lora_config.json is 129; it must be an integer from 1 to 128"),
        ({"r": 0}, "r of lora_config.json is 0"),
        ({"r": "4"}, "r of lora_config.json is '4'"),
        ({"alpha": None}, "alpha of .* is None"),
        ({"alpha": float("nan")}, "alpha of .* is nan"),
        ({"r": 5}, "have the wrong shape"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(load, adapter, changes, message):
    change_config(adapter, **changes)
    with pytest.raises(StartupError, match=message):
        load(merge_lora=adapter)


def test_a_pickle_is_refused_with_the_remedy(load, adapter):
    (adapter / WEIGHTS).rename(adapter / "lora_weights.ckpt")
    message = refusal(load, adapter)
    assert "it has only lora_weights.ckpt" in message
    assert f"save its tensors with safetensors as {WEIGHTS}" in message


def test_missing_and_broken_files_are_refused(load, adapter, tmp_path):
    assert "it has no lora_config.json and no lora_weights.safetensors" in refusal(load, tmp_path / "nowhere")
    (adapter / WEIGHTS).write_bytes(b"no tensors")
    assert "cannot be read" in refusal(load, adapter)
    (adapter / "lora_config.json").write_text("[]")
    assert "lora_config.json has no table lora_config" in refusal(load, adapter)
    (adapter / "lora_config.json").write_text("{")
    assert "cannot be read as JSON" in refusal(load, adapter)
