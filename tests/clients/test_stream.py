import asyncio
import gc
import itertools
import threading
import wave

import numpy as np
import pytest
from support.doubles.cycles import no_warnings
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_client import AsyncClient, Cancelled, Client, Encoding, InvalidArgument, SpeechError
from voxcpm_grpc.v1 import tts_pb2 as pb

TEXT = "Hello, 你好!"


@pytest.fixture
async def client(server):
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        yield client


async def test_say_returns_the_speech_with_its_header_and_summary(client, server):
    speech = await client.say(TEXT, request_id="mine", seed=5)
    np.testing.assert_array_equal(speech.samples, server.samples(TEXT))
    assert speech.samples.dtype == np.int16
    assert (speech.header.request_id, speech.header.seed, speech.sample_rate) == ("mine", 5, 16000)
    assert speech.header.encoding == Encoding.PCM_S16LE
    assert speech.summary is not None
    assert speech.summary.finish_reason == "complete"
    assert speech.summary.total_samples == len(speech.samples)
    assert speech.summary.time_to_first_audio_seconds == 0.25


@pytest.mark.parametrize("format", ["pcm_s16le", "pcm_f32le", "wav"])
async def test_samples_are_the_same_in_every_format(client, server, format):
    async with client.speak(["ab", "c"], format=format) as stream:
        chunks = [chunk async for chunk in stream]
    samples = np.concatenate([chunk.samples for chunk in chunks])
    expected = server.samples("abc")
    if format == "pcm_f32le":
        assert samples.dtype == np.float32
        np.testing.assert_array_equal(samples, expected / np.float32(32768))
    else:
        np.testing.assert_array_equal(samples, expected)
    assert b"".join(chunk.audio for chunk in chunks).startswith(b"RIFF") == (format == "wav")


async def test_chunks_have_their_position_and_their_segments(client):
    async with client.speak(["ab", "c"], sample_rate=8000) as stream:
        chunks = [chunk async for chunk in stream]
    assert [(chunk.sequence, chunk.offset, chunk.sample_count, chunk.segment) for chunk in chunks] == [
        (1, 0, 320, 0),
        (2, 320, 160, 1),
    ]
    assert [event.text for chunk in chunks for event in chunk.events] == ["ab", "c"]
    assert chunks[0].events[0].kind == "started"
    assert chunks[0].seconds == 320 / 8000


async def _async_pieces():
    for piece in ("He", "", "llo, ", "你好!"):
        await asyncio.sleep(0)
        yield piece


@pytest.mark.parametrize(
    "text",
    [
        lambda: ["He", "llo, ", "", "你好!"],
        lambda: iter(["He", "llo, 你好!"]),
        _async_pieces,
        lambda: (c for c in TEXT),
    ],
    ids=["list", "iterator", "async generator", "characters"],
)
async def test_text_can_be_pieces_of_any_kind(client, server, text):
    speech = await client.say(text())
    np.testing.assert_array_equal(speech.samples, server.samples(TEXT))
    assert server.streams[-1].text == TEXT


async def test_a_long_string_is_sent_in_several_messages(client, server):
    text = "x" * 40_000
    server.fail("INVALID_ARGUMENT", after_chunks=1)  # the audio does not matter here
    with pytest.raises(SpeechError):
        await client.say(text)
    assert max(len(message.text) for message in server.streams[-1].received) < 20_000


async def test_audio_arrives_before_the_text_is_complete(client, server):
    received = asyncio.Event()

    async def written():
        yield "first"
        await asyncio.wait_for(received.wait(), HANG_SECONDS)
        yield "second"

    async with client.speak(written()) as stream:
        chunks = []
        async for chunk in stream:
            received.set()
            chunks.append(chunk)
    np.testing.assert_array_equal(chunks[-1].samples, server.samples("second"))


async def test_an_iterable_that_blocks_does_not_block_the_loop(client, server):
    release = threading.Event()

    def blocking():
        yield "one"
        assert release.wait(HANG_SECONDS)
        yield "two"

    async with client.speak(blocking()) as stream:
        first = await anext(stream)
        release.set()  # reached only if the loop is not blocked
        rest = [chunk async for chunk in stream]
    np.testing.assert_array_equal(first.samples, server.samples("one"))
    np.testing.assert_array_equal(rest[0].samples, server.samples("two"))


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_the_error_of_a_text_iterator_is_raised_and_ends_the_call(client, server, asynchronous):
    def broken():
        yield "one"
        server.wait_for_text("one")
        raise LookupError("no more words")

    async def broken_async():
        yield "one"
        await asyncio.to_thread(server.wait_for_text, "one")
        raise LookupError("no more words")

    with pytest.raises(LookupError, match="no more words"):
        await client.say(broken_async() if asynchronous else broken())
    assert await asyncio.to_thread(server.streams[-1].cancelled.wait, HANG_SECONDS)


