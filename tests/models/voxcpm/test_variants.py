"""Checkpoints that no release has, and that the official package reads: the results are the official ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.streaming import StreamingNet
from voxcpm_grpc.layers.weights import Weights, check
from voxcpm_grpc.models.voxcpm.backend import choose_decoder
from voxcpm_grpc.models.voxcpm.codec.vae import build_decoder, build_encoder
from voxcpm_grpc.models.voxcpm.config.config import VAE2Config
from voxcpm_grpc.models.voxcpm.text.tokenizer import TextTokenizer

GOLDENS = Path(__file__).parents[2] / "goldens"
CASES = json.loads((GOLDENS / "variants.json").read_text("utf-8"))
CODECS: dict[str, dict] = CASES["codecs"]
TOKENIZERS: list[dict] = CASES["tokenizers"]


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(GOLDENS / "variants.safetensors")


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


def test_a_model_without_positions_rotates_in_the_residual_model_alone(load, checkpoint, edit, golden, tiny):
    edit(checkpoint, lambda config: config["lm_config"].update(no_rope=True))
    model = load(checkpoint)
    assert torch.equal(model.rope.cos, tiny.rope.cos)  # of the residual model, which has a key of its own
    networks = model.networks
    close(networks.encode_patch(golden["no_rope.locenc.input"]), golden["no_rope.locenc.output"])
    x, condition = (golden[f"no_rope.locdit.{key}"].transpose(1, 2) for key in ("x", "cond"))
    time, mu = golden["no_rope.locdit.t"], golden["no_rope.locdit.mu"].unflatten(1, (2, -1))
    tokens = networks.dit.time_tokens(time, torch.zeros_like(time))
    velocity = networks.dit(x, tokens[0], *networks.dit.context(mu, condition))
    close(velocity[:1].transpose(1, 2), golden["no_rope.locdit.output"])


@pytest.mark.parametrize("timesteps", [4, 10])
@pytest.mark.parametrize("cfg", [1, 2, 3])
def test_a_model_of_mean_velocities_receives_the_sizes_of_its_steps(load, checkpoint, edit, golden, cfg, timesteps):
    edit(checkpoint, lambda config: config["dit_config"].update(dit_mean_mode=True))
    x, condition = (golden[f"mean_mode.euler.{key}"].T[None] for key in ("x", "cond"))
    mu = golden["mean_mode.euler.mu"].unflatten(0, (2, -1))[None]
    out = load(checkpoint).flow(x, mu, condition, torch.tensor([float(cfg)]), timesteps)
    close(out[0].T, golden[f"mean_mode.euler.cfg{cfg}_n{timesteps}"])


def test_rotations_equal_the_official_ones_for_any_type_and_beyond_the_longest_position(load, checkpoint, edit, golden):
    scaling = {"type": "yarn", "original_max_position_embeddings": 4096}
    edit(checkpoint, lambda config: config["lm_config"]["rope_scaling"].update(scaling))
    rotation = load(checkpoint).rope.at(golden["beyond.positions"])
    for ours, name in ((rotation.cos, "cos"), (rotation.sin, "sin")):
        close(torch.cat([ours, ours], -1)[:, 0], golden[f"beyond.{name}"], 1e-6)


def codec(golden: dict[str, Tensor], name: str, **change) -> tuple[StreamingNet, StreamingNet]:
    """The encoder and the decoder of a small codec."""
    prefix = f"codec.{name}.weights."
    tensors = {key.removeprefix(prefix): value for key, value in golden.items() if key.startswith(prefix)}
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in (CODECS[name] | change).items()}
    config, cpu = VAE2Config(**values), torch.device("cpu")
    weights = Weights("audiovae.pth", tensors, cpu, torch.float32, torch.float32)
    nets = build_encoder(config, weights), build_decoder(config, weights)
    check(weights)
    return nets


@pytest.mark.parametrize("name", CODECS)
def test_codecs_of_every_kind_equal_the_official_ones(golden, name):
    encoder, decoder = codec(golden, name)
    wave, latents = golden[f"codec.{name}.wave"], golden[f"codec.{name}.latents"]
    close(encoder(wave[None, None], torch.zeros(1, encoder.memory))[0][0], golden[f"codec.{name}.encoded"], 1e-4)
    whole, _ = decoder(latents[None], torch.zeros(1, decoder.memory))
    close(whole[0, 0], golden[f"codec.{name}.decoded"], 1e-4)
    memory, parts = torch.zeros(1, decoder.memory), []
    for frames in latents[None].split([1, 3, 5], dim=-1):
        audio, memory = decoder(frames, memory)
        parts.append(audio)
    close(torch.cat(parts, dim=-1), whole, 1e-4)


@pytest.mark.parametrize("name", CODECS)
def test_only_codecs_with_the_modules_of_a_release_have_kernels(golden, name):
    pytest.importorskip("triton")
    _, decoder = codec(golden, name)
    chosen = choose_decoder(decoder, torch.float16)  # pyright: ignore[reportArgumentType]
    has_kernels = name in ("plain", "add", "unconditioned", "boundaries")
    assert (chosen is not decoder) == has_kernels
    assert chosen.dtype == (torch.float16 if has_kernels else torch.float32)


def test_boundaries_of_the_file_win_and_their_number_must_fit(golden):
    file = golden["codec.boundaries.weights.decoder.sr_bin_boundaries"]
    assert file.tolist() != CODECS["boundaries"]["sr_bin_boundaries"]
    with pytest.raises(StartupError, match=r"decoder\.sr_bin_boundaries is int32 \[3\] instead of \[2\]"):
        codec(golden, "boundaries", sr_bin_boundaries=[20000, 30000])


def test_the_codec_may_be_in_the_file_of_the_networks(load, checkpoint, tiny):
    model, own = checkpoint / "model.safetensors", checkpoint / "audiovae.safetensors"
    tensors, codec = load_file(model), load_file(own)
    names = sorted(codec)
    moved = {f"audio_vae.{name}": codec[name] for name in names[::2]}
    moved[f"audio_vae.{names[1]}"] = codec[names[1]] + 1  # the file of the codec wins
    for path, content in ((model, tensors | moved), (own, {name: codec[name] for name in names[1::2]})):
        path.unlink()
        save_file(content, path)
    decoder = load(checkpoint).codec.decoder
    frames, memory = torch.ones(1, 8, 2), torch.zeros(1, decoder.memory)
    assert torch.equal(decoder(frames, memory)[0], tiny.codec.decoder(frames, memory)[0])


def bare_tokenizer(checkpoint: Path, files: dict[str, dict]) -> Path:
    """tokenizer.json without audio tokens among the registered ones, beside `files`, which may have keys of it."""
    path = checkpoint / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if "audio" not in token["content"]]
    path.write_text(json.dumps(content | files.get("tokenizer.json", {})), "utf-8")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (checkpoint / name).unlink()
    for name, value in files.items():
        if name != "tokenizer.json":
            (checkpoint / name).write_text(json.dumps(value), "utf-8")
    return path


@pytest.mark.parametrize("case", TOKENIZERS, ids=lambda case: case["name"])
def test_special_tokens_of_every_file_are_registered_as_officially(checkpoint, case):
    tokenize = TextTokenizer(bare_tokenizer(checkpoint, case["files"]), 1024)
    assert [tokenize(row["text"]) for row in case["rows"]] == [row["ids"] for row in case["rows"]]


@pytest.mark.parametrize("vocab_size", [609, 73448])
def test_a_vocabulary_of_the_model_that_is_larger_changes_no_token(checkpoint, vocab_size):
    """Tokens beside the vocabulary take the numbers behind it, whatever room the model has."""
    case = next(case for case in TOKENIZERS if case["name"] == "legacy")
    tokenize = TextTokenizer(bare_tokenizer(checkpoint, case["files"]), vocab_size)
    assert [tokenize(row["text"]) for row in case["rows"]] == [row["ids"] for row in case["rows"]]


def test_a_registered_name_in_a_text_is_one_token_and_another_one_is_spelled(checkpoint):
    """The goldens have both cases; otherwise they would show nothing."""
    ids = {case["name"]: case["rows"][0]["ids"] for case in TOKENIZERS}
    assert 101 in ids["listed"]
    assert 101 not in ids["none"]


def test_a_special_token_beyond_the_model_is_spelled(checkpoint):
    path = bare_tokenizer(checkpoint, {"tokenizer_config.json": {"pad_token": "<pad>"}})
    size = len(TextTokenizer(path, 608).bpe.get_vocab()) - 1
    tokenize = TextTokenizer(path, size)
    assert max(tokenize("a <pad>")) < size


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"add_prefix_space": True},
            "sets add_prefix_space: the released code then makes a tokenizer of tokenizer.mod",
        ),
        ({"added_tokens_decoder": {"x": {}}}, "special tokens .* cannot be read"),
        ([], "holds no JSON object"),
    ],
)
def test_a_tokenizer_that_cannot_be_imitated_is_refused(checkpoint, config, message):
    with pytest.raises(StartupError, match=message):
        TextTokenizer(bare_tokenizer(checkpoint, {"tokenizer_config.json": config}), 608)
