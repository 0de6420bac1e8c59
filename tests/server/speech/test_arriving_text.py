"""SEGMENTATION_MODE_TOKENS: text is spoken while it arrives. The model has exact integers, so its audio is known.

It speaks a word when the next one is complete. Its speech has four steps for each word, and four more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from support.clients.grpc_types import EOF
from support.doubles.cycles import no_garbage
from support.doubles.rpc_tasks import rpc_tasks
from support.engines import toy_family
from support.engines.killable_engines import KillableEngines, pool_over
from support.engines.toy_engines import toy_engine
from support.engines.toy_family import SAMPLES, expected
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Request, Sampling
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.operation.metrics import Metrics
from voxcpm_server.text.normalize import packages

TEXT = (
    "One (e.g. the first)  thing, which the cafe\u0301 of 北京\u00ad sells.\r\n"
    "And 12 more — i.e. all. Two dogs 👩\u200d🔬 bark. "
)
PLAIN = " ".join(TEXT.replace("\u00ad", "").replace("e\u0301", "é").split())
STARTED, FINISHED = pb.SEGMENT_EVENT_KIND_STARTED, pb.SEGMENT_EVENT_KIND_FINISHED
DROPPED = pb.SEGMENT_EVENT_KIND_DROPPED
OPEN, SENTENCE, LIMIT = pb.CUT_REASON_UNSPECIFIED, pb.CUT_REASON_SENTENCE, pb.CUT_REASON_LIMIT
FLUSH, UNREAD = pb.CUT_REASON_FLUSH, pb.CUT_REASON_UNREAD
TOKENS = pb.SEGMENTATION_MODE_TOKENS
LONG = 500  # steps in which no speech ends before it has read its text


def config(least: int = LONG, *, lexicon: Sequence[tuple[str, str]] = (), **segmentation: Any) -> pb.GenerateConfig:
    made = pb.GenerateConfig(
        turn=pb.TurnConfig(sampling=pb.Sampling(seed=4, min_steps=least)),
        output=pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE),
        segmentation=pb.Segmentation(mode=TOKENS, **segmentation),
        lexicon=[pb.LexiconEntry(word=word, spelling=spelling) for word, spelling in lexicon],
    )
    made.trim_leading_silence.SetInParent()
    return made


class Engines(KillableEngines):
    """Engines of the toy family in this process."""

    def __init__(self, names: str) -> None:
        self.made: list[Engine] = []
        super().__init__(names, self._new)

    def _new(self) -> Engine:
        self.made.append(toy_engine(slots=2))
        return self.made[-1]

    @property
    def chunks(self) -> int:
        return sum(engine.stats().chunks for engine in self.made)


@asynccontextmanager
async def toy_pool(names: str = "a") -> AsyncIterator[tuple[EnginePool, Engines]]:
    async with pool_over(Engines(names)) as running_pool:
        yield running_pool


@pytest.fixture
async def toy(serve_front):
    async with toy_pool() as (pool, _), serve_front(pool, stream_idle_seconds=HANG_SECONDS) as served:
        yield served


class Stream:
    """A Generate stream, which is read as far as a test needs."""

    def __init__(self, served: Any, first: pb.GenerateConfig) -> None:
        self.chunks: list[pb.AudioChunk] = []
        self._call = served.stub.Generate()
        self._first = first

    async def write(self, *messages: Any) -> None:
        if self._first:
            messages, self._first = (pb.GenerateRequest(config=self._first), *messages), None
        for message in messages:
            await self._call.write(pb.GenerateRequest(text=message) if isinstance(message, str) else message)

    async def read(self, wanted: Callable[[pb.AudioChunk], object]) -> pb.AudioChunk:
        """Read up to a message."""
        async with asyncio.timeout(HANG_SECONDS):
            while (chunk := await self._call.read()) is not EOF:
                self.chunks.append(chunk)
                if wanted(chunk):
                    return chunk
        raise AssertionError("the stream has ended")

    async def end(self) -> list[pb.AudioChunk]:
        """End the text, and read all that is left. Returns all messages."""
        await self.write()
        await self._call.done_writing()
        await self.read(lambda chunk: chunk.HasField("summary"))
        return self.chunks

    def cancel(self) -> None:
        self._call.cancel()


def flush(tag: str = "", *, end_turn: bool = False) -> pb.GenerateRequest:
    return pb.GenerateRequest(flush=pb.Flush(tag=tag, end_turn=end_turn))


def samples(chunks: Sequence[pb.AudioChunk]) -> np.ndarray:
    return np.frombuffer(b"".join(chunk.audio for chunk in chunks), "<f4")


def events(chunks: Sequence[pb.AudioChunk], kind: pb.SegmentEventKind = FINISHED) -> list[pb.SegmentEvent]:
    return [event for chunk in chunks for event in chunk.segment_events if event.kind == kind]


def letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def known(*texts: str, least: int = LONG, turn: int = 0) -> np.ndarray:
    """The audio of texts, each in a segment of its own."""
    completed, sampling = toy_engine(slots=1).info.completed, Sampling(seed=4, min_steps=least)
    requests = (Request(id="", text=text, sampling=sampling, turn=turn, segment=at) for at, text in enumerate(texts))
    return np.concatenate([expected(request, completed).audio for request in requests])


def parts_of(text: str, least: int) -> tuple[list[str], np.ndarray]:
    """The texts of the segments if the model leaves text unread, and their audio."""
    completed, sampling = toy_engine(slots=1).info.completed, Sampling(seed=4, min_steps=least)
    texts, audio = [], []
    while text.strip():
        made = expected(Request(id="", text=text, sampling=sampling, segment=len(texts)), completed)
        texts.append(text.removesuffix(made.unread).strip())
        audio.append(made.audio)
        text = made.unread
    return texts, np.concatenate(audio)


# ---- any division


@pytest.mark.parametrize("least", [LONG, 0], ids=["read", "unread"])
async def test_every_division_of_a_text_gives_the_same_audio(toy, least):
    """Also one inside a visible character, an abbreviation, a Chinese clause or a line break."""
    whole = await toy.generate(config(least), TEXT)
    texts, audio = parts_of(PLAIN, least)
    assert [event.text for event in events(whole)] == texts and np.array_equal(samples(whole), audio)
    assert len(texts) > 2 if least == 0 else texts == [PLAIN]
    divisions = [[TEXT[:cut], TEXT[cut:]] for cut in range(1, len(TEXT), 7 if least else 11)]
    cafe, emoji = TEXT.index("\u0301"), TEXT.index("\u200d")
    divisions += [[TEXT[:cut], TEXT[cut:]] for cut in (cafe, TEXT.index("g. the"), TEXT.index("京"), emoji, emoji + 1)]
    for parts in [[*TEXT], *divisions]:
        chunks = await toy.generate(config(least), *parts)
        assert np.array_equal(samples(chunks), audio)
        assert events(chunks) == events(whole)
    assert [event.input_end for event in events(whole)][-1] == len(TEXT)
    assert [event.input_start for event in events(whole)] == [0, *(event.input_end for event in events(whole))][:-1]


@pytest.mark.parametrize("least", [LONG, 0], ids=["read", "unread"])
async def test_a_text_may_arrive_when_all_before_it_was_spoken(serve_front, least):
    async with toy_pool() as (pool, engines), serve_front(pool) as served:
        stream = Stream(served, config(least))
        for part in (TEXT[at : at + 5] for at in range(0, len(TEXT), 5)):
            await stream.write(part)
            for _ in range(20):
                await asyncio.sleep(0)
            await until(lambda: not engines.made[0].busy)
        chunks = await stream.end()
        texts, audio = parts_of(PLAIN, least)
        assert [event.text for event in events(chunks)] == texts and np.array_equal(samples(chunks), audio)


# ---- latency


async def test_audio_leaves_while_the_text_still_arrives(serve_front):
    async with toy_pool() as (pool, engines), serve_front(pool) as served:
        stream = Stream(served, config())
        await stream.write("One tw")
        await until(lambda: engines.made[0].stats().running or pool.replicas[0].calls)
        assert not engines.chunks  # the second word may go on
        await stream.write("o ")
        started = await stream.read(lambda chunk: chunk.audio)
        assert np.array_equal(samples([started]), known("One two")[:SAMPLES])
        [event] = events([started], STARTED)
        assert (event.text, event.input_start, event.cut_reason) == ("One two", 0, OPEN)
        await until(lambda: not engines.made[0].busy)
        assert engines.chunks == 1  # no step without text
        chunks = await stream.end()
        assert np.array_equal(samples(chunks), known("One two"))
        [event] = events(chunks)
        assert (event.text, event.input_end, event.cut_reason) == ("One two", len("One two "), FLUSH)


async def test_streams_that_wait_for_text_leave_their_slots_to_others(serve_front):
    async with toy_pool() as (pool, engines), serve_front(pool) as served:
        waiting = [Stream(served, config()) for _ in range(2)]  # as many as slots
        for stream in waiting:
            await stream.write("One two ")
            await stream.read(lambda chunk: chunk.audio)
        other = await served.generate(config(), "Another text.")
        assert np.array_equal(samples(other), known("Another text."))
        for stream in waiting:
            await stream.write("three.")
            assert np.array_equal(samples(await stream.end()), known("One two three."))
        assert engines.made[0].stats().swaps


async def test_a_word_of_the_lexicon_waits_for_its_end(toy):
    words = [("new york", "the city"), ("gif", "jif")]
    stream = Stream(toy, config(lexicon=words))
    await stream.write("See my gi", "f in new yo")
    await until(lambda: toy.pool.replicas[0].calls)
    await stream.write("rk, ")
    assert np.array_equal(samples(await stream.end()), known("See my jif in the city,"))
    [event] = events(stream.chunks)
    assert (event.text, event.input_end) == ("See my jif in the city,", len("See my gif in new york, "))


# ---- the end of a text


async def test_a_flush_ends_a_segment_and_its_answer_is_exact(toy):
    stream = Stream(toy, config())
    await stream.write("One two th", "ree", flush("a"), " four five", flush("b"), flush("c", end_turn=True), "Six")
    first = await stream.read(lambda chunk: chunk.HasField("flush_done"))
    audio = known("One two three", "four five")
    length = len(known("One two three"))
    assert (first.flush_done.tag, first.flush_done.at_samples) == ("a", length)
    chunks = await stream.end()
    done = [chunk.flush_done for chunk in chunks if chunk.HasField("flush_done")]
    assert [(one.tag, one.at_samples) for one in done] == [("a", length), ("b", len(audio)), ("c", len(audio))]
    assert np.array_equal(samples(chunks), np.concatenate([audio, known("Six", turn=1)]))
    spoken = [(e.turn_index, e.segment_index, e.input_start, e.input_end, e.cut_reason) for e in events(chunks)]
    assert spoken == [(0, 0, 0, 13, FLUSH), (0, 1, 13, 23, FLUSH), (1, 0, 0, 3, FLUSH)]


async def test_a_pause_message_ends_a_segment_and_a_word(toy):
    pause = pb.GenerateRequest(pause=pb.Pause(milliseconds=10))
    chunks = await toy.generate(config(), "One tw", pause, "o three")
    one = known("One tw")
    two = known("One tw", "o three")[len(one) :]
    assert np.array_equal(samples(chunks), np.concatenate([one, np.zeros(80, np.float32), two]))


@pytest.mark.parametrize("parts", [1, 7])
async def test_a_long_text_goes_on_in_another_segment_behind_its_sentence(toy, parts):
    text = "One is here. Two is 3 m. away. Three, four, five " + "x " * 30 + "six. Seven."
    step = len(text) // parts
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    chunks = await toy.generate(config(max_chars=20), *pieces)
    found = events(chunks)
    assert "".join(text[event.input_start : event.input_end] for event in found) == text
    assert found[0].text == "One is here. Two is 3 m. away."
    assert [event.cut_reason for event in found] == [SENTENCE, LIMIT, LIMIT, FLUSH]
    assert all(len(event.text) <= 41 for event in found)
    assert np.array_equal(samples(chunks), known(*(event.text for event in found)))


async def test_an_interrupt_drops_the_text_that_was_not_read(toy):
    stream = Stream(toy, config())
    await stream.write("One two ")
    await stream.read(lambda chunk: chunk.audio)
    await stream.write(
        "three fo", flush("f"), "five six", pb.GenerateRequest(interrupt=pb.Interrupt(tag="i", played_samples=SAMPLES))
    )
    answer = await stream.read(lambda chunk: chunk.HasField("interrupted"))
    assert answer.interrupted.tag == "i" and list(answer.interrupted.dropped_flush_tags) == ["f"]
    assert answer.interrupted.heard_input_end <= len("One two three fo")
    dropped = [(event.segment_index, event.text) for event in events([answer], DROPPED)]
    assert dropped == [(0, "One two three fo"), (1, "five si")]  # a mark may follow the last letter
    before = len(samples(stream.chunks))
    await stream.write("Seven eight.")
    chunks = await stream.end()
    assert np.array_equal(samples(chunks)[before:], known("Seven eight.", turn=1))
    await until(lambda: not toy.pool.replicas[0].calls)


async def test_a_cancelled_stream_frees_its_slot(serve_front):
    async with toy_pool() as (pool, engines), serve_front(pool) as served:
        stream = Stream(served, config())
        await stream.write("One two ")
        await stream.read(lambda chunk: chunk.audio)
        stream.cancel()
        await until(lambda: not pool.replicas[0].calls and not served.gate.streams)
        await until(lambda: not engines.made[0].stats().slots_used)


@pytest.mark.parametrize("text", ["One two three fo", "One", "..."])
async def test_the_idle_timeout_ends_the_text(serve_front, text):
    async with toy_pool() as (pool, _), serve_front(pool, stream_idle_seconds=0.3) as served:
        stream = Stream(served, config())
        await stream.write(text)
        last = await stream.read(lambda chunk: chunk.HasField("summary"))
        assert last.summary.finish_reason == pb.FINISH_REASON_IDLE
        assert np.array_equal(samples(stream.chunks), known(text) if text != "..." else np.zeros(0, np.float32))


@pytest.mark.parametrize("count", [1, 5], ids=["one", "more than slots"])
async def test_a_stream_that_waits_for_text_is_not_one_that_waits_for_a_slot(serve_front, count):
    async with toy_pool() as (pool, _), serve_front(pool, max_queue_seconds=0.05) as served:
        streams = [Stream(served, config()) for _ in range(count)]
        for stream in streams:
            await stream.write("One")
        await until(lambda: len(pool.replicas[0].calls) == count)
        calls = pool.replicas[0].calls
        await asyncio.sleep(0.3)  # several waits
        assert not any(call.ended for call in calls)
        for stream in streams:
            assert np.array_equal(samples(await stream.end()), known("One"))


async def test_text_that_cannot_be_spoken_is_refused(toy):
    with pytest.raises(grpc.aio.AioRpcError, match="there is nothing to speak"):
        await toy.generate(config(), " .", " ...")


# ---- another engine


@pytest.mark.parametrize("least", [LONG, 0], ids=["read", "unread"])
async def test_another_engine_goes_on_with_the_text_so_far(serve_front, least):
    async with toy_pool("ab") as (pool, engines), serve_front(pool) as served:
        stream = Stream(served, config(least))
        words = [word + " " for word in PLAIN.split()]
        for number, word in enumerate(words):
            await stream.write(word)
            if number in (3, 6, 9):
                ready = (number - 1) * SAMPLES  # by the text so far, of the second segment if the first has no audio
                await stream.read(lambda _, ready=ready: len(samples(stream.chunks)) >= ready)
                [home] = [replica for replica in pool.replicas if replica.calls]
                engines.kill(home.name)
        assert engines.kills == 3
        chunks = await stream.end()
        texts, audio = parts_of(PLAIN, least)
        assert np.array_equal(samples(chunks), audio) and [event.text for event in events(chunks)] == texts
        assert chunks[-1].summary.continuations == pool.continuations == 3


async def test_a_text_of_which_the_model_reads_nothing_is_given_up(toy, monkeypatch):
    monkeypatch.setattr(toy_family.Toy, "unread", lambda self, plan, steps: plan.own.request.text)
    chunks = await toy.generate(config(), "One ", "two.", flush("a"), "Three", flush("b"))
    found = [(event.segment_index, event.text, event.cut_reason) for event in events(chunks)]
    assert found == [(number, "", UNREAD) for number in range(6)]
    assert [chunk.flush_done.tag for chunk in chunks if chunk.HasField("flush_done")] == ["a", "b"]


# ---- what is counted


async def test_text_that_was_left_unread_is_counted(serve_front):
    metrics = Metrics()
    async with toy_pool() as (pool, _), serve_front(pool, metrics=metrics) as served:
        chunks = await served.generate(config(0), TEXT)
        left = len(parts_of(PLAIN, 0)[0]) - 1
        assert [event.cut_reason for event in events(chunks)] == [UNREAD] * left + [FLUSH] and left
        await served.generate(config(), TEXT)
        name, labels = "voxcpm_model_text_left_unread_total", {"model": pool.info.name}
        await until(lambda: metrics.registry.get_sample_value(name, labels) == left)


async def test_words_have_estimated_times_at_the_end_of_their_segment(toy):
    first = config(0)  # speech that a limit cuts off would be too short for its words
    first.word_timestamps = True
    chunks = await toy.generate(first, *TEXT)
    words = chunks[-1].summary.words
    assert letters("".join(word.text for word in words)) == letters(TEXT)
    assert all(word.estimated and TEXT[word.input_start : word.input_end] == word.text for word in words)
    assert [word.start_samples for word in words] == sorted(word.start_samples for word in words)
    [warning] = {warning.message for chunk in chunks for warning in chunk.warnings}
    assert (
        warning == "the times of words are estimates, because an aligner needs the text of a segment before its speech"
    )


async def test_the_quota_counts_text_as_it_arrives(serve_front):
    async with toy_pool() as (pool, _), serve_front(pool, max_chars_per_minute_per_caller=10) as served:
        [event] = events(await served.generate(config(), *("ten chars " * 30)))
        assert event.input_end == 300  # they fill the quota of half an hour
        with pytest.raises(grpc.aio.AioRpcError, match="used up its quota of text") as caught:
            await served.generate(config(), "One.")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_stream_leaves_no_garbage_however_it_ends(serve_front):
    async with toy_pool() as (pool, _), serve_front(pool) as served:

        async def once() -> None:
            await served.generate(config(0), *TEXT)
            stream = Stream(served, config())
            await stream.write("One two ")
            await stream.read(lambda chunk: chunk.audio)
            await stream.write("three", pb.GenerateRequest(interrupt=pb.Interrupt()), "Four five ")
            await stream.read(lambda chunk: chunk.audio and chunk.turn_index)
            stream.cancel()
            await until(lambda: not (served.gate.streams or pool.replicas[0].calls or rpc_tasks()))
            await served.generate(config(), "Next.")  # gRPC keeps the last call until the next one arrives

        await once()
        with no_garbage():
            await once()


# ---- refusals


@pytest.mark.parametrize("field", ["normalize", "retry_badcase"])
async def test_settings_that_need_whole_segments_are_refused(toy, details_of, field, monkeypatch):
    monkeypatch.setattr(packages, "check", lambda: None)  # they may be missing here
    first = config()
    setattr(first.turn, field, True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await toy.generate(first, "One.")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "SEGMENTATION_MODE_TOKENS speaks text while it arrives" in (caught.value.details() or "")
    assert details_of(caught.value).field == f"config.turn.{field}"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await toy.generate(config(), first.turn, "One.")
    assert details_of(caught.value).field == f"turn.{field}"


async def test_a_model_that_reads_whole_texts_refuses_and_names_what_it_has(served, details_of):
    with pytest.raises(grpc.aio.AioRpcError, match="has the segmentation modes SENTENCE and MANUAL") as caught:
        await served.generate(config(), "One.")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