async def test_text_that_is_not_a_string_is_a_type_error(client):
    with pytest.raises(TypeError, match="must be str"):
        await client.say([b"bytes"])  # pyright: ignore


async def test_leaving_early_cancels_the_call(client, server):
    async with client.speak(itertools.repeat("on and on ")) as stream:
        await anext(stream)
    assert await asyncio.to_thread(server.streams[-1].cancelled.wait, HANG_SECONDS)
    assert [chunk async for chunk in stream] == []


async def test_cancelling_the_task_cancels_the_call(client, server):
    server.hold.clear()
    task = asyncio.create_task(client.say(TEXT))
    assert await asyncio.to_thread(server.wait_for_calls, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.streams[-1].cancelled.wait, HANG_SECONDS)


async def test_a_stream_works_without_a_with_block_and_ends_once(client, server):
    stream = client.speak("ab")
    assert [chunk.sample_count async for chunk in stream] == [320]
    assert [chunk async for chunk in stream] == []
    await stream.aclose()


async def test_a_session_sends_text_between_chunks(client, server):
    async with client.session(voice="ref_1") as session:
        await session.send_text("one")
        first = await anext(session)
        await session.flush(end_turn=True, tag="f")
        flushed = (await anext(session)).flushed
        await session.send_text("two")
        await anext(session)
        await session.interrupt(tag="i")
        interrupted = (await anext(session)).interrupted
        await session.finish()
        assert [chunk async for chunk in session] == []
        assert session.summary is not None
        assert session.summary.total_samples == 960
    np.testing.assert_array_equal(first.samples, server.samples("one"))
    assert flushed is not None and (flushed.tag, flushed.at_samples) == ("f", 480)
    assert interrupted is not None and (interrupted.tag, interrupted.sent_samples) == ("i", 960)
    assert server.streams[-1].config.conditioning.voice == "ref_1"


async def test_an_interrupt_says_what_was_heard(client, server):
    async with client.session() as session:
        await session.send_text("one two")
        await anext(session)
        await session.interrupt()
        silent = (await anext(session)).interrupted
        await session.interrupt(tag="i", played_samples=np.int64(480))
        told = (await anext(session)).interrupted
    assert (silent.heard_input_end, silent.heard_turn, silent.heard_estimated) == (None, None, False)
    assert silent.dropped_flushes == ()
    assert (told.tag, told.sent_samples) == ("i", 1120)
    assert (told.heard_input_end, told.heard_turn, told.heard_estimated) == (3, 0, True)
    assert told.dropped_flushes == ("a", "")


@pytest.mark.parametrize(
    ("played", "error", "words"),
    [
        (-1, InvalidArgument, "played_samples is -1; it must be 0 or more"),
        (1 << 63, InvalidArgument, "at most what was received"),
        (0.5, TypeError, "played_samples is float; it must be an int"),
        ("480", TypeError, "played_samples is str; it must be an int"),
    ],
)
async def test_a_position_that_cannot_be_sent_is_refused_and_the_session_goes_on(client, server, played, error, words):
    async with client.session() as session:
        with pytest.raises(error, match=words):
            await session.interrupt(played_samples=played)
        await session.send_text("one")
        np.testing.assert_array_equal((await anext(session)).samples, server.samples("one"))
    assert not any(message.HasField("interrupt") for message in server.streams[-1].received)


def test_the_settings_of_turns_are_sent_in_order(server):
    with Client(server.target) as client, client.session(style="calm", seed=5, cfg_value=3.0) as session:
        session.send_text("one")
        session.set_turn(style="loud", timesteps=6, max_steps=9)
        session.set_turn()
        with pytest.raises(TypeError, match="set_turn\\(\\) has no option 'stile'; did you mean 'style'"):
            session.set_turn(stile="loud")  # pyright: ignore[reportCallIssue]
        session.finish()
        for _ in session:
            pass
    config, _, loud, default = server.streams[-1].received
    assert (config.config.turn.style, config.config.turn.sampling.seed) == ("calm", 5)
    sampling = loud.turn.sampling
    assert (loud.turn.style, sampling.inference_timesteps, sampling.max_steps) == ("loud", 6, 9)
    assert not sampling.HasField("seed") and not sampling.HasField("cfg_value")
    assert default.WhichOneof("request") == "turn" and default.turn == pb.TurnConfig(sampling=pb.Sampling())


