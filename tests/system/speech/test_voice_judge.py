"""The evaluation of the bundled voice: good speech passes its bounds, and bad speech does not."""

import asyncio
import importlib.util
import json
import sys
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.servers.servicers import serving

from tools.voice import evaluate, judge
from tools.voice.dataset import RATE, Plan, Speech, Utterance, write_plan, write_shard
from tools.voice.evaluate import Row, bounds, evaluate_all, page
from tools.voice.record import MODES, cases, record_all
from tools.voice.recordings import Case, recordings, store, wav
from tools.voice.voices import VOICES, find
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

SPEECH = Path(__file__).parents[2] / "tools/speech"
TEXT = "The train arrived ten minutes late."
needs_recognizer = pytest.mark.skipif(
    importlib.util.find_spec("pocketsphinx") is None, reason="needs pocketsphinx, of the `test` extra"
)


def speech(voice: str) -> np.ndarray:
    """TEXT by the teacher in a voice, at the recipe's rate."""
    with wave.open(str(SPEECH / f"{voice}.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def heard(voice: str) -> np.ndarray:
    """TEXT by the teacher in a voice, at the judges' rate."""
    return judge.heard(speech(voice), RATE)


@pytest.fixture(autouse=True)
def scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naturalness without the network of DNSMOS: full marks, for these tests judge other things."""
    monkeypatch.setattr(evaluate, "predicted", lambda samples: 4.0)


@pytest.fixture
def teacher(tmp_path) -> Speech:
    """TEXT, and another sentence with the same audio, in every voice."""
    write_plan(tmp_path / "teacher", Plan(2 * len(VOICES), 1, "x"))
    utterances = [Utterance(voice.name, text, speech(voice.name)) for text in (TEXT, "More.") for voice in VOICES]
    write_shard(tmp_path / "teacher", 0, utterances)
    return Speech(tmp_path / "teacher")


# -------------------------------------------------------------------- words


def test_edits():
    assert judge.edits("kitten", "sitting") == 3
    assert judge.edits("", "abc") == judge.edits("abc", "") == 3
    assert judge.edits(["the", "cat"], ["the", "cat"]) == 0


def test_errors_ignore_case_and_punctuation():
    assert judge.word_errors("Don't stop, now!", "don't stop now") == judge.Errors(0, 3)
    assert judge.word_errors(TEXT, "the train arrived minutes later") == judge.Errors(2, 6)
    assert judge.character_errors("A cat.", "a bat").rate == pytest.approx(1 / 5)
    assert judge.word_errors(TEXT, "").rate == 1
    assert (judge.Errors(1, 4) + judge.Errors(2, 2)).rate == 0.5


@needs_recognizer
def test_the_teacher_is_understood_after_noise():
    recognizer = judge.Recognizer()
    noise = np.random.default_rng(1).integers(-3000, 3000, judge.RATE // 4).astype(np.int16)
    for voice in VOICES:
        assert judge.word_errors(TEXT, recognizer.transcribe(heard(voice.name))).edits == 0
        assert judge.word_errors(TEXT, recognizer.transcribe(noise)).rate > 0.8


# ----------------------------------------------------------------- speakers


@pytest.mark.parametrize("hertz", [80, 120, 200, 320])
def test_pitch_of_a_buzz(hertz):
    buzz = np.zeros(judge.RATE, np.int16)
    buzz[:: round(judge.RATE / hertz)] = 20000
    assert judge.pitch(buzz) == pytest.approx(hertz, rel=0.02)


def test_silence_has_no_pitch():
    assert np.isnan(judge.pitch(np.zeros(judge.RATE, np.int16)))


def test_timbre_does_not_depend_on_loudness():
    x = heard("hazel")
    assert np.abs(judge.timbre(x) - judge.timbre(x // 3)).mean() < 0.5
    assert np.abs(judge.timbre(x) - judge.timbre(heard("miles"))).mean() > 2


def test_speakers_are_distinguished():
    speakers = {voice.name: judge.profile([heard(voice.name)]) for voice in VOICES}
    assert speakers["miles"].pitch < speakers["george"].pitch < speakers["hazel"].pitch
    for voice in VOICES:
        x = heard(voice.name)
        for half in (x[: len(x) // 2], x[len(x) // 2 :]):
            by_pitch = judge.nearest_by_pitch(judge.pitch(half), speakers)
            assert voice.name in (by_pitch, judge.nearest_by_timbre(judge.timbre(half), speakers))


def test_the_judges_hear_16_khz_of_a_file_too(tmp_path):
    """A memory-mapped array becomes one of integers, and silence stays silent."""
    assert not judge.heard(np.zeros(RATE, np.int16), RATE).any()
    np.save(tmp_path / "x.npy", speech("george"))
    x = judge.heard(np.load(tmp_path / "x.npy", mmap_mode="r"), RATE)
    assert x.dtype == np.int16 and len(x) == pytest.approx(len(speech("george")) * judge.RATE / RATE, abs=2)
    np.testing.assert_array_equal(x, heard("george"))
    assert judge.heard(x, judge.RATE) is x


# --------------------------------------------------------------- evaluation


def stored(folder: Path, audio: dict[str, str], finish_reason: str = "complete") -> Path:
    """Recordings of TEXT and "More." in mode `reference`. audio: for each voice, the voice in its recordings."""
    for voice, sound in audio.items():
        for text in (TEXT, "More."):
            store(folder, Case("reference", voice, text), speech(sound), finish_reason)
    return folder


@needs_recognizer
def test_the_teacher_passes_and_another_speaker_fails(teacher, tmp_path):
    own = {voice.name: voice.name for voice in VOICES}
    rows, verdicts = evaluate_all(teacher, stored(tmp_path / "own", own), ["reference"])
    assert [(one.mode, one.voice) for one in rows[2:4]] == [("teacher", "george"), ("reference", "hazel")]
    assert all(one.right_by_pitch == one.right_by_timbre == one.right_length == one.median_length == 1 for one in rows)
    assert not any(one.confused for one in rows)
    assert all(verdict.words.edits == 0 for verdict in verdicts if verdict.case.text == TEXT)
    broken = {bound.about for bound in bounds(rows) if not bound.holds}
    assert broken <= {"word error rate of hazel, reference, at most"}  # the teacher's "More." has TEXT as its audio

    swapped = {"hazel": "miles", "miles": "hazel", "george": "george"}
    rows, _ = evaluate_all(teacher, stored(tmp_path / "swapped", swapped, "max_steps"), ["reference"])
    assert [one.right_by_pitch for one in rows[3:]] == [one.right_by_timbre for one in rows[3:]] == [0, 0, 1]
    assert [one.confused for one in rows[3:]] == [2, 2, 0]
    broken = [bound.about.split(",")[0] for bound in bounds(rows) if not bound.holds]
    assert {"recordings with a confused speaker", "recordings that did not end by themselves"} <= set(broken)


@needs_recognizer
def test_silence_is_evaluated(teacher, tmp_path):
    for text in (TEXT, "More."):
        for voice in VOICES:
            store(tmp_path / "silent", Case("prompt", voice.name, text), np.zeros(RATE, np.int16), "complete")
    rows, _ = evaluate_all(teacher, tmp_path / "silent", ["prompt"])
    for one in rows[3:]:
        assert one.confused == 2
        assert (one.word_error_rate, one.right_by_pitch, one.right_by_timbre, one.right_length) == (1, 0, 0, 0)


def test_a_missing_recording_is_named(teacher, tmp_path):
    with pytest.raises(ValueError, match=r"no recording of Case\(mode='reference', voice='hazel'"):
        evaluate_all(teacher, tmp_path, ["reference"])


GOOD = Row("teacher", "miles", 100, 4.0, 0.04, 0.02, 1, 1, 0, 1, 1, 0)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"naturalness": 3.76}, []),
        ({"naturalness": 3.74}, ["naturalness of miles"]),
        ({"word_error_rate": 0.045}, []),
        ({"word_error_rate": 0.047}, ["word error rate of miles"]),
        ({"right_by_pitch": 0.9, "right_by_timbre": 0.95}, []),
        ({"confused": 1}, ["recordings with a confused speaker"]),
        ({"right_length": 0.94}, ["length within 15% of the teacher's"]),
        ({"capped": 1}, ["recordings that did not end by themselves"]),
    ],
)
def test_each_bound_is_checked(changes, broken):
    found = bounds([GOOD, replace(GOOD, mode="codec", naturalness=1), replace(GOOD, mode="prompt", **changes)])
    assert [bound.about.split(",")[0] for bound in found if not bound.holds] == broken


def test_the_default_voice_has_bounds_of_its_own():
    teacher = replace(GOOD, voice=VOICES[0].name, naturalness=3.8, word_error_rate=0.08)
    found = bounds([teacher, replace(teacher, mode="prompt", naturalness=3.69, word_error_rate=0.061)])
    assert [(bound.limit, bound.holds) for bound in found[:2]] == [(evaluate.NATURAL, False), (0.06, False)]


# ---------------------------------------------------------------- a server


class Parrot(tts_pb2_grpc.VoxCPMServiceServicer):
    """Speaks the same audio for every request, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[pb.GenerateConfig, str]] = []
        self.target = ""

    def Generate(self, request_iterator, context):
        messages = list(request_iterator)
        config = messages[0].config
        self.requests.append((config, "".join(message.text for message in messages[1:])))
        header = pb.StreamHeader(request_id=config.request_id, format=config.output)
        audio = speech("hazel").tobytes()
        yield pb.AudioChunk(header=header, audio=audio, sample_count=len(audio) // 2)
        yield pb.AudioChunk(sequence=1, summary=pb.StreamSummary(finish_reason=pb.FINISH_REASON_MAX_STEPS))


@pytest.fixture
def parrot():
    servicer = Parrot()
    with serving(servicer) as servicer.target:
        yield servicer


def test_every_case_is_recorded_once(parrot, teacher, tmp_path):
    folder = tmp_path / "recordings"
    store(folder, Case("prompt", "george", TEXT), speech("george"), "complete")  # of a run that was stopped
    for _ in range(2):
        asyncio.run(record_all(parrot.target, teacher, MODES, folder, first_seed=40, timesteps=4))
    there = {one.case: one for one in recordings(folder)}
    assert there.keys() == set(cases([TEXT, "More."], MODES)) and len(parrot.requests) == len(there) - 1 == 23
    new = there[Case("described", "miles", TEXT)]
    assert new.finish_reason == "max_steps" and np.array_equal(new.samples(), speech("hazel"))
    for config, text in parrot.requests:
        assert text in (TEXT, "More.") and config.turn.sampling.inference_timesteps == 4
        assert config.output == pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=RATE)
        assert config.turn.sampling.seed == 40 + (text == "More.")


def test_each_mode_gives_the_speaker_in_its_way(parrot, teacher, tmp_path):
    asyncio.run(record_all(parrot.target, teacher, MODES, tmp_path / "recordings"))
    styles = {config.turn.style for config, _ in parrot.requests}
    assert styles == {"", *(voice.description for voice in VOICES)}
    given = {wav(speech(voice.name)) for voice in VOICES}
    for config, text in parrot.requests:
        prompt, reference = config.conditioning.inline_prompt, config.conditioning.inline_reference
        assert {prompt.audio.data, reference.audio.data} <= {b"", *given}
        if prompt.transcript:
            assert prompt.transcript == ("More. " if text == TEXT else TEXT + " ")  # never the sentence of the case
    kinds = [(bool(c.turn.style), c.conditioning.WhichOneof("prompt"), c.conditioning.WhichOneof("reference"))
             for c, _ in parrot.requests]  # fmt: skip
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        (True, None, None): 6,
        (False, None, "inline_reference"): 6,
        (False, "inline_prompt", None): 6,
        (False, "inline_prompt", "inline_reference"): 6,
    }


@needs_recognizer
def test_the_command_writes_a_page_and_fails_with_its_bounds(parrot, teacher, tmp_path, monkeypatch):
    words = [
        str(teacher.folder),
        str(tmp_path / "recordings"),
        "--target",
        parrot.target,
        "--modes",
        "prompt",
        "--processes",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", ["evaluate", *words, "--out", str(tmp_path / "voice")])
    assert evaluate.main() == 1  # all recordings sound like hazel and end at the length limit
    result = json.loads((tmp_path / "voice.json").read_text())
    assert [row["right_by_timbre"] for row in result["rows"]] == [1, 1, 1, 1, 0, 0]
    written = (tmp_path / "voice.md").read_text()
    assert written == page(result) and "**Not all bounds hold.**" in written
    assert f"hazel is {find('hazel').description}" in written
