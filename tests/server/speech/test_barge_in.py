"""The answer to an interrupt says which text the listener has heard, and which flushes are dropped."""

from __future__ import annotations

import asyncio
import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from support.clients.grpc_types import EOF
from support.servers.sessions import SlowClient, session

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import Flush, Interrupt, Text

STEP = 960  # samples at 48 kHz; the fake engine makes one step for each character
WORDS = ["a", "to", "the", "tea", "over", "blue", "house", "string", "morning", "evening"]
STARTED, FINISHED = pb.SEGMENT_EVENT_KIND_STARTED, pb.SEGMENT_EVENT_KIND_FINISHED


class Conversation:
    """A Generate stream whose replies are read as they come."""

    def __init__(self, served: Any, rate: int = 48000, encoding: Any = pb.AUDIO_ENCODING_PCM_S16LE) -> None:
        self.pool, self.rate = served.pool, rate
        self.events: list[pb.SegmentEvent] = []
        self.sent = 0
        self.answered: list[str] = []
        self._call = served.stub.Generate()
        self._config = pb.GenerateConfig(output=pb.AudioFormat(encoding=encoding, sample_rate_hz=rate))

    async def start(self) -> None:
        await self.write(config=self._config)

    async def write(self, **message: Any) -> None:
        await self._call.write(pb.GenerateRequest(**message))

    async def read(self, wanted: Callable[[pb.AudioChunk], bool]) -> pb.AudioChunk:
        while (chunk := await self._read()) is not EOF:
            if wanted(chunk):
                return chunk
        raise AssertionError("the stream ended")

    async def read_to(self, samples: float) -> None:
        """Read until so many samples have been sent; the engine makes no more."""
        while self.sent < samples:
            await self.read(lambda chunk: chunk.sample_count > 0)

    async def interrupt(self, played: int | None) -> pb.Interrupted:
        await self.write(interrupt=pb.Interrupt(tag="i", played_samples=played))
        return (await self.read(lambda chunk: chunk.HasField("interrupted"))).interrupted

    def hold_after(self, steps: int) -> None:
        self.pool.released.clear()
        self.pool.hold_after = self.pool.steps + steps

    async def close(self) -> None:
        self._call.cancel()

    async def _read(self) -> Any:
        chunk = await self._call.read()
        if chunk is not EOF:
            self.events += chunk.segment_events
            self.sent = chunk.offset_samples + chunk.sample_count
            if chunk.HasField("flush_done"):
                self.answered.append(chunk.flush_done.tag)
        return chunk


def word_ends(text: str) -> list[int]:
    return [0, *(word.end() for word in re.finditer(r"\S+", text))]


def heard_words(event: pb.SegmentEvent, text: str, played: int, rate: int) -> int:
    """The number of words of a segment that begin before a position: a model of the listener."""
    characters = (played - event.at_samples) * 48000 / rate / STEP
    source = text[event.input_start : event.input_end]
    return sum(word.start() < characters for word in re.finditer(r"\S+", source))


def sentence(random: random.Random) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(2, 9))).capitalize() + "."