async def test_a_wait_for_a_chunk_can_time_out_and_be_repeated(client, server):
    async with client.session() as session:
        for piece in ("one", "two"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(session), 0.1)
            await session.send_text(piece)
            np.testing.assert_array_equal((await anext(session)).samples, server.samples(piece))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(session), 0.1)
    assert await asyncio.to_thread(server.streams[-1].cancelled.wait, HANG_SECONDS)


async def test_a_wait_can_time_out_between_two_attempts(client, server):
    server.fail("UNAVAILABLE", retry_after=0.4)
    async with client.speak("one") as stream:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.2)
        np.testing.assert_array_equal((await anext(stream)).samples, server.samples("one"))
    assert len(server.calls) == 2


async def test_a_timeout_outside_of_a_with_block_cancels_the_call(client, server):
    server.hold.clear()
    waiting = asyncio.ensure_future(anext(client.speak(TEXT)))
    assert await asyncio.to_thread(server.wait_for_calls, 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0.1)
    assert await asyncio.to_thread(server.streams[-1].cancelled.wait, HANG_SECONDS)


async def test_a_finished_session_takes_no_more_text(client):
    async with client.session() as session:
        await session.finish()
        with pytest.raises(Cancelled, match="finished"):
            await session.send_text("late")


async def test_text_sent_before_a_session_starts_follows_its_config(client, server):
    session = client.session(seed=3)
    await session.send_text("early")
    await session.finish()
    assert len((await session.speech()).samples) == 800
    assert server.streams[-1].config.turn.sampling.seed == 3


async def test_many_streams_share_a_client(client, server):
    texts = [f"stream {number}" for number in range(6)]
    for speech, text in zip(await asyncio.gather(*map(client.say, texts)), texts, strict=True):
        np.testing.assert_array_equal(speech.samples, server.samples(text))


def test_the_blocking_client_does_the_same(server, tmp_path):
    with Client(server.target, timeout=HANG_SECONDS) as client:
        speech = client.say(iter(["He", "llo, 你好!"]), seed=1)
        np.testing.assert_array_equal(speech.samples, server.samples(TEXT))
        speech.save(tmp_path / "speech.wav")
        with client.speak("ab") as stream:
            assert [chunk.sample_count for chunk in stream] == [320]
            assert stream.header is not None and stream.summary is not None
            assert stream.request_id == stream.header.request_id
        with pytest.raises(LookupError):
            client.say(_broken())
        assert client.health()
    with wave.open(str(tmp_path / "speech.wav")) as file:
        assert (file.getframerate(), file.getnframes(), file.getsampwidth()) == (16000, 160 * len(TEXT), 2)


def _broken():
    yield "one"
    raise LookupError


def test_one_thread_writes_a_blocking_session_and_another_reads_it(server):
    with Client(server.target, timeout=HANG_SECONDS) as client, client.session() as session:

        def write() -> None:
            for piece in ("a", "b", "c"):
                session.send_text(piece)
            session.flush(tag="t")
            session.interrupt()
            session.finish()

        writer = threading.Thread(target=write)
        writer.start()
        chunks = list(session)
        writer.join(HANG_SECONDS)
    samples = np.concatenate([chunk.samples for chunk in chunks])
    np.testing.assert_array_equal(samples, server.samples("abc"))
    assert sum(chunk.flushed is not None for chunk in chunks) == 1


def test_a_blocking_client_leaves_no_thread_behind(server):
    def ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("voxcpm event loop")]

    before = len(ours())
    with Client(server.target) as client:
        client.health()
        assert len(ours()) == before + 1
    assert len(ours()) == before
    forgotten = Client(server.target)
    forgotten.health()
    del forgotten
    gc.collect()
    wait_until(lambda: len(ours()) == before)


def test_closing_a_blocking_client_ends_streams_that_were_left_open(server, caplog):
    with no_warnings():
        with Client(server.target) as client:
            stream = client.speak(itertools.repeat("on and on "))
            next(stream)
        assert server.streams[-1].cancelled.wait(HANG_SECONDS)
    assert not caplog.records


async def test_sending_waits_if_the_connection_is_far_behind(client, server):
    server.hold.clear()
    sent = 0
    async with client.session() as session:

        async def write() -> None:
            nonlocal sent
            for _ in range(5000):
                await session.send_text("word " * 200)
                sent += 1

        writer = asyncio.create_task(write())
        before = 0
        while not sent or sent > before:
            before = sent
            await asyncio.sleep(0.5)
        assert sent < 5000
        writer.cancel()
