"""The training of the bundled voice computes the same as the official modules, and writes files that they read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.clients.recipe import run_command

from tools.voice import batches, tokens
from tools.voice.batches import AUDIO, Layout, Sequence
from tools.voice.codec_losses import ComponentLoss
from tools.voice.codec_trainer import Trainer
from tools.voice.crops import Crops
from tools.voice.dataset import RATE, Plan, Speech, Utterance, write_plan, write_shard
from tools.voice.encode import Corpus
from tools.voice.shapes import LATENT, PATCH, codec_config, model_config
from tools.voice.start import codec_of
from tools.voice.voices import VOICES


def drawn(corpus: Corpus, count: int) -> list[Sequence]:
    composer, rng = batches.Composer(corpus), np.random.default_rng(5)
    return [composer.draw(i % len(corpus), rng) for i in range(count)]


def test_training_pass_equals_the_official_model(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.voice import official
    from tools.voice.model import Forward, LayerFunctions, VoiceModel, new_reader

    torch.manual_seed(0)
    config = model_config(tokens.VOCABULARY, toy=True)
    net = VoiceModel(config)
    rows, width = [row for row in drawn(corpus, 12) if len(row.ids) <= 128][:6], 128
    layout = Layout(positions=len(rows) * width, context=400, target=200)
    array = torch.from_numpy(batches.assemble(rows, width, layout, np.random.default_rng(0)))
    parts = {name: part.long() for name, part in layout.parts(array).items()}
    table = torch.from_numpy(corpus.patches).float()
    forward = Forward(net, new_reader(net), torch.float32, torch.device("cpu"), LayerFunctions())
    audio = parts["marks"] >= AUDIO
    y, z = forward.hidden(parts["ids"], audio, table[parts["context"]], parts["context_at"], width)
    mu = forward.conditions(y, z, parts["target_at"])

    ids, patch = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)], patch[i, : len(row.ids)] = torch.from_numpy(row.ids), torch.from_numpy(row.patch)
    net.train()
    encoded = net.enc_to_lm_proj(net.feat_encoder(table[patch]))
    mask = (patch > 0).unsqueeze(-1)
    mixed = torch.where(mask, encoded, net.base_lm.embed_tokens(ids))
    out, _ = net.base_lm(inputs_embeds=mixed, is_causal=True)
    out = torch.where(mask, net.fsq_layer(out), out)
    residual, _ = net.residual_lm(
        inputs_embeds=net.fusion_concat_proj(torch.cat((out, mask * encoded), -1)), is_causal=True
    )
    past = parts["target_at"] - 1
    expected = torch.cat(
        (net.lm_to_dit_proj(out.flatten(0, 1)[past]), net.res_to_dit_proj(residual.flatten(0, 1)[past])), -1
    )
    torch.testing.assert_close(mu.flatten(1), expected, rtol=1e-4, atol=1e-5)

    torch.testing.assert_close(
        forward.stop_logits(y), net.stop_head(torch.nn.functional.silu(net.stop_proj(out.flatten(0, 1)))),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    x, before = torch.randn(len(mu), PATCH, LATENT), table[parts["previous"]]
    time = torch.rand(len(mu))
    flow = forward.velocity(x, mu, time, before)
    theirs = net.feat_decoder.estimator(
        x.transpose(1, 2), expected, time, before.transpose(1, 2), torch.zeros_like(time)
    )
    torch.testing.assert_close(flow.transpose(1, 2), theirs, rtol=1e-4, atol=1e-4)
    assert official.module("modules.minicpm4")


def test_every_patch_of_an_utterance_is_a_target_and_the_last_one_stops(corpus: Corpus) -> None:
    for row in drawn(corpus, 200):
        targets = np.flatnonzero(row.target)
        assert (np.diff(targets) == 1).all() and row.ids[targets[0] - 1] in (0, tokens.AUDIO_START)
        assert (row.marks[targets[:-1]] == batches.CONTINUE).all()
        assert (row.marks[targets[-1] :] == batches.STOP).all()
        assert (row.ids[row.patch > 0] == 0).all()


def test_every_patch_to_predict_names_the_token_that_sounds_in_it(corpus: Corpus) -> None:
    owner = {}
    for i, (first, count) in enumerate(zip(corpus.right, corpus.count, strict=True)):
        owner |= dict.fromkeys(range(first, first + count), i)
    for row in drawn(corpus, 200):
        for at in np.flatnonzero(row.target):
            spoken = corpus.text(owner[row.patch[at]])[corpus.letter[row.patch[at]]]
            assert row.letter[at] == 0 or row.ids[row.letter[at]] == spoken
        assert not row.letter[~row.target].any() and row.letter.any()


def test_a_batch_has_each_row_once_and_predicts_targets_only(corpus: Corpus) -> None:
    layout = Layout(positions=1536, context=900, target=500)
    for batch in batches.batched(drawn(corpus, 60), layout, np.random.default_rng(1)):
        parts = layout.parts(batch.array)
        real = parts["context_at"] < layout.positions
        assert (parts["marks"][parts["context_at"][real]] >= AUDIO).all()
        where = dict(zip(parts["context_at"][real].tolist(), parts["context"][real].tolist(), strict=True))
        for at, target, previous in zip(parts["target_at"], parts["target"], parts["previous"], strict=True):
            assert where[at] == target and where.get(at - 1, 0) == previous
        named = np.flatnonzero(parts["letter"])
        assert (parts["letter"][named] // batch.width == named // batch.width).all(), "a letter of its own row"
        assert (parts["ids"][parts["letter"][named]] > 0).all()


def official_codec(config: dict[str, Any], tensors: dict[str, Any] | None = None) -> Any:
    from tools.voice import official, quick_codec

    audio_vae = official.module("modules.audiovae.audio_vae_v2")
    audio_vae.snake = quick_codec.plain_snake
    codec = audio_vae.AudioVAE(audio_vae.AudioVAEConfig(**config))
    if tensors is not None:
        codec.load_state_dict(tensors, strict=False)
    return codec


def test_quick_codec_equals_the_official_codec() -> None:
    from tools.voice import quick_codec

    torch.manual_seed(0)
    config = codec_config(toy=True)
    slow = official_codec(config)
    quick = quick_codec.build(config, slow.state_dict())
    audio = torch.randn(2, 1, 4800)
    latents = slow.encode(audio, config["sample_rate"])
    torch.testing.assert_close(quick.encode(audio, config["sample_rate"]), latents, rtol=1e-4, atol=1e-5)
    latents = torch.randn_like(latents)
    torch.testing.assert_close(quick.decode(latents), slow.decode(latents), rtol=1e-4, atol=1e-5)


def test_weights_of_another_codec_are_refused() -> None:
    from tools.voice import quick_codec

    config = codec_config(toy=True)
    tensors = quick_codec.file_tensors(dict(quick_codec.build(config).named_parameters()))
    del tensors["decoder.model.1.bias"]
    with pytest.raises(ValueError, match=r"decoder\.model\.1\.bias"):
        quick_codec.build(config, tensors)


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard of four tones."""
    folder, time = tmp_path_factory.mktemp("speech"), np.arange(RATE * 2) / RATE
    tones = [(8000 * np.sin(2 * np.pi * pitch * time)).astype(np.int16) for pitch in (110, 150, 220, 300)]
    write_plan(folder, Plan(4, 1, "tones"))
    write_shard(folder, 0, [Utterance(VOICES[0].name, "Hello.", tone) for tone in tones])
    return folder