@pytest.mark.parametrize(
    ("rate", "encoding"),
    [
        (16000, pb.AUDIO_ENCODING_PCM_F32LE),
        (48000, pb.AUDIO_ENCODING_OGG_OPUS),
        (24000, pb.AUDIO_ENCODING_MP3),
    ],
)
async def test_what_was_heard_is_exact_at_borders_and_within_a_word_elsewhere(served, rate, encoding):
    """20 interrupts in each format whose samples are not those of the engine."""
    chance = random.Random(rate + encoding)
    conversation = Conversation(served, rate, encoding)
    await conversation.start()
    texts: list[str] = []
    exact = 0
    for turn in range(20):
        sentences = [sentence(chance) for _ in range(chance.randint(1, 4))]
        texts.append(" ".join(sentences))
        steps = (
            chance.randint(20, len(texts[-1]) + 20) if turn else len(texts[0]) + 20
        )  # the first one teaches the pace
        conversation.hold_after(steps)
        tags = [f"{turn}.{number}" for number in range(len(sentences))]
        for number, (part, tag) in enumerate(zip(sentences, tags, strict=True)):
            await conversation.write(text=part + " " * (number + 1 < len(sentences)))
            await conversation.write(flush=pb.Flush(tag=tag))
        begin = conversation.sent
        made = min(steps, len(texts[-1])) * STEP * rate / 48000
        await conversation.read_to(begin + max(1, made - 0.15 * rate))  # encoders and resamplers keep some
        borders = [event.at_samples for event in conversation.events if event.kind == FINISHED]
        at_border = chance.random() < 0.3 and borders
        played = chance.choice(borders[-6:]) if at_border else chance.randint(max(0, begin - rate), conversation.sent)
        answer = await conversation.interrupt(min(played, conversation.sent))
        played = min(played, conversation.sent)

        started = [event for event in conversation.events if event.kind == STARTED and event.at_samples < played]
        ended = {(e.turn_index, e.segment_index): e for e in conversation.events if e.kind == FINISHED}
        last = started[-1]
        end = ended.get((last.turn_index, last.segment_index))
        assert answer.heard_turn_index == last.turn_index
        if end is not None and end.at_samples <= played:
            assert (answer.heard_input_end, answer.heard_estimated) == (last.input_end, False)
            exact += 1
        else:
            text = texts[last.turn_index]
            ends = word_ends(text[last.input_start : last.input_end])
            assert answer.heard_estimated
            word = ends.index(answer.heard_input_end - last.input_start)
            assert abs(word - heard_words(last, text, played, rate)) <= 1
        expected = [tag for tag in tags if tag not in conversation.answered]
        assert list(answer.dropped_flush_tags) == expected
        served.pool.release()
    assert 1 <= exact < 20
    await conversation.close()


async def test_nothing_is_heard_before_the_first_audio_and_of_text_that_was_not_spoken(served):
    conversation = Conversation(served)
    await conversation.start()
    conversation.hold_after(8)
    await conversation.write(text="One two. Three")
    await conversation.read_to(8 * STEP)
    nothing = await conversation.interrupt(0)
    assert (nothing.heard_turn_index, nothing.heard_input_end, nothing.heard_estimated) == (0, 0, False)
    served.pool.release()
    await conversation.write(text="no sentence")
    still = await conversation.interrupt(conversation.sent)
    assert (still.heard_turn_index, still.heard_input_end) == (0, len("One two. "))
    await conversation.close()


