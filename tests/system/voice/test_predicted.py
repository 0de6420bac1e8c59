"""Latents that the model predicts for known speech are those of inference, and the decoder learns that speech."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.clients.recipe import run_command
from torch import Tensor

from tools.voice import encode, quick_codec, tokens
from tools.voice.batches import Composer, Layout, batched
from tools.voice.codec_trainer import Trainer
from tools.voice.crops import Crops
from tools.voice.dataset import RATE, Plan, Speech, Utterance, write_plan, write_shard
from tools.voice.encode import Corpus
from tools.voice.model import VoiceModel
from tools.voice.predict import Predictor, row
from tools.voice.predicted import PredictedCrops, load_predicted, save_predicted
from tools.voice.shapes import LATENT, PATCH, codec_config, model_config, patch_samples
from tools.voice.voices import VOICES

FRAME = patch_samples(codec_config()) // PATCH  # samples of a latent


def official_patch(net: Any, corpus: Corpus, i: int, place: int, noise: Tensor) -> Tensor:
    """The patch that the official modules predict in utterance i after the true patches before it."""
    tokenizer = tokens.build()
    tag = tokenizer.encode(VOICES[corpus.voice[i]].tagged(""), add_special_tokens=False).ids
    ids = torch.tensor([[*tag, *corpus.text(i), tokens.AUDIO_START]])
    first = int(corpus.right[i])
    true = torch.from_numpy(np.array(corpus.patches[first : first + place])).float()[None]
    text = net.base_lm.embed_tokens(ids)
    sound = net.enc_to_lm_proj(net.feat_encoder(true)) if place else text[:, :0]
    out, _ = net.base_lm(inputs_embeds=torch.cat((text, sound), 1), is_causal=True)
    out = torch.cat((out[:, : ids.shape[1]], net.fsq_layer(out[:, ids.shape[1] :])), 1)
    both = torch.cat((out, torch.cat((torch.zeros_like(text), sound), 1)), -1)
    residual, _ = net.residual_lm(inputs_embeds=net.fusion_concat_proj(both), is_causal=True)
    mu = torch.cat((net.lm_to_dit_proj(out[:, -1]), net.res_to_dit_proj(residual[:, -1])), -1)
    before = true[:, -1] if place else torch.zeros(1, PATCH, LATENT)
    times = torch.linspace(1, 0, 11)
    times = times + (torch.cos(torch.pi / 2 * times) - 1 + times)  # as UnifiedCFM.forward makes them
    made = net.feat_decoder.solve_euler(noise.T[None], times, mu, before.transpose(1, 2), cfg_value=2.0)
    return made[0].T


def test_a_patch_is_predicted_as_the_official_inference_does(corpus: Corpus) -> None:
    torch.manual_seed(0)
    net = VoiceModel(model_config(tokens.VOCABULARY, toy=True))
    layout = Layout(768, 768, 768)
    predictor = Predictor(net, torch.from_numpy(corpus.patches), layout, 10, guidance=2.0, temperature=0.7)
    composer = Composer(corpus)
    (batch, *_) = batched([row(composer, i) for i in range(8)], layout, np.random.default_rng(0))
    with torch.inference_mode():
        target, patches = predictor(batch, torch.Generator().manual_seed(4))
        noise = 0.7 * torch.randn(patches.shape, generator=torch.Generator().manual_seed(4))
        rows = {patch: at for at, patch in enumerate(target.tolist())}
        places = [(i, place) for i in range(8) for place in (0, int(corpus.count[i]) - 1)]
        found = [(i, place) for i, place in places if corpus.right[i] + place in rows]
        for i, place in found:
            at = rows[corpus.right[i] + place]
            official = official_patch(net, corpus, i, place, noise[at])
            torch.testing.assert_close(patches[at], official, rtol=1e-4, atol=1e-4)
    assert len(found) >= 4 and float((patches - noise).abs().mean()) > 0.05


@pytest.fixture(scope="module")
def latents(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latents")
    encode.save(corpus, folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the brief state of a model alone, and its configuration."""
    folder = tmp_path_factory.mktemp("model")
    config = model_config(tokens.VOCABULARY, toy=True)
    (folder / "config.json").write_text(json.dumps(config))
    net = {name: weight.detach().half() for name, weight in VoiceModel(config).named_parameters()}
    torch.save({"net": net}, folder / "brief.pt")
    return folder


def predict(latents: Path, model: Path, out: Path, *flags: object) -> np.ndarray:
    run_command("predict", latents, model, out, "--positions", 3840, "--timesteps", 2, *flags)
    return load_predicted(out)


