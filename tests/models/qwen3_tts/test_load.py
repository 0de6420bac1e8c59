"""Checkpoints that cannot be used are refused with all that is wrong with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines.qwen3_codec import checkpoint

from voxcpm_grpc.checkpoint import FILES, fingerprint
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.qwen3_tts.family import QWEN3_TTS
from voxcpm_grpc.models.qwen3_tts.load import codec_dtype_of
from voxcpm_grpc.settings.engine import EngineSettings

CPU = torch.device("cpu")
OPTIONS = LoadOptions(device=CPU, dtype=torch.float32)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path) -> Path:
    return shutil.copytree(checkpoint("custom06"), tmp_path / "model")


def edit(path: Path, change: Change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refusal(folder: Path, options: LoadOptions = OPTIONS) -> str:
    with pytest.raises(StartupError) as caught:
        load_model(folder, options)
    return str(caught.value)


def talker(change: Change) -> Change:
    return lambda config: change(config["talker_config"])


def predictor(change: Change) -> Change:
    return lambda config: change(config["talker_config"]["code_predictor_config"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda config: config.update(tokenizer_type="qwen3_tts_tokenizer_25hz"),
            "tokenizer_type is 'qwen3_tts_tokenizer_25hz', and only 'qwen3_tts_tokenizer_12hz' is supported; take a "
            "model whose name has 12Hz",
        ),
        (lambda config: config.update(tts_model_type="voice"), "tts_model_type is 'voice', expected one of custom"),
        (lambda config: config.update(tts_model_size="4b"), "tts_model_size is '4b', expected one of 0b6, 1b7"),
        (lambda config: config.pop("talker_config"), "talker_config is missing"),
        (talker(lambda talker: talker.pop("head_dim")), "talker_config.head_dim is missing"),
        (predictor(lambda predictor: predictor.pop("head_dim")), "code_predictor_config.head_dim is missing"),
        (talker(lambda talker: talker.pop("text_vocab_size")), "talker_config.text_vocab_size is missing"),
        (lambda config: config.pop("tts_pad_token_id"), "tts_pad_token_id is missing"),
        (lambda config: config.update(tts_eos_token_id=9999), "tts_eos_token_id is 9999, and the vocabulary of text"),
        (
            lambda config: config.update(tts_bos_token_id=7),
            "lacks the tokens that config.json names as tts_bos_token_id",
        ),
        (talker(lambda talker: talker.update(vocab_size=1535)), "512 codes with 1024 ids for control need 1536"),
        (talker(lambda talker: talker.update(num_code_groups=8)), "num_code_groups is 8 of the talker and 16"),
        (
            talker(lambda talker: talker.update(num_key_value_heads=3)),
            "4 attention heads are no multiple of 3 KV heads",
        ),
        (talker(lambda talker: talker.update(hidden_act="gelu")), "hidden_act is 'gelu', and only 'silu' is supported"),
        (talker(lambda talker: talker.update(attention_bias=True)), "attention_bias is True, and only False"),
        (talker(lambda talker: talker.update(rope_scaling={"rope_type": "yarn"})), "has the type 'yarn'"),
        (talker(lambda talker: talker.update(codec_pad_id=5000)), "codec_pad_id is 5000, and the vocabulary ends at"),
        (talker(lambda talker: talker.update(spk_id={})), "a CustomVoice model needs speakers"),
        (talker(lambda talker: talker.update(spk_id={"ann": "3"})), "spk_id.ann is '3', expected an id"),
        (
            talker(lambda talker: talker["spk_is_dialect"].update(eric="swiss")),
            "names 'swiss', which codec_language_id",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder, change, said):
    edit(folder / "config.json", change)
    message = refusal(folder)
    assert said in message and "Take all files from one release" in message


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperature", 3, "generation_config.json: temperature is 3, expected a number from 0 to 2"),
        ("subtalker_top_k", 1.5, "subtalker_top_k is 1.5"),
        ("top_p", -1, "top_p is -1"),
        ("repetition_penalty", True, "repetition_penalty is True"),
    ],
)
def test_defaults_of_sampling_out_of_range_are_refused(folder, name, value, said):
    edit(folder / "generation_config.json", lambda content: content.update({name: value}))
    assert said in refusal(folder)


def test_the_defaults_of_sampling_are_those_of_the_checkpoint(folder):
    def change(content: dict[str, Any]) -> None:
        content.update(temperature=0.5, top_k=0, top_p=0, subtalker_dosample=False, subtalker_top_k=9)
        del content["repetition_penalty"]

    edit(folder / "generation_config.json", change)
    info = load_model(folder, OPTIONS).info
    found = {option.name: option.default for option in info.options}
    assert found == {
        "temperature": 0.5,
        "top_k": 1536,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
        "code_temperature": 0.0,
        "code_top_k": 9,
        "code_top_p": 1.0,
    }


def test_all_faults_are_told_at_once(folder):
    edit(folder / "config.json", talker(lambda talker: talker.pop("head_dim")))
    edit(folder / "generation_config.json", lambda content: content.update(top_k="many"))
    edit(folder / "speech_tokenizer/config.json", lambda content: content["decoder_config"].pop("codebook_dim"))
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    message = refusal(folder)
    for said in (
        "talker_config.head_dim is missing",
        "top_k is 'many'",
        "speech_tokenizer/config.json: decoder_config.codebook_dim is missing",
        "model.safetensors.index.json splits the weights",
        "tokenizer_config.json has no added_tokens_decoder",
    ):
        assert said in message


def test_a_codec_of_another_size_is_refused(folder):
    def change(content: dict[str, Any]) -> None:
        for part in ("decoder_config", "encoder_config"):
            content[part]["codebook_size"] = 256

    edit(folder / "speech_tokenizer/config.json", change)
    assert "code_predictor_config.vocab_size is 512 and that of the codec's codebook_size 256" in refusal(folder)


def test_a_folder_without_the_codec_is_refused(folder):
    shutil.rmtree(folder / "speech_tokenizer")
    assert "the folder speech_tokenizer is missing, which has the codec" in refusal(folder)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "speech_tokenizer/config.json"])
def test_a_file_that_is_missing_or_broken_is_named(folder, name):
    (folder / name).write_text("{")
    assert f"{name} is not valid JSON" in refusal(folder)
    (folder / name).unlink()
    assert f"{name} cannot be read" in refusal(folder)


def test_weights_that_do_not_fit_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["talker.codec_head.weight"] = torch.zeros(3, 4)
    tensors["other"] = torch.zeros(1)
    del tensors["talker.model.layers.0.self_attn.q_norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    message = refusal(folder)
    assert "missing: talker.model.layers.0.self_attn.q_norm.weight" in message
    assert "talker.codec_head.weight is float32 [3, 4] instead of [1536, 64]" in message and "unknown: other" in message


def test_a_vocabulary_without_the_words_of_the_template_is_refused(folder):
    merges = (folder / "merges.txt").read_text().splitlines()
    (folder / "merges.txt").write_text("\n".join(line for line in merges if not line.startswith("u")) + "\n")
    assert "the tokenizer has no token 'user', which all prompts need" in refusal(folder)


@pytest.mark.parametrize("positions", [0, 4097])
def test_a_length_that_the_model_does_not_have_is_refused(folder, positions):
    with pytest.raises(StartupError, match="this model supports 1 to 4096"):
        load_model(folder, LoadOptions(device=CPU, dtype=torch.float32, max_model_len=positions or -1))


def test_a_base_model_needs_the_sizes_of_its_speaker_encoder(tmp_path):
    folder = shutil.copytree(checkpoint("base06"), tmp_path / "model")
    edit(folder / "config.json", lambda config: config["speaker_encoder_config"].update(enc_dim=65))
    assert "speaker_encoder_config.enc_dim is 65 and the talker's hidden_size 64" in refusal(folder)


@pytest.mark.parametrize("setting", [{"timesteps": (4,)}, {"max_loras": 16}])
def test_settings_of_other_families_are_refused(setting):
    [name] = setting
    with pytest.raises(StartupError, match=rf"engine\.{name} is set, and models of Qwen3-TTS do not have it"):
        load_engine(checkpoint("design"), "design", EngineSettings(**setting), registers_loras=True)


def test_the_codec_has_16_bits_on_a_gpu_unless_the_settings_want_float32():
    half = LoadOptions(device=CPU, dtype=torch.bfloat16)
    assert codec_dtype_of(half, torch.device("cuda")) == torch.float16
    assert codec_dtype_of(half, CPU) == codec_dtype_of(OPTIONS, torch.device("cuda")) == torch.float32
    assert codec_dtype_of(replace(half, codec_dtype=torch.float32), torch.device("cuda")) == torch.float32
    with pytest.raises(StartupError, match=r"engine\.codec_dtype float16 needs a GPU"):
        load_engine(checkpoint("design"), "design", EngineSettings(device="cpu", codec_dtype="float16"))
    assert load_model(checkpoint("design"), OPTIONS).info.codec_dtype == "float32"


def test_a_download_has_all_files_of_the_fingerprint_which_depends_on_each(folder):
    before = {fingerprint(folder)}
    for (name,) in QWEN3_TTS.hashed:
        assert any(fnmatch(name, pattern) for pattern in FILES), name
        with (folder / name).open("ab") as file:
            file.write(b" ")
        before.add(fingerprint(folder))
    assert len(before) == 1 + len(QWEN3_TTS.hashed)