async def test_white_space_and_unspoken_characters_count_in_the_callers_text(served):
    conversation = Conversation(served)
    await conversation.start()
    text = "  One   two\tthree.\n\n*** "
    await conversation.write(text=text)
    await conversation.write(flush=pb.Flush(tag="f"))
    await conversation.read(lambda chunk: chunk.HasField("flush_done"))
    heard = await conversation.interrupt(conversation.sent // 2)
    assert heard.heard_estimated
    assert text[: heard.heard_input_end] in ("  One   two", "  One")
    await conversation.close()


async def test_a_character_is_a_word_in_scripts_without_spaces(served):
    conversation = Conversation(served)
    await conversation.start()
    text = "今天天气很好我们去公园。"
    await conversation.write(text=text)
    await conversation.write(flush=pb.Flush(tag="f"))
    await conversation.read(lambda chunk: chunk.HasField("flush_done"))
    heard = await conversation.interrupt(5 * STEP)
    assert (heard.heard_input_end, heard.heard_estimated) == (5, True)
    await conversation.close()


async def test_without_the_position_of_the_listener_nothing_is_said(served):
    conversation = Conversation(served)
    await conversation.start()
    await conversation.write(text="Hello. ")
    await conversation.write(flush=pb.Flush(tag="f"))
    await conversation.read(lambda chunk: chunk.HasField("flush_done"))
    answer = await conversation.interrupt(None)
    assert not answer.HasField("heard_input_end")
    assert not answer.HasField("heard_turn_index")
    assert not answer.dropped_flush_tags
    await conversation.close()


@pytest.mark.parametrize(
    ("played", "words"), [(-1, "-1 and 5760 samples were sent"), (10**9, "1000000000 and 5760 samples were sent")]
)
async def test_an_impossible_position_is_refused(served, details_of, played, words):
    conversation = Conversation(served)
    await conversation.start()
    await conversation.write(text="Hello.")
    await conversation.write(flush=pb.Flush(tag="f"))
    await conversation.read(lambda chunk: chunk.HasField("flush_done"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await conversation.interrupt(played)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in str(caught.value.details())
    assert details_of(caught.value).field == "interrupt.played_samples"


async def said(conversation: Conversation, *texts: str, end_turn: bool = False) -> int:
    """Send text, wait until its audio was sent, and return the position of its end."""
    for text in texts:
        await conversation.write(text=text)
    await conversation.write(flush=pb.Flush(end_turn=end_turn))
    return (await conversation.read(lambda chunk: chunk.HasField("flush_done"))).flush_done.at_samples


def heard(answer: pb.Interrupted) -> tuple[int, int, bool]:
    return answer.heard_turn_index, answer.heard_input_end, answer.heard_estimated


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [
        *((pb.AUDIO_ENCODING_PCM_S16LE, rate) for rate in (8000, 11025, 22050, 44100, 96000)),
        (pb.AUDIO_ENCODING_WAV, 24000),
        (pb.AUDIO_ENCODING_MULAW, 8000),
        (pb.AUDIO_ENCODING_MP3, 44100),
        (pb.AUDIO_ENCODING_OGG_OPUS, 24000),
        (pb.AUDIO_ENCODING_FLAC, 48000),
    ],
)
async def test_all_that_was_sent_is_heard_exactly_in_every_format(served, encoding, rate):
    conversation = Conversation(served, rate, encoding)
    await conversation.start()
    for turn, text in enumerate(("One, two.", "  Three? Four! ", "Five.")):
        await said(conversation, text)
        answer = await conversation.interrupt(conversation.sent)
        assert heard(answer) == (turn, len(text.rstrip()), False) or turn == 1
        assert heard(answer)[0] == turn and text[: answer.heard_input_end].strip() == text.strip()
        end = [event.at_samples for event in conversation.events if event.kind == FINISHED][-1]
        assert not (await conversation.interrupt(end)).heard_estimated
        assert (await conversation.interrupt(end - 1)).heard_estimated
    await conversation.close()


async def test_the_position_may_be_in_any_earlier_turn(served):
    conversation = Conversation(served)
    await conversation.start()
    first = await said(conversation, "One, two, three.", end_turn=True)
    second = await said(conversation, "Four five. Six.", end_turn=True)
    await conversation.write(text="Seven eight")
    assert heard(await conversation.interrupt(first)) == (0, 16, False)
    assert heard(await conversation.interrupt(first + 1)) == (1, 0, True)
    (border,) = [e for e in conversation.events if e.kind == FINISHED and e.text == "Four five."]
    assert heard(await conversation.interrupt(border.at_samples)) == (1, border.input_end, False)
    assert heard(await conversation.interrupt(second)) == (1, 15, False)
    assert heard(await conversation.interrupt(8 * STEP)) == (0, len("One, two,"), True)
    assert heard(await conversation.interrupt(0)) == (0, 0, False)
    await conversation.close()


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("今天，天气很好「我们」去公园。", "，」。"),
        ("สวัสดีครับวันนี้อากาศดีมากเราไปเที่ยวกัน", ""),
        ("ສະບາຍດີມື້ນີ້ອາກາດດີ", ""),
        ("我们 go 公园 today", ""),
    ],
)
async def test_scripts_without_spaces_are_heard_by_visible_characters(served, text, never):
    """The end is never far from the position, inside a character with its marks, or before closing punctuation."""
    conversation = Conversation(served)
    await conversation.start()
    end = await said(conversation, text)
    found = []
    for position in range(STEP, end, STEP):
        answer = await conversation.interrupt(position)
        at = answer.heard_input_end
        found.append(at)
        assert abs(at - position / STEP) <= 4
        assert at == len(text) or (unicodedata.category(text[at])[0] != "M" and text[at] not in never)
    assert found == sorted(found)
    assert len(set(found)) >= len(text) / 3
    await conversation.close()