def test_every_patch_of_every_utterance_is_predicted(
    latents: Path, model: Path, corpus: Corpus, tmp_path: Path
) -> None:
    wanted = np.zeros(len(corpus.patches), bool)
    for first, count in zip(corpus.right, corpus.count, strict=True):
        wanted[first : first + count] = True
    whole = predict(latents, model, tmp_path)
    assert whole.dtype == np.float16 and whole.shape == corpus.patches.shape
    assert np.array_equal(whole.any((1, 2)), wanted)

    third = predict(latents, model, tmp_path / "third", "--every", 3)
    there = {int(first) for first in corpus.right if third[first].any()}
    assert there == set(corpus.right[::3].tolist())

    run_command("predict", latents, model, tmp_path, "--positions", 3840, "--timesteps", 2, "--share", "2/2")
    with pytest.raises(ValueError, match=r"lacks predicted-1-of-2\.npy"):
        load_predicted(tmp_path)
    shared = predict(latents, model, tmp_path, "--share", "1/2")
    assert np.array_equal(shared.any((1, 2)), wanted)


def test_the_noise_is_that_of_the_checkpoints_requests(latents: Path, model: Path, tmp_path: Path) -> None:
    official = predict(latents, model, tmp_path / "official", "--every", 9)
    quiet = predict(latents, model, tmp_path / "quiet", "--every", 9, "--temperature", 0.7)
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "generation_config.json").write_text('{"temperature": 0.7}')
    assert np.array_equal(predict(latents, folder, tmp_path / "named", "--every", 9), quiet)
    assert np.array_equal(predict(latents, folder, tmp_path / "given", "--every", 9, "--temperature", 1), official)
    assert not np.array_equal(quiet, official)


def test_averaged_weights_come_before_those_of_a_brief_state(latents: Path, model: Path, tmp_path: Path) -> None:
    brief = predict(latents, model, tmp_path / "brief")
    assert np.array_equal(predict(latents, model, tmp_path / "again"), brief)
    net = torch.load(model / "brief.pt", weights_only=True)["net"]
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "brief.pt"):
        (folder / name).write_bytes((model / name).read_bytes())
    save_file({name: 2 * weight.float() for name, weight in net.items()}, folder / "averaged.safetensors")
    assert not np.array_equal(predict(latents, folder, tmp_path / "averaged"), brief)


