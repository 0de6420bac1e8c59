"""The measurement of sentences that are cut at a clause: its requests, its checks and its counts."""

import importlib.util
import json
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from support.servers.servicers import serving

from tools.voice import clauses, judge, text
from tools.voice.clauses import EAGER, INDEPENDENT, MODES, WHOLE, Verdict, cases, checked, difference, folder_of, rows
from tools.voice.dataset import RATE
from tools.voice.recordings import Case, SpokenSegment, recordings, store
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.text.segments.segmenter import Segmenter
from voxcpm_server.values.inputs import FirstSegment, Segmentation
from voxcpm_server.values.outputs import CutReason

SPEECH = Path(__file__).parents[2] / "tools/speech"
TEXT = "The train arrived, ten minutes late."
OTHER = "Late, the train arrived."
SENTENCES = clauses.SENTENCES.read_text(encoding="utf-8").splitlines()
CLAUSE, FLUSH = pb.CUT_REASON_CLAUSE, pb.CUT_REASON_FLUSH
needs_recognizer = pytest.mark.skipif(
    importlib.util.find_spec("pocketsphinx") is None, reason="needs pocketsphinx, of the `test` extra"
)


def speech() -> np.ndarray:
    """TEXT in the voice miles."""
    with wave.open(str(SPEECH / "miles.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


# ---------------------------------------------------------------- sentences


def test_there_are_a_hundred_different_sentences_unlike_the_held_out_ones():
    near = text.too_near(text.HELD_OUT.read_text(encoding="utf-8").splitlines())
    assert len(SENTENCES) == len(set(SENTENCES)) == 100
    for sentence in SENTENCES:
        assert 10 <= len(text.words(sentence)) <= 20 and text.PLAIN.fullmatch(sentence) and not near(sentence)


@pytest.mark.parametrize("first", FirstSegment)
def test_eager_cuts_each_of_them_at_a_clause_and_sentence_cuts_none(first):
    for sentence in SENTENCES:
        segmenter = Segmenter(Segmentation(first_segment=first))
        reasons = [segment.cut for segment in (*segmenter.feed(sentence), *segmenter.flush())]
        assert reasons[-1] is CutReason.FLUSH
        assert set(reasons[:-1]) == ({CutReason.CLAUSE} if first is FirstSegment.EAGER else set())


# ----------------------------------------------------------------- counting


def one(mode: str, seed: int, sentence: str, edits: int, words: int = 10) -> Verdict:
    errors = judge.Errors(edits, words)
    return Verdict(mode, seed, sentence, "A part,", "", errors, judge.Errors(2 * edits, 5 * words), 1.5, edits > 5)


def test_rows_count_each_seed_and_all():
    found = rows([one(mode, seed, "A.", seed) for seed in (1, 2) for mode in MODES])
    assert [(row.seed, row.mode) for row in found] == [(seed, mode) for seed in ("1", "2", "all") for mode in MODES]
    last = found[-1]
    assert (last.recordings, last.words, last.word_errors, last.word_error_rate) == (2, 20, 3, 0.15)
    assert (last.character_error_rate, last.seconds, last.capped) == (0.06, 3.0, 0)
    alone = rows([one(mode, 1, "A.", 0) for mode in MODES])
    assert [row.seed for row in alone] == ["1"] * len(MODES)


def test_a_difference_that_is_the_same_in_all_sentences_is_certain():
    verdicts = [one(mode, 1, name, (mode == EAGER) + 1) for name in ("A.", "B.", "C.") for mode in MODES]
    found = difference(EAGER, "words", verdicts)
    assert found.difference == found.low == found.high == 0.1
    assert difference(EAGER, "characters", verdicts).difference == pytest.approx(0.04)
    assert difference(INDEPENDENT, "words", verdicts).difference == 0


def test_a_difference_in_few_sentences_is_uncertain_with_any_number_of_seeds():
    def verdicts(seeds: int) -> list[Verdict]:
        return [
            one(mode, seed, str(sentence), 5 if mode == EAGER and not sentence else 0)
            for seed in range(seeds)
            for sentence in range(20)
            for mode in (WHOLE, EAGER)
        ]

    few, many = difference(EAGER, "words", verdicts(1)), difference(EAGER, "words", verdicts(5))
    assert few == many and few.difference == pytest.approx(0.025)
    assert few.low == 0 and 0.05 <= few.high <= 0.125  # none, and two to five of 20 draws of the one bad sentence


# ------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("mode", "reasons", "right"),
    [
        (WHOLE, ["flush"], True),
        (WHOLE, ["clause", "flush"], False),
        (WHOLE, ["sentence", "flush"], False),
        (EAGER, ["clause", "flush"], True),
        (EAGER, ["clause", "clause", "flush"], True),
        (EAGER, ["flush"], False),
        (INDEPENDENT, ["sentence", "flush"], False),
        (EAGER, [], False),
        (WHOLE, [], False),
    ],
)
def test_a_recording_with_other_cuts_is_refused(tmp_path, mode, reasons, right):
    case = Case(mode, "miles", TEXT)
    store(tmp_path, case, speech(), "complete", [SpokenSegment("x", reason) for reason in reasons])
    if right:
        assert [recording.case for recording in checked(tmp_path, [case])] == [case]
    else:
        with pytest.raises(ValueError, match="did not cut Case"):
            checked(tmp_path, [case])


def test_a_missing_recording_is_named(tmp_path):
    with pytest.raises(ValueError, match="no recording of Case"):
        checked(tmp_path, cases([TEXT], "miles"))


# ------------------------------------------------------------------ a server


class Cutter(tts_pb2_grpc.VoxCPMServiceServicer):
    """Speaks the same audio for every text, with eager mode in two segments, which lack the samples of `lost`."""

    def __init__(self) -> None:
        self.requests: list[tuple[pb.GenerateConfig, str]] = []
        self.lost = slice(0, 0)
        self.target = ""

    def Generate(self, request_iterator, context):
        messages = list(request_iterator)
        config, text = messages[0].config, "".join(message.text for message in messages[1:])
        self.requests.append((config, text))
        eager = config.segmentation.first_segment == pb.FIRST_SEGMENT_EAGER
        comma = text.index(",") + 1
        parts = [(text[:comma], CLAUSE), (text[comma + 1 :], FLUSH)] if eager else [(text, FLUSH)]
        for index, (part, reason) in enumerate(parts):
            samples = np.array_split(speech(), len(parts))[index]
            if eager:
                samples = np.delete(samples, self.lost)
            header = pb.StreamHeader(request_id=config.request_id, format=config.output)
            events = [
                pb.SegmentEvent(kind=pb.SEGMENT_EVENT_KIND_STARTED, segment_index=index, text=part, cut_reason=reason),
                pb.SegmentEvent(
                    kind=pb.SEGMENT_EVENT_KIND_FINISHED,
                    segment_index=index,
                    cut_reason=reason,
                    finish_reason=pb.FINISH_REASON_COMPLETE if index else pb.FINISH_REASON_MAX_STEPS,
                ),
            ]
            yield pb.AudioChunk(
                header=None if index else header,
                sequence=index,
                audio=samples.tobytes(),
                sample_count=len(samples),
                segment_events=events,
            )
        yield pb.AudioChunk(sequence=9, summary=pb.StreamSummary(finish_reason=pb.FINISH_REASON_COMPLETE))


@pytest.fixture
def cutter():
    servicer = Cutter()
    with serving(servicer) as servicer.target:
        yield servicer


def test_every_mode_is_recorded_once_with_the_same_seed(cutter, tmp_path):
    for _ in range(2):
        clauses.speak_all(cutter.target, [TEXT, OTHER], "miles", [1, 2], tmp_path, timesteps=4)
    assert len(cutter.requests) == 2 * 2 * len(MODES)
    assert {config.conditioning.voice for config, _ in cutter.requests} == {"miles"}
    assert {config.turn.sampling.inference_timesteps for config, _ in cutter.requests} == {4}
    seeds = [(config.turn.sampling.seed, text) for config, text in cutter.requests]
    assert {one: seeds.count(one) for one in seeds} == dict.fromkeys(
        [(1000, TEXT), (1001, OTHER), (2000, TEXT), (2001, OTHER)], len(MODES)
    )
    ways = {(config.segmentation.first_segment, config.segmentation.continuity) for config, _ in cutter.requests}
    assert ways == {
        (pb.FIRST_SEGMENT_SENTENCE, pb.CONTINUITY_MODE_UNSPECIFIED),
        (pb.FIRST_SEGMENT_EAGER, pb.CONTINUITY_MODE_CARRY),
        (pb.FIRST_SEGMENT_EAGER, pb.CONTINUITY_MODE_INDEPENDENT),
    }


def test_the_cuts_are_stored_with_the_recording(cutter, tmp_path):
    clauses.speak_all(cutter.target, [TEXT], "miles", [1], tmp_path, timesteps=4)
    there = {one.case.mode: one for one in recordings(folder_of(tmp_path, 1))}
    assert there[WHOLE].parts == (SpokenSegment(TEXT, "flush"),)
    assert there[EAGER].parts == (
        SpokenSegment("The train arrived,", "clause"),
        SpokenSegment("ten minutes late.", "flush"),
    )
    assert there[EAGER].finish_reason == "max_steps"  # of its first segment
    assert all(np.array_equal(one.samples(), speech()) for one in there.values())
    assert len(checked(folder_of(tmp_path, 1), cases([TEXT], "miles"))) == len(MODES)


@needs_recognizer
@pytest.mark.parametrize(("lost", "status"), [(slice(0, 0), 0), (slice(0, RATE // 2), 1)])
def test_the_command_fails_if_cut_sentences_lose_words(cutter, tmp_path, monkeypatch, lost, status):
    cutter.lost = lost
    (tmp_path / "sentences.txt").write_text(f"{TEXT}\n", encoding="utf-8")
    out = tmp_path / "eager"
    words = [str(tmp_path / "recordings"), "--target", cutter.target, "--sentences", str(tmp_path / "sentences.txt")]
    monkeypatch.setattr(sys, "argv", ["clauses", *words, "--processes", "1", "--out", str(out)])
    assert clauses.main() == status
    result = json.loads(out.with_suffix(".json").read_text())
    assert [row["mode"] for row in result["rows"]] == list(MODES)
    assert result["rows"][0]["word_errors"] == 0 and (result["rows"][1]["word_errors"] > 0) == (status == 1)
    assert (result["first_words"], result["sentence_words"]) == (3, 6)
    written = out.with_suffix(".md").read_text()
    assert written == clauses.page(result) and ("**The bound does not hold.**" in written) == (status == 1)