async def test_speech_that_a_limit_cut_off_is_an_estimate_to_its_end(served):
    conversation = Conversation(served)
    await conversation.start()
    await said(conversation, "This sentence tells the pace.", end_turn=True)
    await conversation.write(turn=pb.TurnConfig(sampling=pb.Sampling(max_steps=8)))
    await said(conversation, "One two three four five six.")
    assert heard(await conversation.interrupt(conversation.sent)) == (1, 7, True)
    await conversation.close()


async def test_positions_before_the_segments_that_are_remembered_are_estimates(served, monkeypatch):
    monkeypatch.setattr("voxcpm_server.speech.heard.MAX_SPANS", 2)
    conversation = Conversation(served)
    await conversation.start()
    end = await said(conversation, "One. Two. Three. Four.")
    assert heard(await conversation.interrupt(STEP)) == (0, len("One. Two. "), True)
    assert heard(await conversation.interrupt(0)) == (0, 0, False)
    assert heard(await conversation.interrupt(end)) == (0, len("One. Two. Three. Four."), False)
    await conversation.close()


async def test_a_first_segment_in_progress_is_heard_at_the_usual_pace(served):
    """A letter takes about 70 ms as long as nothing else is known."""
    conversation = Conversation(served)
    await conversation.start()
    conversation.hold_after(40)
    text = "The museum opens at nine, and it closes at six on weekdays."
    await conversation.write(text=text + " It")
    await conversation.read_to(40 * STEP)
    answer = await conversation.interrupt(40 * STEP)  # 0.8 s
    assert text[: answer.heard_input_end] in ("The museum", "The museum opens")
    served.pool.release()
    await conversation.close()


class Halting(SlowClient):
    """Stops to read after a number of samples."""

    def __init__(self, samples: int) -> None:
        super().__init__(10**9)
        self.go_on = asyncio.Event()
        self._left = samples

    async def send(self, message: pb.AudioChunk) -> None:
        await super().send(message)
        self._left -= message.sample_count
        if self._left <= 0:
            await self.go_on.wait()


def test_audio_that_waits_for_a_slow_client_counts_for_the_pace(fake):
    """All of the segment has been made, in a pace that is far from the usual one, and little of it was sent."""
    client, pool = Halting(200 * STEP), fake(char_steps=20)
    text = "One two three four five six seven."

    played: list[int] = []

    def script() -> Iterator[Any]:
        yield Text(text)
        yield Flush("", False)
        yield 50.0  # until all tasks wait for the client
        assert pool.steps == len(text) * 20
        played.append(client.received[-1].offset_samples)
        client.go_on.set()
        yield Interrupt("", played[0])

    (answer,) = [m.interrupted for m in session(pool, script(), client=client) if m.HasField("interrupted")]
    assert answer.sent_samples < len(text) * 20 * STEP
    assert abs(answer.heard_input_end - played[0] / STEP / 20) <= 4


async def test_flushes_without_a_tag_are_counted_and_answered_ones_are_not(served):
    conversation = Conversation(served)
    await conversation.start()
    await said(conversation, "One. ")
    conversation.hold_after(2)
    await conversation.write(text="Two. ")
    for tag in ("a", "", "b"):
        await conversation.write(flush=pb.Flush(tag=tag))
    await conversation.read(lambda chunk: chunk.sample_count > 0)
    answer = await conversation.interrupt(None)
    assert list(answer.dropped_flush_tags) == ["a", "", "b"]
    served.pool.release()
    await said(conversation, "Three.")
    assert conversation.answered == ["", ""]
    assert not (await conversation.interrupt(None)).dropped_flush_tags
    await conversation.close()