def numbered(folder: Path, frames: list[int]) -> tuple[Speech, Corpus]:
    """Utterances of so many latents, in two shards. Samples and latents of a frame are its number in the speech."""
    numbers = np.split(np.arange(sum(frames)) + 1, np.cumsum(frames)[:-1])
    spoken = [Utterance(VOICES[0].name, "Hello.", np.repeat(own, FRAME).astype(np.int16)) for own in numbers]
    write_plan(folder, Plan(len(frames), 2, "numbers"))
    write_shard(folder, 0, spoken[:2])
    write_shard(folder, 1, spoken[2:])
    count = -(-np.array(frames) // PATCH)
    right = 1 + np.concatenate(([0], np.cumsum(2 * count + 1)[:-1]))
    patches = np.zeros((int(1 + (2 * count + 1).sum()), PATCH, LATENT), np.float16)
    for first, own in zip(right, numbers, strict=True):
        patches.reshape(-1, LATENT)[first * PATCH : first * PATCH + len(own)] = own[:, None]
    zeros = np.zeros(len(frames), np.int64)
    return Speech(folder), Corpus(
        patches=patches, voice=zeros, count=count, right=right, left=right + count + 1,
        letter=np.full(len(patches), -1, np.int16), ids=zeros, start=zeros, length=zeros,
    )  # fmt: skip


def test_predicted_latents_come_with_their_own_speech(tmp_path: Path) -> None:
    """A crop lies within an utterance that is predicted and long enough."""
    speech, corpus = numbered(tmp_path, [9, 5, 3, 8, 14])
    patches = corpus.patches.copy()
    patches[corpus.right[3] : corpus.left[3]] = 0
    crops = Crops(speech, 1, 5 * FRAME, torch.device("cpu"), 1)
    pairs = PredictedCrops(crops, corpus, patches, 400, FRAME)
    pairs.draw()
    assert torch.equal(pairs.latents[:, 0].repeat_interleave(FRAME, 1), (pairs.audio * 32768).round())
    begins = pairs.latents[:, 0, 0].long() - 1
    assert set(begins.tolist()) == {*range(5), 9, *range(25, 35)}
    assert torch.equal(pairs.latents[:, 7, -1].long() - 1, begins + 4)


def test_the_latents_before_a_crop_are_those_of_its_utterance(tmp_path: Path) -> None:
    """The beginning of an utterance has fewer of them, and every stretch of an utterance is judged equally often."""
    speech, corpus = numbered(tmp_path, [9, 5, 3, 14])
    crops = Crops(speech, 1, 8 * FRAME, torch.device("cpu"), 1)
    pairs = PredictedCrops(crops, corpus, corpus.patches, 2000, FRAME, context=3)
    pairs.draw()
    frames = pairs.latents[:, 0].long()
    at = (pairs.first_judged // FRAME)[:, None] + torch.arange(5)
    judged = frames.gather(1, at)
    assert torch.equal(judged - judged[:, :1], torch.arange(5).expand(2000, 5))
    heard = (pairs.audio * 32768).round().long()[:, ::FRAME]
    assert torch.equal(heard.gather(1, at), judged)
    begins = judged[:, 0] - 1
    assert set(begins.tolist()) == {*range(5), 9, *range(17, 27)}
    within = torch.where(begins >= 17, begins - 17, begins % 9)
    assert torch.equal(at[:, 0], within.clamp(max=3))
    counts = torch.bincount(begins)
    assert counts[counts > 0].min() > 0.6 * 2000 / 16


def test_no_loss_judges_the_audio_before_the_judged_part(tmp_path: Path) -> None:
    speech, corpus = numbered(tmp_path, [9, 12, 14])
    config, cpu = codec_config(toy=True), torch.device("cpu")
    start = quick_codec.file_tensors(dict(quick_codec.build(config).named_parameters()))
    crops = Crops(speech, 1, 8 * FRAME, cpu, 1)
    pairs = PredictedCrops(crops, corpus, (corpus.patches * 1e-2).astype(np.float16), 1, FRAME, context=3)
    trainer = Trainer(
        config, crops, cpu, start=start, predicted=pairs, context=3 * FRAME, peak=1e-3, alone=0.0, toy=True
    )
    pairs.first_judged.fill_(FRAME)
    rows = torch.arange(2 * 8 * FRAME).view(2, -1)
    assert torch.equal(trainer.judged(rows), torch.stack((rows[0, 3 * FRAME :], rows[1, FRAME : 6 * FRAME])))
    trainer.train(0.0)
    assert bool(trainer.last.isfinite().all()) and float(trainer.last[5]) > 0


def test_latents_of_other_speech_are_refused(tmp_path: Path) -> None:
    speech, corpus = numbered(tmp_path / "one", [9, 5, 3, 8, 14])
    _, other = numbered(tmp_path / "other", [9, 5, 3, 8, 18])
    crops = Crops(speech, 1, 5 * FRAME, torch.device("cpu"), 1)
    with pytest.raises(ValueError, match="not those of this speech"):
        PredictedCrops(crops, other, other.patches, 1, FRAME)
    with pytest.raises(ValueError, match="predict again"):
        PredictedCrops(crops, corpus, corpus.patches[:-1], 1, FRAME)
    with pytest.raises(ValueError, match="no predicted utterance has the 5 latents"):
        PredictedCrops(crops, corpus, np.zeros_like(corpus.patches), 1, FRAME)


def test_a_step_depends_on_the_predicted_latents(tmp_path: Path) -> None:
    speech, corpus = numbered(tmp_path, [9, 12, 14])
    config, cpu = codec_config(toy=True), torch.device("cpu")
    start = quick_codec.file_tensors(dict(quick_codec.build(config).named_parameters()))
    weights = []
    for scale in (1e-2, 1e-2, 2e-2):
        torch.manual_seed(0)
        crops = Crops(speech, 1, 8 * FRAME, cpu, 1)
        pairs = PredictedCrops(crops, corpus, (corpus.patches * scale).astype(np.float16), 1, FRAME)
        trainer = Trainer(config, crops, cpu, start=start, predicted=pairs, peak=1e-2, alone=1.0)
        trainer.train(0.0)
        weights.append(trainer.codec.state_dict()["decoder.model.0.weight"])
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])


def test_a_decoder_is_trained_on_predicted_latents(tmp_path: Path) -> None:
    """The encoder does not change."""
    folder = tmp_path / "speech"
    random = np.random.default_rng(0)
    spoken = [random.integers(-9000, 9000, RATE).astype(np.int16) for _ in range(2)]
    write_plan(folder, Plan(2, 1, "noise"))
    write_shard(folder, 0, [Utterance(VOICES[0].name, "Hello.", samples) for samples in spoken])
    short = ("--toy", "--batch", 2, "--crop", 0.4)
    run_command("train_vae", folder, tmp_path / "codec", *short, "--seconds", 0.5, "--alone", 1)
    run_command("encode", folder, tmp_path / "codec", tmp_path / "latents")
    save_predicted(tmp_path / "predicted", (1, 1), encode.load(tmp_path / "latents").patches)
    run_command(
        "train_vae", folder, tmp_path / "later", *short, "--seconds", 3, "--alone", 0.5, "--start", tmp_path / "codec",
        "--predicted", tmp_path / "predicted", "--latents", tmp_path / "latents",
    )  # fmt: skip
    first, later = (load_file(tmp_path / name / "audiovae.safetensors") for name in ("codec", "later"))
    changed = {name for name in first if not torch.equal(first[name], later[name])}
    assert changed and all(name.startswith("decoder.") for name in changed)
