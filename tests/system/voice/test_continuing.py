"""A training that continues a checkpoint begins with what that learned, and new helper networks do not spoil it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.clients.recipe import run_command
from torch import Tensor

from tools.voice import batches, encode, quick_codec, tokens, train_model
from tools.voice.batches import Batch, Layout
from tools.voice.codec_trainer import Trainer
from tools.voice.crops import Crops
from tools.voice.dataset import RATE, Plan, Speech, Utterance, write_plan, write_shard
from tools.voice.encode import Corpus
from tools.voice.pace import rate
from tools.voice.shapes import codec_config, model_config
from tools.voice.start import DISCRIMINATORS, HELPERS, READER, helper_of, save_helpers
from tools.voice.voices import VOICES

CPU = torch.device("cpu")
LAYOUT = Layout(positions=1536, context=900, target=500)


# ---------------------------------------------------------------- the codec


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("speech"), np.random.default_rng(0)
    write_plan(folder, Plan(2, 1, "noise"))
    noise = [random.integers(-9000, 9000, RATE).astype(np.int16) for _ in range(2)]
    write_shard(folder, 0, [Utterance(VOICES[0].name, "Hello.", samples) for samples in noise])
    return folder


def decoder_trainer(speech: Path, lead: int) -> Trainer:
    torch.manual_seed(0)
    config = codec_config(toy=True)
    start = quick_codec.file_tensors(dict(quick_codec.build(config).named_parameters()))
    crops = Crops(Speech(speech), 2, 9600, CPU, 1)
    return Trainer(config, crops, CPU, start=start, peak=1e-3, alone=0.0, lead=lead, toy=True)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before)


def test_new_discriminators_learn_before_the_decoder_learns_from_them(speech: Path) -> None:
    """The decoder's learning rate begins to rise with its own first step."""
    trainer = decoder_trainer(speech, lead=3)
    codec, judges = copies(trainer.codec.state_dict()), copies(trainer.discriminators.state_dict())
    for _ in range(3):
        trainer.train(0.1)
    assert not changed(codec, trainer.codec.state_dict()) and not changed(codec, trainer.mean)
    assert changed(judges, trainer.discriminators.state_dict()) and float(trainer.last[4]) > 0
    trainer.train(0.1)
    assert changed(codec, trainer.codec.state_dict())
    assert float(trainer.rate) == pytest.approx(rate(0.1, 0, peak=1e-3, warmup=100, decay_from=0.4))


@pytest.mark.parametrize("brief", [False, True])
def test_an_interrupted_lead_goes_on(speech: Path, brief: bool) -> None:
    trainer, later = decoder_trainer(speech, lead=3), decoder_trainer(speech, lead=3)
    for _ in range(2):
        trainer.train(0.1)
    later.load(trainer.brief() if brief else trainer.state())
    assert later.lead == 1 and later.steps == 2


def test_the_learning_rate_rises_again_without_the_state_of_the_optimizers(speech: Path) -> None:
    trainer, later = decoder_trainer(speech, lead=0), decoder_trainer(speech, lead=0)
    trainer.steps = 5000
    trainer.train(0.1)
    assert float(trainer.rate) == pytest.approx(1e-3)
    later.load(trainer.brief())
    later.train(0.1)
    assert float(later.rate) == pytest.approx(1e-5)


def test_discriminators_of_a_backup_need_no_lead(speech: Path, tmp_path: Path) -> None:
    short = ("--toy", "--batch", 2, "--crop", 0.4, "--alone", 0, "--seconds", 0.1)
    run_command("train_vae", speech, tmp_path / "first", *short)
    run_command("train_vae", speech, tmp_path / "new", *short, "--start", tmp_path / "first")
    assert torch.load(tmp_path / "new/brief.pt", weights_only=True)["lead"] > 200
    assert save_helpers({DISCRIMINATORS: tmp_path / "first"}, None, tmp_path / "first" / HELPERS)
    run_command("train_vae", speech, tmp_path / "known", *short, "--start", tmp_path / "first")
    brief = torch.load(tmp_path / "known/brief.pt", weights_only=True)
    assert brief["lead"] == 0
    for name, tensor in (helper_of(tmp_path / "first", DISCRIMINATORS) or {}).items():
        torch.testing.assert_close(brief[DISCRIMINATORS][name], tensor, rtol=0.1, atol=0.02)


# ---------------------------------------------------------------- the model


