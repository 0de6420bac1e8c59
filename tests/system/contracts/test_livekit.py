"""The plugin for LiveKit Agents in the published framework, and LiveKit's own plugin for Riva."""

from __future__ import annotations

import re

import numpy as np
import pytest
from livekit import rtc
from livekit.agents import APIConnectionError, APIStatusError, APITimeoutError
from livekit.agents.tts import SynthesizedAudio
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, APIConnectOptions, TimedString
from support.clients.ears import RATE, SENTENCE, resampled
from support.clients.page_programs import output_of, program
from support.servers.guarded_servers import create
from support.servers.running import serving
from support.servers.waiting import until

from voxcpm_client import AsyncClient, InvalidArgument
from voxcpm_client.livekit import TTS

ONCE = APIConnectOptions(max_retry=0)
LONG = "The children played in the snow until dark. " * 40


@pytest.fixture
async def service(server):
    async with TTS(server.address, voice="miles", sample_rate=RATE) as service:
        yield service


def pcm(events: list[SynthesizedAudio]) -> bytes:
    return b"".join(event.frame.data.tobytes() for event in events)


def words_of(events: list[SynthesizedAudio]) -> list[TimedString]:
    return [word for event in events for word in event.frame.userdata[USERDATA_TIMED_TRANSCRIPT]]


async def spoken(service: TTS, *tokens: str) -> list[SynthesizedAudio]:
    async with service.stream(conn_options=ONCE) as stream:
        for token in tokens:
            stream.push_text(token)
        stream.end_input()
        return [event async for event in stream]


async def synthesized(service: TTS, text: str) -> rtc.AudioFrame:
    return await service.synthesize(text, conn_options=ONCE).collect()


async def test_tokens_are_spoken_and_understood(service, understood):
    events = await spoken(service, *re.findall(r"..?.?", SENTENCE))
    assert {event.frame.sample_rate for event in events} == {RATE}
    assert [event.is_final for event in events].index(True) == len(events) - 1
    assert len({event.request_id for event in events}) == 1
    understood(resampled(pcm(events), RATE))


async def test_a_whole_text_is_spoken_at_the_rate_of_the_service(server, understood):
    async with (
        TTS(server.address, voice="miles", sample_rate=48000, seed=3) as service,
        AsyncClient(server.address) as client,
    ):
        frame = await synthesized(service, SENTENCE)
        expected = await client.say(SENTENCE, voice="miles", sample_rate=48000, seed=3)
    assert frame.sample_rate == 48000
    samples = np.frombuffer(frame.data, np.int16)
    np.testing.assert_array_equal(samples[: len(expected.samples)], expected.samples)
    assert not samples[len(expected.samples) :].any()  # LiveKit adds 10 ms


async def test_a_sentence_is_spoken_while_the_rest_of_the_text_still_comes(service):
    async with service.stream(conn_options=ONCE) as stream:
        stream.push_text("They left the party. And")
        first = await anext(stream)
        assert first.frame.duration > 0
        stream.push_text(" then it was late.")
        stream.flush()  # ends the text, although the input is open
        rest = [event async for event in stream]
    assert "".join(words_of([first, *rest])) == "They left the party. And then it was late."


async def test_each_word_has_its_time_before_its_audio(service):
    text = "  They left the party, before midnight.  \nIt was 你好 late 😀 "
    events = await spoken(service, *text)
    assert "".join(words_of(events)) == text
    position, last = 0.0, 0.0
    for event in events:
        for word in event.frame.userdata[USERDATA_TIMED_TRANSCRIPT]:
            assert word.start_time >= position - 0.25  # frames have at most 200 ms
            assert word.start_time >= last / 2  # an estimate may be longer than its segment
            last = word.start_time
        position += event.frame.duration
    assert last < 2 * position


async def test_a_stream_that_is_closed_cancels_its_call_and_gives_no_more_audio(service, server):
    cancelled = server.log.count("method=Generate code=CANCELLED")
    stream = service.stream(conn_options=ONCE)
    stream.push_text(LONG)
    await anext(stream)
    await stream.aclose()
    await until(lambda: server.log.count("method=Generate code=CANCELLED") == cancelled + 1)
    assert [event async for event in stream] == []
    assert pcm(await spoken(service, "Hello."))


async def test_the_streams_share_the_connection_that_prewarm_opens(server):
    async with TTS(server.address, voice="miles", sample_rate=RATE) as service:
        calls = server.calls("ListModels")
        service.prewarm()
        await until(lambda: server.calls("ListModels") > calls)
        before = len(server.log)
        for _ in range(2):
            assert pcm(await spoken(service, "Hello."))
    peers = re.findall(r"method=Generate code=OK .* peer=(\S+)", server.log[before:])
    [warmed] = re.findall(r"method=ListModels code=OK .* peer=(\S+)", server.log)[-1:]
    assert set(peers) == {warmed}


