"""The service for Pipecat in the published framework."""

from __future__ import annotations

import re

import numpy as np
import pytest
from pipecat.frames.frames import (
    CancelWorkerFrame,
    EndWorkerFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TextAggregationMode
from pipecat.tests.utils import run_test
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.string import TextPartForConcatenation, concatenate_aggregated_text
from support.clients.ears import RATE, SENTENCE, resampled
from support.clients.page_programs import output_of, program
from support.servers.guarded_servers import create
from support.servers.running import Server, serving
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_client import AsyncClient
from voxcpm_client.pipecat import VoxCPMTTSService

Settings = VoxCPMTTSService.Settings
ROUNDING = 32  # of 16-bit samples, by which a full batch may differ
LONG = "The children played in the snow until dark. " * 40


def a_service(server, voice: str | None = "miles", **options) -> VoxCPMTTSService:
    return VoxCPMTTSService(server.address, settings=Settings(voice=voice), sample_rate=RATE, **options)


def answer(*tokens: str) -> list[Frame]:
    return [LLMFullResponseStartFrame(), *map(LLMTextFrame, tokens), LLMFullResponseEndFrame()]


async def run(service: VoxCPMTTSService, *frames: Frame) -> tuple[list[Frame], list[ErrorFrame]]:
    """The frames that a pipeline with the service sends on, and its errors."""
    down, up = await run_test(service, frames_to_send=frames, start_timeout=HANG_SECONDS)
    return list(down), [frame for frame in (*down, *up) if isinstance(frame, ErrorFrame)]


def audio_of(frames: list[Frame]) -> bytes:
    return b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))


def text_of(frames: list[Frame]) -> str:
    """The words of the frames, joined as the context of a language model does."""
    words = [frame for frame in frames if isinstance(frame, TTSTextFrame)]
    return concatenate_aggregated_text(
        [
            TextPartForConcatenation(word.text, includes_inter_part_spaces=word.includes_inter_frame_spaces)
            for word in words
        ]
    )


async def test_tokens_are_spoken_and_understood(server, understood):
    frames, errors = await run(a_service(server), *answer(*re.findall(r"..?.?", SENTENCE)))
    assert not errors
    kinds = [type(frame) for frame in frames]
    started, stopped = kinds.index(TTSStartedFrame), kinds.index(TTSStoppedFrame)
    assert started < kinds.index(TTSAudioRawFrame) < stopped < kinds.index(LLMFullResponseEndFrame)
    assert {frame.sample_rate for frame in frames if isinstance(frame, TTSAudioRawFrame)} == {RATE}
    assert text_of(frames) == SENTENCE
    understood(resampled(audio_of(frames), RATE))


async def test_an_answer_is_one_stream_and_a_text_between_another(server):
    before = len(server.log)
    frames, errors = await run(
        a_service(server, options={"seed": 3}), *answer("One. ", "Two. ", "Three."), TTSSpeakFrame("Good bye.")
    )
    assert not errors
    calls = re.findall(r"method=Generate code=OK .* characters=(\d+)", server.log[before:])
    assert sorted(calls) == sorted([str(len("One. Two. Three.")), str(len("Good bye."))])
    async with AsyncClient(server.address) as client:
        first = await client.say("One. Two. Three.", voice="miles", sample_rate=RATE, seed=3)
        second = await client.say("Good bye.", voice="miles", sample_rate=RATE, seed=3)
    expected = np.concatenate([first.samples, second.samples]).astype(int)
    np.testing.assert_allclose(np.frombuffer(audio_of(frames), np.int16), expected, atol=ROUNDING)


@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_each_word_has_its_time(server, mode):
    text = "They left the party, before midnight. It was late."
    frames, errors = await run(a_service(server, text_aggregation_mode=mode), *answer(*re.findall(r"\S+\s*", text)))
    assert not errors
    words = [frame for frame in frames if isinstance(frame, TTSTextFrame)]
    assert text_of(frames) == text
    times = np.array([word.pts for word in words]) / 1e9
    assert (np.diff(times) >= 0).sum() >= len(words) - 2  # an estimate may be longer than its segment
    assert times[-1] - times[0] < 2 * len(audio_of(frames)) / 2 / RATE
    assert len(set(times)) > 5