def train(speech: Path, out: Path, *flags: str) -> dict[str, Any]:
    """The tensors that two seconds of training write."""
    run_command("train_vae", speech, out, "--toy", "--seconds", "2", "--batch", "2", *flags)
    return load_file(out / "audiovae.safetensors")


@pytest.fixture(scope="module")
def alone(speech: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a codec whose encoder was trained alone."""
    folder = tmp_path_factory.mktemp("alone")
    train(speech, folder, "--alone", "1")
    return folder


def test_a_codec_is_trained_and_then_its_decoder_alone(speech: Path, tmp_path: Path) -> None:
    """The official codec reads the files; latents have unit deviation, and do not change in the second training."""
    config, audio = codec_config(toy=True), torch.from_numpy(Speech(speech)[1].samples / 32768).float()[None, None]
    first = train(speech, tmp_path / "first", "--alone", "0.5")
    assert json.loads((tmp_path / "first" / "codec.json").read_text()) == config
    codec = official_codec(config, first)
    latents = codec.encode(audio, RATE)
    assert 0.2 < float(latents.detach().std()) < 5  # of one tone of the four

    later = train(speech, tmp_path / "later", "--alone", "1", "--start", str(tmp_path / "first"))
    changed = {name for name in first if not torch.equal(first[name], later[name])}
    assert changed and all(name.startswith("decoder.") for name in changed)
    other = official_codec(config, later)
    torch.testing.assert_close(other.encode(audio, RATE), latents, rtol=0, atol=0)
    assert not torch.equal(other.decode(latents), codec.decode(latents))


def test_the_component_loss_gives_latents_from_which_the_spectrogram_follows() -> None:
    """Latents become uncorrelated components of unit deviation that determine most of the spectrogram."""
    torch.manual_seed(0)
    loss, audio = ComponentLoss(32, 960), torch.randn(40, RATE)
    loudness = 10 ** (2 * torch.rand(40, 100, 1) - 3)  # another every 10 ms
    audio = (audio.view(40, 100, -1) * loudness).flatten(1)
    patches = loss.patches(audio)
    assert patches.shape == (40, 25, 4 * ComponentLoss.BANDS)
    loss.fit(patches.flatten(0, 1))
    latents = torch.zeros(40, 32, 25, requires_grad=True)
    optimizer = torch.optim.Adam([latents], lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        loss(latents, audio).backward()
        optimizer.step()
    assert float(loss(latents, audio).detach()) < 0.01
    found = latents.detach().transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(torch.cov(found.T), torch.eye(32), rtol=0, atol=0.1)
    read = torch.linalg.lstsq(found, patches.flatten(0, 1) - loss.get_buffer("mean")).solution
    left = patches.flatten(0, 1) - loss.get_buffer("mean") - found @ read
    assert float(left.var()) < 0.2 * float(patches.var()), "most of the spectrogram is in the latents"


def test_components_without_variance_are_not_scaled_up() -> None:
    loss = ComponentLoss(8, 960)
    patches = torch.randn(500, 1) * torch.ones(4 * ComponentLoss.BANDS)
    loss.fit(patches)
    wanted = (patches - loss.get_buffer("mean")) @ loss.get_buffer("basis")
    deviation = wanted.std(0)
    torch.testing.assert_close(deviation[0], torch.tensor(1.0), rtol=0.01, atol=0)
    assert float(deviation[1:].max()) < 0.01 and bool(loss.get_buffer("basis").isfinite().all())


def test_the_component_loss_applies_only_to_a_trained_encoder(speech: Path, alone: Path) -> None:
    config, start = codec_of(alone)
    cpu = torch.device("cpu")
    for given, applies in ((None, True), (start, False)):
        trainer = Trainer(config, Crops(Speech(speech), 2, RATE, cpu, 1), cpu, start=given, peak=1e-3, alone=1.0)
        trainer.train(0.0)
        assert (float(trainer.last[1]) > 0) == applies


def test_a_continued_run_keeps_its_components(speech: Path, tmp_path: Path) -> None:
    """A continued run may find other speech, from which other components would follow."""
    config, cpu = codec_config(toy=True), torch.device("cpu")
    crops = [Crops(Speech(speech), 2, RATE, cpu, seed) for seed in (1, 2)]
    first, second = (Trainer(config, each, cpu, peak=1e-3, alone=1.0) for each in crops)
    assert not torch.equal(first.components.get_buffer("basis"), second.components.get_buffer("basis"))
    second.load(first.state())
    assert torch.equal(first.components.get_buffer("basis"), second.components.get_buffer("basis"))


def test_a_run_continues_from_a_brief_state(speech: Path, tmp_path: Path) -> None:
    """The brief file has no state of the optimizers; the time and the steps go on."""
    for_long = ("--alone", "1", "--seconds", "1000000", "--part", "0.1")  # a step or more
    train(speech, tmp_path, *for_long)
    (tmp_path / "state.pt").unlink()
    before = torch.load(tmp_path / "brief.pt", weights_only=True)
    assert "muon" not in before and before["codec"]["decoder.model.0.weight"].dtype == torch.float16
    train(speech, tmp_path, *for_long)
    after = torch.load(tmp_path / "brief.pt", weights_only=True)
    assert after["steps"] > before["steps"] and after["spent"] > before["spent"]
    assert torch.equal(after["components"]["basis"], before["components"]["basis"])


def test_an_encoder_that_is_trained_further_keeps_the_deviation_of_its_latents(
    speech: Path, alone: Path, tmp_path: Path
) -> None:
    first = load_file(alone / "audiovae.safetensors")
    later = train(speech, tmp_path, "--alone", "1", "--start", str(alone), "--whole")
    assert any(not torch.equal(first[name], later[name]) for name in first if name.startswith("encoder."))
    tones = [torch.from_numpy(utterance.samples / 32768).float() for utterance in Speech(speech)]
    latents = official_codec(codec_config(toy=True), later).encode(torch.stack(tones)[:, None], RATE)
    assert 0.5 < float(latents.detach().std(dim=(0, 2)).median()) < 2


def test_a_model_continues_from_a_brief_state(corpus: Corpus, tmp_path: Path) -> None:
    from tools.voice import encode

    encode.save(corpus, tmp_path / "latents")
    command = ("train_model", tmp_path / "latents", tmp_path / "model", "--toy", "--positions", "3840")
    command += ("--seconds", "0.1", "--processes")
    run_command(*command, "1")
    (tmp_path / "model" / "state.pt").unlink()
    before = torch.load(tmp_path / "model" / "brief.pt", weights_only=True)
    run_command(*command, "0")
    after = torch.load(tmp_path / "model" / "brief.pt", weights_only=True)
    assert after["steps"] == before["steps"]  # its time was used up before
    assert all(torch.equal(after["net"][name], before["net"][name]) for name in before["net"])


def test_an_unnamed_voice_is_the_first_one(corpus: Corpus) -> None:
    """Only rows of the first voice have neither a tag nor a recording before the target."""
    composer, rng = batches.Composer(corpus), np.random.default_rng(7)
    unnamed = set()
    for i in list(range(len(corpus))) * 20:
        row = composer.draw(i, rng)
        tag = composer.tags[corpus.voice[i]]
        before = row.ids[: int(np.flatnonzero(row.target)[0])]
        recorded = bool(row.patch[: len(before)].any())
        if not recorded and not np.array_equal(before[: len(tag)], tag):
            unnamed.add(int(corpus.voice[i]))
    assert unnamed == {0}


def test_a_checkpoint_gets_another_codec(speech: Path, tmp_path: Path) -> None:
    from tools.voice.export import export

    train(speech, tmp_path / "codec")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(model_config(tokens.VOCABULARY, toy=True)))
    save_file({"w": torch.ones(2)}, model / "averaged.safetensors")
    export(tmp_path / "codec", model, tmp_path / "checkpoint")
    later = train(speech, tmp_path / "later", "--start", str(tmp_path / "checkpoint"))
    export(tmp_path / "later", tmp_path / "checkpoint", tmp_path / "again")
    again = load_file(tmp_path / "again" / "audiovae.safetensors")
    assert all(torch.equal(again[name], later[name]) for name in later)
    assert torch.equal(load_file(tmp_path / "again" / "model.safetensors")["w"], torch.ones(2).half())


def test_a_checkpoint_is_written_from_a_brief_state_alone(alone: Path, tmp_path: Path) -> None:
    from tools.voice.export import export

    (tmp_path / "config.json").write_text(json.dumps(model_config(tokens.VOCABULARY, toy=True)))
    with pytest.raises(ValueError, match="has no weights"):
        export(alone, tmp_path, tmp_path / "checkpoint")
    torch.save({"net": {"w": torch.ones(2).half()}}, tmp_path / "brief.pt")
    export(alone, tmp_path, tmp_path / "checkpoint")
    assert torch.equal(load_file(tmp_path / "checkpoint" / "model.safetensors")["w"], torch.ones(2).half())


def test_the_matrices_of_a_convolution_are_updated_as_matrices() -> None:
    from tools.voice.muon import Muon

    torch.manual_seed(0)
    conv = torch.nn.Parameter(torch.randn(6, 4, 3))
    taps = [torch.nn.Parameter(conv.detach()[:, :, tap].clone()) for tap in range(3)]
    conv.grad = torch.randn_like(conv)
    for tap, matrix in enumerate(taps):
        matrix.grad = conv.grad[:, :, tap].clone()
    for weights in ([conv], taps):
        Muon(weights, torch.tensor(0.1), decay=0.1).step()
    torch.testing.assert_close(conv.detach(), torch.stack([matrix.detach() for matrix in taps], 2))