async def test_new_options_hold_from_the_next_turn_on(service):
    one, other = await spoken(service, "Hello."), None
    service.update_options(voice="hazel", speed=2)
    other = await spoken(service, "Hello.")
    assert len(pcm(other)) < len(pcm(one))
    with pytest.raises(TypeError, match="did you mean 'voice'"):
        service.update_options(voices="hazel")
    for fixed in ({"sample_rate": 48000}, {"format": "mp3"}):
        with pytest.raises(InvalidArgument, match="here it stays"):
            service.update_options(**fixed)


@pytest.mark.parametrize("text", ["...", "😀", " "])
async def test_a_text_without_words_is_no_failure(service, text):
    events = await spoken(service, text)
    assert len(pcm(events)) < RATE


async def test_no_text_is_no_call(service, server):
    calls = server.calls("Generate")
    assert await spoken(service) == []
    assert pcm(await spoken(service, "Hello."))
    assert server.calls("Generate") == calls + 1


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"voice": "nobody"}, 404, "there is no voice 'nobody'"),
        ({"speed": 9}, 400, "speed is 9"),
        ({"model": "other"}, 404, "'other'"),
        ({"sample_rate": 12345}, 400, "12345"),
        ({"voice": "miles", "no_voice": True}, 400, "no_voice cannot be combined"),
    ],
)
async def test_errors_are_those_of_livekit_with_the_sentence_of_the_server(server, options, status, words):
    reported = []
    async with TTS(server.address, **options) as service:
        service.on("error", reported.append)
        for call in (spoken, synthesized):
            with pytest.raises(APIStatusError) as caught:
                await call(service, "Hello.")
            assert caught.value.status_code == status
            assert words in caught.value.message
            assert not caught.value.retryable
            assert caught.value.body["code"] in ("INVALID_ARGUMENT", "NOT_FOUND")
    assert reported and not any(one.recoverable for one in reported)


async def test_a_server_that_is_away_is_a_failed_connection():
    async with AsyncClient("127.0.0.1:1", retry_seconds=0) as client, TTS(client) as service:
        with pytest.raises(APIConnectionError, match="no server answers") as caught:
            await spoken(service, "Hello.")
        assert caught.value.retryable


async def test_a_turn_that_takes_longer_than_its_timeout_is_one(server):
    async with TTS(server.address, voice="miles", timeout=0.5) as service:
        with pytest.raises(APITimeoutError, match="within its timeout"):
            await spoken(service, LONG)


async def test_the_client_has_the_key(tmp_path):
    key = create("agent", tmp_path / "keys.toml")
    with serving(tmp_path / "voices", "--auth.keys", str(tmp_path / "keys.toml")) as server:
        async with AsyncClient(server.address, api_key=key) as client:
            async with TTS(client, sample_rate=RATE) as service:
                assert pcm(await spoken(service, "Hello."))
            assert await client.list_models()  # the service leaves it open
        async with TTS(server.address, sample_rate=RATE) as service:
            with pytest.raises(APIStatusError) as caught:
                await spoken(service, "Hello.")
            assert caught.value.status_code == 401


def test_the_agent_of_the_page_reports_what_was_heard(server, tmp_path):
    source = program("livekit.md")
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 40
    (answer,) = re.findall(r'^ANSWER = "(.*)"$', source, re.MULTILINE)
    cancelled = server.log.count("method=Generate code=CANCELLED")
    output = output_of(source.replace("127.0.0.1:50051", server.address), tmp_path)
    said, _, heard = output.strip().partition(": ")
    assert said == "the user heard"
    assert heard and answer.startswith(heard) and heard != answer
    assert server.log.count("method=Generate code=CANCELLED") <= cancelled + 1


async def test_the_plugin_of_nvidia_speaks_unchanged(server, understood):
    from livekit.plugins import nvidia

    service = nvidia.TTS(server=server.address, voice="miles", use_ssl=False)
    assert "demo.miles" in service.list_voices()["en"]["voices"]
    async with service.stream() as stream:
        for word in SENTENCE.split():
            stream.push_text(f"{word} ")
        stream.end_input()
        events = [event async for event in stream]
    understood(resampled(pcm(events), service.sample_rate))
    frame = await service.synthesize(SENTENCE).collect()
    understood(resampled(frame.data.tobytes(), service.sample_rate))