async def test_characters_without_spaces_stay_together(server):
    frames, _ = await run(a_service(server), *answer("你好，", "世界。"))
    assert text_of(frames) == "你好，世界。"


class Interrupter(FrameProcessor):
    """Interrupts the pipeline at the first audio, sends frames after that, and keeps what still comes of the speech."""

    def __init__(self, service: VoxCPMTTSService, *after: Frame) -> None:
        super().__init__()
        self.late: list[Frame] = []
        self._service, self._after, self._sent, self._passed = service, after, False, False

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame) and not self._sent:
            self._sent = True
            await self._service.queue_frame(InterruptionFrame())
        if isinstance(frame, InterruptionFrame) and not self._passed:
            self._passed = True
            for one in self._after:
                await self._service.queue_frame(one)
            await self.push_frame(EndWorkerFrame(), FrameDirection.UPSTREAM)
        elif self._passed and isinstance(frame, TTSAudioRawFrame | TTSTextFrame):
            self.late.append(frame)
        await self.push_frame(frame, direction)


async def interrupted(server: Server, *after: Frame) -> list[Frame]:
    """The frames of speech that come after the interruption of a long answer, and of frames after it."""
    service = a_service(server)
    interrupter = Interrupter(service, *after)
    pipeline = Pipeline([service, interrupter])
    await run_test(pipeline, frames_to_send=answer(LONG), start_timeout=HANG_SECONDS, send_end_frame=False)
    return interrupter.late


async def test_an_interruption_cancels_the_call_and_nothing_of_the_turn_comes_later(server):
    before, cancelled = server.calls("Generate"), server.log.count("method=Generate code=CANCELLED")
    assert await interrupted(server) == []
    await until(lambda: server.calls("Generate") == before + 1)
    assert server.log.count("method=Generate code=CANCELLED") == cancelled + 1


async def test_a_turn_after_an_interruption_is_spoken(server, understood):
    late = await interrupted(server, *answer(*re.findall(r"\S+\s*", SENTENCE)))
    assert text_of(late) == SENTENCE
    understood(resampled(audio_of(late), RATE))


async def test_a_text_that_is_not_interruptible_goes_on(server):
    last = TTSSpeakFrame("Good bye.")
    last.interruptible = False
    late = await interrupted(server, last, InterruptionFrame())
    assert text_of(late) == "Good bye."


async def test_settings_hold_from_the_next_turn_on(server):
    service = a_service(server, voice=None)
    delta = Settings(voice="hazel", speed=2.0, seed=5, language=Language.EN_US)
    frames, errors = await run(service, TTSUpdateSettingsFrame(delta=delta), TTSSpeakFrame(SENTENCE))
    assert not errors
    async with AsyncClient(server.address) as client:
        expected = await client.say(SENTENCE, voice="hazel", speed=2, seed=5, sample_rate=RATE, language="en-US")
    assert audio_of(frames) == expected.samples.tobytes()


async def test_the_language_of_the_speech_is_a_setting(multilingual):
    seed = 3  # of seconds of speech; after many others, the random model goes on for minutes
    service = a_service(multilingual, voice="vivian", options={"seed": seed})
    delta = Settings(language=Language.DE, speech_language="de")
    frames, errors = await run(service, TTSUpdateSettingsFrame(delta=delta), TTSSpeakFrame("Drei."))
    assert not errors
    async with AsyncClient(multilingual.address) as client:
        given = {"voice": "vivian", "seed": seed, "sample_rate": RATE}
        expected = await client.say("Drei.", **given, speech_language="de")
        other = await client.say("Drei.", **given)
    assert audio_of(frames) == expected.samples.tobytes() != other.samples.tobytes()


@pytest.mark.parametrize("text", ["...", "😀"])
async def test_a_text_without_words_is_no_failure(server, text):
    frames, errors = await run(a_service(server), *answer(text))
    assert not errors
    assert len(audio_of(frames)) < RATE


