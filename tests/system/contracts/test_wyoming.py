"""`voxcpm-grpc wyoming` with the published client of Wyoming, unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.clients.ears import RATE, SENTENCE, resampled
from support.clients.page_programs import output_of, program
from support.servers.guarded_servers import create
from support.servers.running import serving
from support.servers.waiting import HANG_SECONDS, until
from support.servers.wyoming_services import audio_of, kinds_of, received, send, wyoming_service
from wyoming.audio import AudioStart
from wyoming.event import Event, async_read_event
from wyoming.info import Describe, Info, SelectProgram
from wyoming.ping import Ping
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from voxcpm_client import AsyncClient
from voxcpm_client.wyoming.caller import Timeouts
from voxcpm_client.wyoming.service import Service
from voxcpm_grpc.network.addresses import bound

MILES = SynthesizeVoice(name="miles")
LONG = "The children played in the snow until dark. " * 40


@pytest.fixture(scope="module")
def service(server):
    with wyoming_service(server.address) as service:
        yield service
        assert "Traceback" not in service.log


async def test_it_describes_the_models_and_their_voices(service, server):
    async with AsyncClient(server.address) as client:
        stored = await client.add_reference(await client.say(SENTENCE, voice="hazel"), name="Ada")
        async with service.caller() as caller:
            await send(caller, Describe())
            [event] = await received(caller, "info")
        await client.delete_voice(stored.id)
    [program] = Info.from_event(event).tts
    assert program.name == "demo"
    assert program.installed and program.supports_synthesize_streaming
    assert {"hazel", "miles", "george", "Ada"} == {voice.name for voice in program.voices}
    assert all(voice.installed and voice.languages == ["en"] for voice in program.voices)


async def test_a_text_is_understood(service, understood):
    async with service.caller() as caller:
        await send(caller, Synthesize(SENTENCE, MILES))
        events = await received(caller, "audio-stop")
        await send(caller, Ping("still here"))
        assert (await received(caller, "pong"))[-1].data == {"text": "still here"}
    assert kinds_of(events) == ["audio-start", "audio-chunk", "audio-stop"]
    start = AudioStart.from_event(events[0])
    assert (start.width, start.channels) == (2, 1)
    understood(resampled(audio_of(events), start.rate))


async def test_a_stream_speaks_while_its_text_still_comes(service, understood):
    async with service.caller() as caller:
        await send(caller, SynthesizeStart(MILES))
        for word in SENTENCE.split():
            await send(caller, SynthesizeChunk(f"{word} "))
        spoken = await received(caller, "audio-chunk")  # the rest of the text has not been sent
        await send(caller, SynthesizeChunk("They "), SynthesizeChunk("left."), Synthesize("They left."))
        await send(caller, SynthesizeStop())
        spoken += await received(caller, "synthesize-stopped")
    assert kinds_of(spoken) == ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"]
    understood(resampled(audio_of(spoken), AudioStart.from_event(spoken[0]).rate)[: 5 * RATE // 2])


async def test_the_first_chunk_of_a_sentence_has_its_text(service):
    async with service.caller() as caller:
        await send(
            caller, SynthesizeStart(MILES), SynthesizeChunk("Good morning. It is "), SynthesizeChunk("late now.")
        )
        await send(caller, SynthesizeStop())
        events = await received(caller, "synthesize-stopped")
    assert [event.data["text"] for event in events if "text" in event.data] == ["Good morning.", "It is late now."]


def test_the_agent_of_the_page_reports_what_was_heard(service, tmp_path):
    source = program("wyoming.md")
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 40
    (answer,) = re.findall(r'^ANSWER = "(.*)"$', source, re.MULTILINE)
    output = output_of(source.replace("10200", str(service.port)), tmp_path)
    said, _, heard = output.strip().partition(": ")
    assert said == "the user heard, the last one perhaps in part"
    assert heard and answer.startswith(heard) and heard != answer


async def test_the_options_hold_for_callers_that_choose_none(server):
    flags = ("--voice", "miles", "--seed", "5", "--rate", "16000", "--speed", "2")
    with wyoming_service(server.address, *flags) as service:
        async with service.caller() as caller, AsyncClient(server.address) as client:
            await send(caller, Synthesize(SENTENCE))
            events = await received(caller, "audio-stop")
            expected = await client.say(SENTENCE, voice="miles", seed=5, sample_rate=16000, speed=2)
            assert AudioStart.from_event(events[0]).rate == 16000
            assert audio_of(events) == expected.samples.tobytes()
            await send(caller, Synthesize(SENTENCE, SynthesizeVoice(name="hazel")))
            other = await received(caller, "audio-stop")
            assert audio_of(other) != audio_of(events)


async def test_a_model_of_languages_speaks_the_language_of_the_request(multilingual):
    seed = 1  # of seconds of speech; after many others, the random model goes on for minutes
    with wyoming_service(multilingual.address, "--seed", str(seed), "--speech-language", "fr") as service:
        async with service.caller() as caller, AsyncClient(multilingual.address) as client:
            for language, spoken in (("de-DE", "de"), ("fr", "fr"), (None, "fr")):
                await send(caller, Synthesize("Drei.", SynthesizeVoice(language=language)))
                events = await received(caller, "audio-stop")
                expected = await client.say("Drei.", seed=seed, speech_language=spoken)
                assert audio_of(events) == expected.samples.tobytes()
            await send(caller, Synthesize("Tre.", SynthesizeVoice(language="sv")))
            [error] = await received(caller)
    assert "language is 'sv'; it must be one of en, zh" in error.data["text"]


@pytest.mark.parametrize("pieces", [(), ("",), ("...",), ("😀", " ")])
async def test_a_text_without_words_has_no_audio(service, pieces):
    async with service.caller() as caller:
        await send(caller, SynthesizeStart(), *map(SynthesizeChunk, pieces), SynthesizeStop())
        kinds = kinds_of(await received(caller, "synthesize-stopped"))
        assert kinds == ["audio-start", "audio-stop", "synthesize-stopped"]
        await send(caller, Synthesize("".join(pieces)))
        assert kinds_of(await received(caller, "audio-stop")) == ["audio-start", "audio-stop"]


@pytest.mark.parametrize(
    ("events", "code", "words"),
    [
        ([Synthesize("Hello.", SynthesizeVoice(name="nobody"))], "VOICE_NOT_FOUND", "no voice 'nobody'"),
        ([SelectProgram("other"), Synthesize("Hello.")], "MODEL_NOT_FOUND", "'other'"),
        ([Synthesize("Hello.", SynthesizeVoice(language="no such tag"))], "INVALID_REQUEST", "language"),
        ([Synthesize("Hello.", SynthesizeVoice(name="miles", speaker="2"))], "INVALID_REQUEST", "voice.speaker is '2'"),
        ([Synthesize("<speak/>", text_format="ssml")], "INVALID_REQUEST", "text_format is 'ssml'"),
        ([SynthesizeStart(text_format="ssml")], "INVALID_REQUEST", "text_format is 'ssml'"),
        ([Event("synthesize", {})], "INVALID_REQUEST", "synthesize needs a text"),
        ([Event("synthesize", {"text": 7})], "INVALID_REQUEST", "synthesize needs a text"),
        ([Event("synthesize", {"text": "Hello.", "voice": "miles"})], "INVALID_REQUEST", "voice must be an object"),
        ([Event("synthesize", {"text": "Hi.", "voice": {"name": 1}})], "INVALID_REQUEST", "voice.name must be"),
        ([SynthesizeStart(), Event("synthesize-chunk", {"text": []})], "INVALID_REQUEST", "synthesize-chunk needs a"),
        ([SynthesizeStart(), SynthesizeStart()], "INVALID_REQUEST", "came twice"),
        ([SynthesizeChunk("Hello.")], "INVALID_REQUEST", "without synthesize-start"),
        ([SynthesizeStop()], "INVALID_REQUEST", "without synthesize-start"),
        ([Event("select-program", {"name": None})], "INVALID_REQUEST", "select-program needs a name"),
    ],
)
async def test_what_is_refused_is_an_error_that_names_it(service, events, code, words):
    async with service.caller() as caller:
        await send(caller, *events)
        answers = await received(caller)  # the connection ends, so that nobody waits for audio
    assert [answer.type for answer in answers] == ["error"]
    assert answers[0].data["code"] == code
    assert words in answers[0].data["text"]


async def test_events_of_other_kinds_are_ignored(service):
    async with service.caller() as caller:
        await send(caller, Event("transcribe", {"name": "other"}), Event("future", {}, b"\0" * 100_000))
        await send(caller, SynthesizeStart(), Event("future"), SynthesizeChunk("Hello."), SynthesizeStop())
        assert audio_of(await received(caller, "synthesize-stopped"))


async def test_a_caller_that_goes_away_frees_its_stream(service, server):
    cancelled = server.log.count("method=Generate code=CANCELLED")
    async with service.caller() as caller:
        await send(caller, Synthesize(LONG))
        await received(caller, "audio-chunk")
    async with service.caller() as caller:
        await send(caller, SynthesizeStart(), SynthesizeChunk(LONG))
        await received(caller, "audio-chunk")
    await until(lambda: server.log.count("method=Generate code=CANCELLED") == cancelled + 2)


async def test_it_ends_after_the_speech_in_progress(server):
    with wyoming_service(server.address) as service:
        async with service.caller() as caller:
            await send(caller, Synthesize(SENTENCE))
            spoken = await received(caller, "audio-chunk")
            service.process.send_signal(signal.SIGTERM)
            spoken += await received(caller, "audio-stop")
            assert spoken[-1].type == "audio-stop"
        assert await asyncio.to_thread(service.process.wait, HANG_SECONDS) == 0


async def test_at_the_limit_of_connections_idle_ones_make_room_and_speech_does_not(server):
    with wyoming_service(server.address, "--max-connections", "2") as service:
        async with service.caller() as speaking, service.caller() as idle:
            await send(speaking, Synthesize(LONG))
            await received(speaking, "audio-chunk")
            await send(idle, Describe())
            await received(idle, "info")
            async with service.caller() as third:
                await send(third, Synthesize(LONG))
                assert audio_of(await received(third, "audio-chunk"))
                assert await idle.read_event() is None
                async with service.caller() as fourth:
                    [refused] = await received(fourth)
                    assert refused.data["code"] == "TOO_MANY_CONNECTIONS"
                    assert "2 connections" in refused.data["text"]


async def test_the_key_of_the_service_is_sent_and_a_wrong_one_is_an_error(tmp_path):
    key = create("wyoming", tmp_path / "keys.toml")
    with serving(tmp_path / "voices", "--auth.keys", str(tmp_path / "keys.toml")) as server:
        for given, kind in ((key, "audio-stop"), (key[:-4] + "AAAA", "error")):
            with wyoming_service(server.address, "--api-key", given) as service:
                async with service.caller() as caller:
                    await send(caller, Synthesize("Hello."))
                    last = (await received(caller, "audio-stop"))[-1]
                    assert last.type == kind
                    assert given not in service.log
                    if kind == "error":
                        assert last.data["code"] == "CREDENTIAL_INVALID"


async def test_a_server_that_is_away_is_an_error_without_its_address():
    with wyoming_service("127.0.0.1:1", "--retry-seconds", "0") as service:
        async with service.caller() as caller:
            await send(caller, Describe())
            [error] = await received(caller)
        assert error.data == {
            "text": "the speech server cannot be reached; the log of this service has the cause",
            "code": "UNAVAILABLE",
        }
        assert "127.0.0.1:1" in service.log


async def test_speech_beyond_the_timeout_is_an_error(server):
    with wyoming_service(server.address, "--timeout", "0.5") as service:
        async with service.caller() as caller:
            await send(caller, Synthesize(LONG))
            error = (await received(caller))[-1]
        assert error.data == {
            "text": "the speech took longer than the --timeout of this service",
            "code": "DEADLINE_EXCEEDED",
        }


def line(**header: object) -> bytes:
    return json.dumps(header).encode() + b"\n"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "must be JSON"),
        (b"\n", "must be JSON"),
        (b"\xff\xfe\n", "must be JSON"),
        (b"[" * 50_000 + b"\n", "must be JSON"),
        (b"[1]\n", "must be an object"),
        (b"{}\n", "an event is"),
        (line(type=5), "an event is"),
        (line(type="describe", data=[1]), "an event is"),
        (b'{"type": "synthesize", "data": {"text": "\\ud800"}}\n', "half of a character"),
        (b'{"type": "synthesize-start"}\n{"type": "synthesize-chunk", "data": {"text": "\\ud800"}}\n', "half of a"),
        (b'{"type": "' + b"a" * (1 << 20), "longer than 65536 bytes"),
        (line(type="synthesize", data_length=1 << 40), "data_length is 1099511627776 and the limit is 65536"),
        (line(type="synthesize", payload_length=1 << 40), "payload_length is 1099511627776"),
        (line(type="synthesize", data_length=-1), "data_length must be a number of bytes"),
        (line(type="synthesize", data_length=True), "data_length must be a number of bytes"),
        (line(type="synthesize", data_length="3"), "data_length must be a number of bytes"),
        (line(type="synthesize", data_length=1.5), "data_length must be a number of bytes"),
        (line(type="synthesize", data_length=3) + b"abc", "must be JSON"),
        (line(type="synthesize", data_length=2) + b"[]", "must be an object"),
    ],
)
async def test_bytes_that_are_no_event_get_an_error_event(service, raw, words):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(raw)
    async with asyncio.timeout(HANG_SECONDS):
        error = await async_read_event(reader)
        assert error is not None and error.type == "error"
        assert error.data["code"] == "INVALID_REQUEST"
        assert words in error.data["text"]
        assert await reader.read() == b""
    writer.close()


async def test_an_event_that_breaks_off_ends_the_connection_alone(service):
    for raw in (b"{", line(type="synthesize", data_length=100) + b"{", line(type="x", payload_length=9) + b"1"):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(raw)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


@asynccontextmanager
async def hasty_service(address: str, **timeouts: float) -> AsyncIterator[int]:
    """The port of a service in this process, with other timeouts and small buffers."""
    with contextlib.closing(bound("127.0.0.1:0")) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections have the same
        async with AsyncClient(address) as client:
            service, listens = Service(client, {}, max_connections=10, timeouts=Timeouts(**timeouts)), asyncio.Event()
            running = asyncio.create_task(service.run(opened, announce=listens.set))
            await listens.wait()
            yield opened.getsockname()[1]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("timeouts", "raw", "words"),
    [
        ({"event": 0.01}, b'{"type": ', "did not end within 0.01 s"),
        ({"idle": 0.01}, b"", "no event came for 0.01 s"),
        ({"idle": 0.01}, b'{"type": "synthesize-start"}\n', "no event came for 0.01 s"),
    ],
)
async def test_a_caller_that_sends_too_slowly_gets_an_error(server, timeouts, raw, words):
    async with hasty_service(server.address, **timeouts) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        error = await async_read_event(reader)
        assert error is not None and error.type == "error" and words in error.data["text"]
        writer.close()


async def test_a_caller_that_does_not_read_loses_its_connection(server):
    cancelled = server.log.count("method=Generate code=CANCELLED")
    async with hasty_service(server.address, write=0.5) as port:
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            data = json.dumps({"text": LONG * 10}).encode()
            caller.sendall(line(type="synthesize", data_length=len(data)) + data)
            await until(lambda: server.log.count("method=Generate code=CANCELLED") > cancelled)


HOSTILE = (
    b"[" * 60_000 + b"\n",
    b'{"type": "' + b"a" * (1 << 20),
    line(type="synthesize", data_length=200_000) + b"{" * 100_000,
    b'{"type": "synthesize", "data": {"text": "Nobody reads this. Nobody reads this."}}\n' * 20,
    b'{"type": "synthesize-start"}\n{"type": "synthesize-chunk", "data": {"text": "Hello there. "}}\n' * 20,
    b'{"type": "describe"}\n' * 1000,
)


async def test_hostile_callers_change_nothing_for_others(service, server):
    stopped = asyncio.Event()

    async def attack(raw: bytes) -> None:
        while not stopped.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(raw)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(0.5):  # half of an event gets no answer
                    await reader.read(1)
            writer.transport.abort()

    async def spoken() -> bytes:
        async with service.caller() as caller:
            await send(caller, Synthesize(SENTENCE, MILES))
            events = await received(caller, "audio-stop")
            assert events[-1].type == "audio-stop", events[-1]
            return audio_of(events)

    alone = await spoken()
    assert alone
    held = [await asyncio.open_connection("127.0.0.1", service.port) for _ in HOSTILE]
    for (_, writer), raw in zip(held, HOSTILE, strict=True):
        writer.write(raw)  # and never reads
    attacks = [asyncio.create_task(attack(raw)) for raw in HOSTILE]
    for _ in range(3):
        beside = await spoken()
        assert len(beside) == pytest.approx(len(alone), rel=0.5)  # the seeds differ
    assert not [one for one in attacks if one.done()]
    stopped.set()
    await asyncio.gather(*attacks)
    for _, writer in held:
        writer.close()
    assert "Traceback" not in service.log
    assert not server.fault()
