"""Words with their times: in the stream and in the summary, found by an aligner or estimated."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
from support.clients.grpc_types import EOF
from support.doubles import fake_engine
from support.doubles.cycles import no_garbage
from support.doubles.readers import Reader
from support.servers.uploads import chunks_of, recording, upload
from support.servers.waiting import until

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.aligners.known import usable
from voxcpm_server.aligners.pool import AlignerPool

STEP = 960  # samples at 48 kHz; the fake engine makes one step for each character
ALIGNER = "support.doubles.aligners:StepAligner"
TIMED = pb.GenerateConfig(word_timestamps=True)
S16 = pb.AUDIO_ENCODING_PCM_S16LE


@pytest.fixture(scope="module")
def aligners() -> Iterator[AlignerPool]:
    pool = AlignerPool([ALIGNER])
    yield pool
    asyncio.run(pool.close())


def words_of(chunks: Iterable[pb.AudioChunk]) -> list[pb.WordTime]:
    return [word for chunk in chunks for word in chunk.words]


async def rest_of(call: Any) -> list[pb.AudioChunk]:
    chunks: list[pb.AudioChunk] = []
    while (chunk := await call.read()) is not EOF:
        chunks.append(chunk)
    return chunks


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def spans(words: Iterable[pb.WordTime]) -> list[tuple[str, int, int]]:
    """The words with their times in steps."""
    return [(word.text, round(word.start_samples / STEP), round(word.end_samples / STEP)) for word in words]


def true_spans(text: str, at: int = 0) -> list[tuple[str, int, int]]:
    """The words of a text and the times at which the fake engine speaks them, in steps."""
    found: list[tuple[str, int, int]] = []
    for word in text.split():
        found.append((word, at, at + len(word)))
        at += len(word) + 1
    return found


async def begun(served: Any, text: str) -> Any:
    """A call that waits for the times of the words of a text, which goes on."""
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(config=TIMED))
    await call.write(pb.GenerateRequest(text=text))
    await call.write(pb.GenerateRequest(flush=pb.Flush()))
    return call


async def test_no_words_are_sent_unless_they_are_asked_for(served):
    chunks = await served.generate("Good morning to all.")
    assert not words_of(chunks)
    assert not chunks[-1].summary.words


async def test_without_an_aligner_times_are_shares_of_the_text_and_marked_with_a_warning(served):
    text = "Good morning, — dear friends! How are\nyou today?"
    chunks = await served.generate(TIMED, text)
    words = words_of(chunks)
    assert [word.text for word in words] == ["Good", "morning,", "dear", "friends!", "How", "are", "you", "today?"]
    assert [text[word.input_start : word.input_end] for word in words] == [word.text for word in words]
    assert all(word.estimated for word in words)
    places = [place for word in words for place in (word.start_samples, word.end_samples)]
    assert places == sorted(places) and places[-1] <= chunks[-1].summary.total_samples
    for event in (event for chunk in chunks for event in chunk.segment_events):
        mine = [word for word in words if word.segment_index == event.segment_index]
        assert {word.turn_index for word in mine} == {event.turn_index}
        if event.kind == pb.SEGMENT_EVENT_KIND_STARTED:
            assert mine[0].start_samples == event.at_samples
        else:
            assert event.at_samples - 1 <= mine[-1].end_samples <= event.at_samples
    assert list(chunks[-1].summary.words) == words
    (warning,) = [warning for chunk in chunks for warning in chunk.warnings]
    assert warning.kind == pb.WARNING_KIND_WORD_TIMES and "voxcpm-grpc[align]" in warning.message


async def test_estimates_are_near_the_truth_where_the_speech_has_an_even_pace(served):
    text = "These are eleven ordinary words which are spoken without any hurry."
    chunks = await served.generate(TIMED, text)
    for (word, begin, end), true in zip(spans(words_of(chunks)), true_spans(text), strict=True):
        assert word == true[0] and abs(begin - true[1]) <= 2 and abs(end - true[2]) <= 2


@pytest.mark.parametrize(
    ("rate", "encoding", "speed"),
    [(48000, S16, 1.0), (16000, S16, 1.0), (24000, pb.AUDIO_ENCODING_MP3, 1.0), (48000, S16, 2.0), (8000, S16, 0.5)],
)
async def test_an_aligner_finds_each_word_in_the_samples_that_are_sent(serve_front, aligners, rate, encoding, speed):
    text = "Good morning to all of you. And now the weather."
    config = pb.GenerateConfig(
        word_timestamps=True,
        turn=pb.TurnConfig(speed=speed),
        output=pb.AudioFormat(encoding=encoding, sample_rate_hz=rate),
    )
    async with serve_front(aligners=aligners) as served:
        chunks = await served.generate(config, text)
    words = words_of(chunks)
    assert not any(chunk.warnings for chunk in chunks)
    first, second = "Good morning to all of you.", "And now the weather."
    true = [*true_spans(first), *true_spans(second, len(first))]
    assert [word.text for word in words] == [word for word, _, _ in true]
    assert not any(word.estimated for word in words)
    for word, (_, begin, end) in zip(words, true, strict=True):
        assert word.start_samples * 48000 / rate * speed == pytest.approx(begin * STEP, abs=16)
        assert word.end_samples * 48000 / rate * speed == pytest.approx(end * STEP, abs=16)
    assert list(chunks[-1].summary.words) == words
    assert aligners.open == 0


async def test_positions_do_not_count_silence_that_is_left_out(serve_front, fake, aligners):
    silence = 10 * STEP
    async with serve_front(fake(opening=np.zeros(silence, np.float32)), aligners=aligners) as served:
        chunks = await served.generate(TIMED, "Good evening to all of you.")
    trimmed = chunks[-1].summary.trimmed_samples
    assert 0 < trimmed < silence
    words = words_of(chunks)
    for word, (_, begin, end) in zip(words, true_spans("Good evening to all of you."), strict=True):
        assert word.start_samples == pytest.approx(max(0, begin * STEP - trimmed), abs=2)
        assert word.end_samples == pytest.approx(max(0, end * STEP - trimmed), abs=2)


async def test_what_is_read_in_other_words_is_one_word_of_the_caller(serve_front, aligners):
    source = "In 1999 the **Dr.** Voss of New York\xad City came."
    reading = "In nineteen ninety nine the Doctor Voss of the big apple came."
    lexicon = [pb.LexiconEntry(word="New York City", spelling="the big apple")]
    config = pb.GenerateConfig(word_timestamps=True, turn=pb.TurnConfig(normalize=True), lexicon=lexicon)
    normalizer = Reader({"1999": "nineteen ninety nine", "Dr.": "Doctor"})
    async with serve_front(aligners=aligners, normalizer=normalizer) as served:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("voxcpm_server.text.normalize.packages.check", lambda: None)
            chunks = await served.generate(config, source)
    times = {word: (begin, end) for word, begin, end in true_spans(reading)}
    expected = {
        "In": times["In"],
        "1999": (times["nineteen"][0], times["nine"][1]),
        "the": (24, 27),
        "Dr.": times["Doctor"],
        "Voss": times["Voss"],
        "of": times["of"],
        "New York\xad City": (times["big"][0] - 4, times["apple"][1]),
        "came.": times["came."],
    }
    words = words_of(chunks)
    assert spans(words) == [(word, *steps) for word, steps in expected.items()]
    assert [source[word.input_start : word.input_end] for word in words] == list(expected)
    assert not any(word.estimated for word in words)


async def test_words_that_are_replaced_side_by_side_share_their_speech_by_an_estimate(serve_front, aligners):
    config = pb.GenerateConfig(word_timestamps=True, turn=pb.TurnConfig(normalize=True))
    normalizer = Reader({"May 5, 2026": "the fifth of May twenty twenty six"})
    async with serve_front(aligners=aligners, normalizer=normalizer) as served:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("voxcpm_server.text.normalize.packages.check", lambda: None)
            chunks = await served.generate(config, "We met on May 5, 2026 in Rome.")
    words = words_of(chunks)
    assert [word.text for word in words if word.estimated] == ["5,", "2026"]
    assert spans(words)[-2:] == [("in", 45, 47), ("Rome.", 48, 53)]
    places = [place for word in words for place in (word.start_samples, word.end_samples)]
    assert places == sorted(places)


async def test_words_become_known_while_their_segment_is_generated(serve_front, fake, aligners):
    pool = fake(hold_after=40)
    async with serve_front(pool, aligners=aligners) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=TIMED))
        await call.write(pb.GenerateRequest(text="This sentence is longer than what the engine makes of it for now. "))
        await call.write(pb.GenerateRequest(flush=pb.Flush()))
        words: list[pb.WordTime] = []
        while len(words) < 6:
            words += (await call.read()).words
        assert spans(words) == true_spans("This sentence is longer than what")
        pool.release()
        await call.done_writing()
        rest = words_of(await rest_of(call))
        assert [word.text for word in rest] == ["the", "engine", "makes", "of", "it", "for", "now."]


async def test_an_interrupt_is_answered_by_the_words_that_were_heard(serve_front, fake, aligners):
    """The pace of the text is no help: the first word is half of it, and its time is known."""
    text = "Supercalifragilistic is a long word and more than anything that follows it here."
    pool = fake(hold_after=60)
    async with serve_front(pool, aligners=aligners) as served:
        call = await begun(served, text)
        words: list[pb.WordTime] = []
        while len(words) < 8:
            words += (await call.read()).words
        middle = words[4].start_samples + (words[4].end_samples - words[4].start_samples) * 2 // 3
        await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(played_samples=middle)))
        while not (chunk := await call.read()).HasField("interrupted"):
            words += chunk.words
        assert text[: chunk.interrupted.heard_input_end] == "Supercalifragilistic is a long word"
        assert not chunk.interrupted.heard_estimated
        pool.release()
        await call.write(pb.GenerateRequest(text="Yes? I see."))
        await call.done_writing()
        after = await rest_of(call)
        sent = chunk.interrupted.sent_samples
        known = after[-1].summary.words
        assert all(word.end_samples <= sent for word in known if word.turn_index == 0)
        assert [word.text for word in known if word.turn_index == 1] == ["Yes?", "I", "see."]
        cut = [word for word in known if word.turn_index == 0]
        assert [word.text for word in cut] == text.split()[: len(cut)]
        assert cut[-1].end_samples > sent - 12 * STEP
    assert aligners.open == 0


async def test_a_position_after_the_last_known_word_is_an_estimate(serve_front, fake, aligners):
    text = "One two three four five six seven eight nine ten."
    pool = fake(hold_after=20)
    async with serve_front(pool, aligners=aligners) as served:
        call = await begun(served, text)
        words: list[pb.WordTime] = []
        end = 0
        while len(words) < 3 or end < 20 * STEP:
            chunk = await call.read()
            words, end = [*words, *chunk.words], chunk.offset_samples + chunk.sample_count
        await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(played_samples=18 * STEP)))
        while not (chunk := await call.read()).HasField("interrupted"):
            pass
        assert chunk.interrupted.heard_estimated
        assert text[: chunk.interrupted.heard_input_end] in ("One two three", "One two three four")
        call.cancel()
    await until(lambda: aligners.open == 0)


async def test_words_of_an_aligner_that_fails_are_estimated(serve_front, aligners):
    async with serve_front(aligners=aligners) as served:
        chunks = await served.generate(TIMED, "Here is the fault of it. And here is none.")
    words = list(chunks[-1].summary.words)
    assert [word.text for word in words] == ["Here", "is", "the", "fault", "of", "it.", "And", "here", "is", "none."]
    assert [word.text for word in words if not word.estimated][-4:] == ["And", "here", "is", "none."]
    assert words[3].text == "fault" and words[3].estimated


async def test_words_are_estimated_where_the_process_of_the_aligners_is_killed(serve_front, fake, aligners):
    pool = fake(hold_after=20)
    text = "This is cut off by a signal. And this is not. "
    async with serve_front(pool, aligners=aligners) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=TIMED))
        await call.write(pb.GenerateRequest(text=text))
        await call.done_writing()
        words: list[pb.WordTime] = []
        while len(words) < 3:
            words += (await call.read()).words
        (pid,) = aligners.pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: has_ended(pid))
        pool.release()
        chunks = await rest_of(call)
    known = chunks[-1].summary.words
    assert [word.text for word in known] == [
        "This",
        "is",
        "cut",
        "off",
        "by",
        "a",
        "signal.",
        "And",
        "this",
        "is",
        "not.",
    ]
    assert not any(word.estimated for word in (*known[:3], *known[7:]))
    assert all(word.estimated for word in known[4:7])
    places = [place for word in known for place in (word.start_samples, word.end_samples)]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("language", "text"), [("de", "Guten Morgen zusammen."), ("", "Unheard."), ("ja", "おはよう。世界")]
)
async def test_a_text_that_no_aligner_takes_gets_estimates_and_a_warning(serve_front, aligners, language, text):
    config = pb.GenerateConfig(word_timestamps=True, segmentation=pb.Segmentation(language=language))
    async with serve_front(aligners=aligners) as served:
        chunks = await served.generate(config, text)
    words = words_of(chunks)
    assert "".join(word.text for word in words) == "".join(text.split())
    assert all(word.estimated for word in words)
    (warning,) = [warning for chunk in chunks for warning in chunk.warnings]
    assert warning.kind == pb.WARNING_KIND_WORD_TIMES and "words.aligners" in warning.message


async def test_a_text_without_a_language_is_in_the_only_one_of_the_model(serve_front, fake):
    given: list[str] = []

    class Listening(AlignerPool):
        def begin(self, words: Any, rate: int, language: str, on_found: Any) -> None:
            given.append(language)

    for languages, code in ((("en-GB",), ""), (("en", "de"), ""), (("en",), "de"), ((), "")):
        pool = fake(info=replace(fake_engine.INFO, languages=languages))
        config = pb.GenerateConfig(word_timestamps=True, segmentation=pb.Segmentation(language=code))
        async with serve_front(pool, aligners=Listening([])) as served:
            chunks = await served.generate(config, "Good morning.")
        assert [word.estimated for word in chunks[-1].summary.words] == [True, True]
    assert given == ["en", "", "de", ""]


async def test_previews_and_auditions_have_words(serve_front, aligners):
    preview = pb.Preview(
        mode=pb.PREVIEW_MODE_SYNTHESIS, text="Good morning to you.", auditions=True, word_timestamps=True
    )
    messages = [
        *upload(pb.AddReferenceRequest, pb.AddReferenceConfig(preview=preview), (0, recording())),
        pb.AddReferenceRequest(audition=pb.Audition(text="And a second text.")),
    ]
    async with serve_front(aligners=aligners) as served:
        chunks = await chunks_of(served.stub.AddReference, messages)
    first, second = "Good morning to you.", "And a second text."
    words = chunks[-1].summary.words
    assert spans(words) == [*true_spans(first), *true_spans(second, len(first))]
    assert [word.turn_index for word in words] == [0] * 4 + [1] * 4
    assert list(words) == words_of(chunks)


async def test_a_stream_that_is_cancelled_ends_its_alignments(serve_front, fake, aligners):
    pool = fake(hold_after=20)
    async with serve_front(pool, aligners=aligners) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=TIMED))
        await call.write(pb.GenerateRequest(text="One two three four five six seven eight nine ten. "))
        await call.write(pb.GenerateRequest(flush=pb.Flush()))
        while not (await call.read()).words:
            pass
        assert aligners.open == 1
        call.cancel()
        await until(lambda: aligners.open == 0)
        pool.release()


async def test_streams_with_times_leave_no_garbage(serve_front, aligners):
    async with serve_front(aligners=aligners) as served:

        async def once() -> None:
            await served.generate(TIMED, "Here are some words. And here is a fault of it.")
            await served.idle()
            await served.generate("Next.")  # gRPC keeps the last call until the next one arrives

        await once()
        with no_garbage():
            await once()


async def test_an_aligner_that_does_not_start_costs_estimates_and_a_line_of_the_log(serve_front, caplog):
    pool = AlignerPool(["support.doubles.aligners:BrokenAligner"])
    async with serve_front(aligners=pool) as served:
        for _ in range(2):
            chunks = await served.generate(TIMED, "Good morning.")
            assert [word.estimated for word in chunks[-1].summary.words] == [True, True]
    await pool.close()
    (line,) = [record.getMessage() for record in caplog.records if "BrokenAligner" in record.getMessage()]
    assert "its model" in line


async def test_a_setting_that_names_no_aligner_is_refused():
    assert usable(["english", ALIGNER]) == ["english", ALIGNER]
    for name in ("klingon", "no.such.module:Aligner", ":", "support.no_such_module:Aligner"):
        with pytest.raises(StartupError, match="there is no aligner"):
            usable([name])
    with pytest.raises(StartupError, match="did not start"):
        await AlignerPool(["support.doubles.aligners:BrokenAligner"]).start()