@pytest.mark.parametrize(
    ("settings", "options", "category", "words"),
    [
        ({"voice": "nobody"}, {}, ErrorCategory.INVALID_REQUEST, "there is no voice 'nobody'"),
        ({"model": "other"}, {}, ErrorCategory.INVALID_REQUEST, "'other'"),
        ({"speed": 9.0}, {}, ErrorCategory.INVALID_REQUEST, "speed is 9"),
        ({"voice": "miles"}, {"no_voice": True}, ErrorCategory.INVALID_REQUEST, "no_voice cannot be combined"),
        ({}, {"timeout": 0.5}, ErrorCategory.CONNECTIVITY, "within its timeout"),
    ],
)
async def test_errors_are_frames_with_the_sentence_of_the_server(server, settings, options, category, words):
    service = VoxCPMTTSService(server.address, settings=Settings(**settings), options=options, sample_rate=RATE)
    frames, errors = await run(service, *answer(LONG))
    assert words in errors[0].error
    assert errors[0].category is category
    assert errors[0].exception is not None
    assert len(text_of(frames)) < len(LONG) / 2  # words that nobody heard are not said to be spoken
    assert service.is_usable is (not category.is_permanent)


async def test_a_turn_of_which_nothing_can_be_sent_holds_nobody_up(server):
    frames, errors = await run(a_service(server), *answer("\ud800"), TTSSpeakFrame("Good bye."))
    assert errors
    assert text_of(frames) == "Good bye."


async def test_a_server_that_is_away_is_an_error_of_the_connection():
    failed = []
    async with AsyncClient("127.0.0.1:1", retry_seconds=0) as client:
        service = VoxCPMTTSService(client, sample_rate=RATE)

        @service.event_handler("on_connection_error")
        async def on_connection_error(_: VoxCPMTTSService, error: str) -> None:
            failed.append(error)

        _, errors = await run(service, *answer("Hello."))
    assert errors[0].category is ErrorCategory.CONNECTIVITY
    assert "no server answers" in errors[0].error
    assert failed


async def test_the_client_has_the_key(tmp_path):
    key = create("agent", tmp_path / "keys.toml")
    with serving(tmp_path / "voices", "--auth.keys", str(tmp_path / "keys.toml")) as server:
        async with AsyncClient(server.address, api_key=key) as client:
            frames, errors = await run(VoxCPMTTSService(client, sample_rate=RATE), TTSSpeakFrame("Hello."))
            assert audio_of(frames) and not errors
            assert await client.list_models()  # the service leaves it open
        _, errors = await run(VoxCPMTTSService(server.address, sample_rate=RATE), TTSSpeakFrame("Hello."))
        assert errors[0].category is ErrorCategory.AUTHENTICATION


async def test_a_cancelled_pipeline_cancels_the_call(server):
    class Canceller(FrameProcessor):
        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, TTSAudioRawFrame):
                await self.push_frame(CancelWorkerFrame(), FrameDirection.UPSTREAM)
            await self.push_frame(frame, direction)

    cancelled = server.log.count("method=Generate code=CANCELLED")
    pipeline = Pipeline([a_service(server), Canceller()])
    await run_test(pipeline, frames_to_send=answer(LONG), start_timeout=HANG_SECONDS, send_end_frame=False)
    await until(lambda: server.log.count("method=Generate code=CANCELLED") == cancelled + 1)


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="did you mean 'lexicon'"):
        VoxCPMTTSService(options={"lexikon": {}})  # pyright: ignore[reportArgumentType]


def test_the_agent_of_the_page_reports_what_was_heard(server, tmp_path):
    source = program("pipecat.md")
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 40
    (text,) = re.findall(r'^ANSWER = "(.*)"$', source, re.MULTILINE)
    output = output_of(source.replace("127.0.0.1:50051", server.address), tmp_path)
    said, _, heard = output.strip().partition(": ")
    assert said == "the user heard"
    assert heard and text.startswith(heard) and heard != text