def model_trainer(corpus: Corpus, seed: int) -> train_model.Trainer:
    torch.manual_seed(seed)
    config = model_config(tokens.VOCABULARY, toy=True)
    table = torch.from_numpy(corpus.patches)
    return train_model.Trainer(config, table, LAYOUT, CPU, 1e-3, fast=False, adamw=False)


def some_batches(corpus: Corpus, layout: Layout = LAYOUT) -> list[Batch]:
    composer, rng = batches.Composer(corpus), np.random.default_rng(5)
    return batches.batched([composer.draw(i, rng) for i in range(len(corpus))], layout, rng)


def test_a_model_begins_at_the_losses_of_its_checkpoint(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_model, "HELD", LAYOUT)
    held = some_batches(corpus)[:1]
    trained, fresh, later = (model_trainer(corpus, seed) for seed in (0, 1, 1))
    with torch.no_grad():
        for weight in trained.trained:
            weight.mul_(1.5)
    weights = {name: weight.detach().half() for name, weight in trained.weights.items()}
    later.begin(weights, trained.reader.state_dict())
    first, known, new = (trainer.validate(held) for trainer in (trained, later, fresh))
    assert known == pytest.approx(first, rel=5e-3)
    assert all(abs(other / own - 1) > 0.02 for own, other in zip(first, new, strict=True)), "others are not these"
    assert later.lead == 0


def test_a_model_does_not_learn_from_a_new_reader_at_first(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_model, "READER_LEAD", 1)
    trainer = model_trainer(corpus, 0)
    trainer.begin(copies(trainer.weights))
    assert trainer.lead == 1
    (batch, *_) = some_batches(corpus)
    pulls, forward = [], trainer.forward
    for _ in range(2):
        trainer.train(batch, 0.0)
        pulls.append(float(forward.pull))
    assert pulls == [0.0, 1.0]
    parts = {name: part.long() for name, part in LAYOUT.parts(torch.from_numpy(batch.array)).items()}
    audio = parts["marks"] >= batches.AUDIO
    for pull in (0.0, 1.0):
        forward.pull.fill_(pull)
        trainer.reset()
        y, _ = forward.hidden(parts["ids"], audio, trainer.table[parts["context"]], parts["context_at"], batch.width)
        forward.letters_loss(y, parts["ids"], parts["letter"]).backward()
        reader, embedding = trainer.reader.weight.grad, trainer.net.base_lm.embed_tokens.weight.grad
        assert reader is not None and bool(reader.any())
        assert embedding is not None and bool(embedding.any()) == bool(pull)


def test_a_model_starts_with_a_checkpoint_and_the_reader_of_a_backup(corpus: Corpus, tmp_path: Path) -> None:
    latents, first, later = (tmp_path / name for name in ("latents", "first", "later"))
    encode.save(corpus, latents)
    flags = ("--toy", "--seconds", 0.1, "--positions", 3840, "--processes", 0)
    run_command("train_model", latents, first, *flags)
    before = load_file(first / "averaged.safetensors")
    save_file(before, first / "model.safetensors")
    assert save_helpers({READER: first, DISCRIMINATORS: tmp_path}, None, first / HELPERS)
    output = run_command("train_model", latents, later, *flags, "--start", first, "--rate", 1e-12)
    assert "at the start" in output
    after = load_file(later / "averaged.safetensors")
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=1e-5, atol=1e-7)
    state = torch.load(later / "brief.pt", weights_only=True)
    known = helper_of(first, READER)
    assert known is not None and state["lead"] == 0
    torch.testing.assert_close(state[READER], known, rtol=1e-3, atol=1e-5)


def test_helpers_that_are_not_trained_are_those_of_the_start(tmp_path: Path) -> None:
    start, own = tmp_path / "start", tmp_path / "own"
    start.mkdir()
    own.mkdir()
    assert not save_helpers({READER: own}, start, tmp_path / HELPERS)
    torch.save({READER: {"weight": torch.ones(2)}}, start / HELPERS)
    assert save_helpers({READER: own}, start, tmp_path / HELPERS)
    assert torch.equal((helper_of(tmp_path, READER) or {})["weight"], torch.ones(2))
    torch.save({READER: {"weight": torch.zeros(2)}}, own / "brief.pt")
    assert save_helpers({READER: own}, start, tmp_path / HELPERS)
    assert torch.equal((helper_of(tmp_path, READER) or {})["weight"], torch.zeros(2))
