"""The messages of the client, one by one: the test plays the server through `grpc_testing`, without a socket."""

import queue
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256

import grpc
import numpy as np
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import BadRequest, RequestInfo, RetryInfo
from google.rpc.status_pb2 import Status
from support.servers.played_server import HEADER, PlayedServer, audio
from support.servers.waiting import wait_until

from voxcpm_client import Aborted, Client, Exhausted, InvalidArgument, SpeechError, Unavailable
from voxcpm_grpc.v1 import tts_pb2 as pb

METADATA = {"authorization": "Bearer token"}
SUMMARY = pb.AudioChunk(summary=pb.StreamSummary(finish_reason=pb.FINISH_REASON_COMPLETE, total_samples=3))


def kinds(messages: list) -> list[str]:
    return [message.WhichOneof("request") for message in messages]


@pytest.fixture
def server(monkeypatch) -> PlayedServer:
    played = PlayedServer()
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda target, options: played.channel)
    return played


@pytest.fixture
def client(server):
    with Client(metadata=METADATA, timeout=100.0) as client:
        yield client


@pytest.fixture
def background(client):
    """Runs a blocking call of the client while the test plays the server."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit
        client.close()  # ends a call that the test left open


def error_of(call: Future) -> SpeechError:
    error = call.exception()
    assert isinstance(error, SpeechError)
    return error


# ------------------------------------------------------------ speech


def test_a_stream_sends_its_config_then_its_text_and_then_closes(client, server):
    with client.speak(["Hello, ", "", "world."], request_id="mine", seed=7) as stream:
        call = server.take("Generate")
        config, *texts = call.receive(3)
        call.receive_end()
        assert kinds([config, *texts]) == ["config", "text", "text"]
        assert (config.config.request_id, config.config.turn.sampling.seed) == ("mine", 7)
        assert [message.text for message in texts] == ["Hello, ", "world."]
        call.send(HEADER, audio(1, 2), audio(3, offset_samples=2), SUMMARY)
        call.end()
        speech = stream.speech()
    assert speech.samples.tolist() == [1, 2, 3]
    assert (speech.header.seed, speech.header.model) == (7, "played")
    assert speech.summary is not None and speech.summary.finish_reason == "complete"


def test_text_and_audio_take_turns_on_one_stream(client, server):
    pieces = queue.SimpleQueue()
    with client.speak(iter(pieces.get, None)) as stream:
        call = server.take("Generate")
        assert kinds(call.receive(1)) == ["config"]  # before there is any text
        call.send(HEADER)
        for number, piece in enumerate(("one", "two"), 1):
            pieces.put(piece)
            assert call.receive(1)[0].text == piece
            call.send(audio(number))
            assert next(stream).samples.tolist() == [number]
        pieces.put(None)
        call.receive_end()
        call.end()
        assert list(stream) == []


def test_a_session_sends_its_messages_in_order_and_reads_the_answers(client, server):
    with client.session(voice="ref_1") as session:
        session.send_text("one")
        session.flush(end_turn=True, tag="f")
        session.interrupt(tag="i")
        session.finish()
        call = server.take("Generate")
        config, text, flush, interrupt = call.receive(4)
        call.receive_end()
        assert config.config.conditioning.voice == "ref_1"
        assert text.text == "one"
        assert (flush.flush.end_turn, flush.flush.tag, interrupt.interrupt.tag) == (True, "f", "i")
        call.send(HEADER, pb.AudioChunk(flush_done=pb.FlushDone(tag="f", at_samples=5)))
        call.send(pb.AudioChunk(interrupted=pb.Interrupted(tag="i", sent_samples=5)), SUMMARY)
        call.end()
        flushed, interrupted = list(session)
    assert flushed.flushed is not None and (flushed.flushed.tag, flushed.flushed.at_samples) == ("f", 5)
    assert interrupted.interrupted is not None and interrupted.interrupted.sent_samples == 5


def test_a_stream_lost_before_its_audio_is_repeated_message_by_message(client, server, background):
    with client.session(seed=4) as session:
        session.send_text("a")
        session.flush(tag="t")
        chunk = background(next, session)
        first = server.take("Generate")
        sent = first.receive(3)
        first.send(HEADER)
        wait_until(lambda: session.header)  # which is not audio
        first.end(grpc.StatusCode.UNAVAILABLE)
        second = server.take("Generate")
        assert second.receive(3) == sent
        session.send_text("b")
        assert second.receive(1)[0].text == "b"
        second.send(HEADER, audio(1))
        assert chunk.result().samples.tolist() == [1]
    first_timeout, second_timeout = server.channel.timeouts
    assert second_timeout < first_timeout <= 100.0  # one deadline for both attempts


@pytest.mark.parametrize(
    "message",
    [audio(1), pb.AudioChunk(flush_done=pb.FlushDone()), pb.AudioChunk(interrupted=pb.Interrupted())],
    ids=["audio", "flush", "interrupt"],
)
def test_nothing_is_repeated_after_audio_or_an_answer(client, server, message):
    with client.session() as session:
        call = server.take("Generate")
        call.send(HEADER, message)
        next(session)
        call.end(grpc.StatusCode.UNAVAILABLE, "the engine was lost")
        with pytest.raises(Unavailable, match="the engine was lost"):
            next(session)
        assert list(session) == []
    assert len(server.channel.timeouts) == 1


def test_the_end_of_the_block_cancels_the_call(client, server):
    with client.session() as session:
        session.send_text("one")
        call = server.take("Generate")
        assert kinds(call.receive(2)) == ["config", "text"]
    call.receive_cancel()
    with pytest.raises(SpeechError, match="finished or closed"):
        session.send_text("two")


def test_a_failing_text_iterator_cancels_the_call(client, server, background):
    def broken():
        yield "one"
        raise LookupError("no more words")

    speech = background(client.say, broken())
    server.take("Generate").receive_cancel()
    assert isinstance(speech.exception(), LookupError)


def test_a_failed_call_raises_an_error_with_all_that_the_server_sent(client, server, background):
    details = [
        RequestInfo(request_id="r-1"),
        BadRequest(field_violations=[BadRequest.FieldViolation(field="config.turn.sampling.seed")]),
    ]
    status = Status(code=3, message="seed is too odd", details=map(packed, details))
    speech = background(client.say, "a")
    trailers = (("grpc-status-details-bin", status.SerializeToString()),)
    server.take("Generate").end(grpc.StatusCode.INVALID_ARGUMENT, "seed is too odd", trailers)
    error = error_of(speech)
    assert isinstance(error, InvalidArgument)
    assert (error.code, error.message, error.field, error.request_id, error.retry_after) == (
        "INVALID_ARGUMENT",
        "seed is too odd",
        "config.turn.sampling.seed",
        "r-1",
        None,
    )
    assert str(error) == "seed is too odd (request r-1)"
    assert not error.about_connection


def test_details_that_cannot_be_read_leave_the_code_and_the_message(client, server, background):
    speech = background(client.say, "a", request_id="own")
    trailers = (("grpc-status-details-bin", b"\xff"),)
    server.take("Generate").end(grpc.StatusCode.ABORTED, "the engine was lost", trailers)
    error = error_of(speech)
    assert isinstance(error, Aborted)
    assert (error.message, error.request_id) == ("the engine was lost", "own")


def test_a_time_to_retry_beyond_the_timeout_is_not_awaited(client, server, background):
    status = Status(code=8, message="full", details=[packed(retry_after(101))])
    speech = background(client.say, "a")
    trailers = (("grpc-status-details-bin", status.SerializeToString()),)
    server.take("Generate").end(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", trailers)
    error = error_of(speech)
    assert isinstance(error, Exhausted)
    assert error.retry_after == 101
    assert len(server.channel.timeouts) == 1


def packed(detail) -> Any:
    box = Any()
    box.Pack(detail)
    return box


def retry_after(seconds: int) -> RetryInfo:
    info = RetryInfo()
    info.retry_delay.FromSeconds(seconds)
    return info


@pytest.mark.parametrize(
    ("messages", "error"), [([audio(1)], "audio before its header"), ([], "ended the stream without a header")]
)
def test_a_stream_without_a_header_is_an_error(client, server, background, messages, error):
    speech = background(client.say, "a")
    call = server.take("Generate")
    call.send(*messages)
    call.end()
    assert error in error_of(speech).message


def test_values_of_a_newer_server_are_passed_on_as_numbers(client, server, background):
    # the fields kind, cut_reason and finish_reason as bytes, because the stubs accept known values only
    event = pb.SegmentEvent.FromString(bytes([0x08, 90, 0x58, 91]) + pb.SegmentEvent(text="one").SerializeToString())
    summary = pb.AudioChunk(summary=pb.StreamSummary.FromString(bytes([0x08, 92])))
    with client.speak("one") as stream:
        call = server.take("Generate")
        call.send(HEADER, audio(1, segment_events=[event]), summary)
        call.end()
        (chunk,) = list(stream)
        assert (chunk.events[0].kind, chunk.events[0].cut_reason, chunk.events[0].text) == ("90", "91", "one")
        assert chunk.events[0].finish_reason == ""
        assert stream.summary is not None and stream.summary.finish_reason == "92"


# ------------------------------------------------------------ voices

RECORDING = bytes(range(256)) * 700  # 179,200 bytes: three parts


def test_an_upload_is_a_config_then_parts_then_a_commit(client, server, background):
    voice = background(client.add_reference, RECORDING, name="anna", ttl=3600.0)
    call = server.take("AddReference")
    config, *parts, commit = call.receive(5)
    call.receive_end()
    assert (config.config.options.display_name, config.config.options.ttl.seconds) == ("anna", 3600)
    assert [part.audio.offset_bytes for part in parts] == [0, 65536, 131072]
    assert b"".join(part.audio.data for part in parts) == RECORDING
    (digest,) = commit.commit.digests
    assert (digest.total_bytes, digest.sha256) == (len(RECORDING), sha256(RECORDING).digest())
    call.send(HEADER, pb.AudioChunk(handle=pb.VoiceHandle(id="ref_1", kind=pb.VOICE_KIND_REFERENCE)))
    call.end()
    assert (voice.result().id, voice.result().kind) == ("ref_1", "reference")


def test_a_lost_upload_is_repeated_as_a_whole(client, server, background):
    voice = background(client.add_prompt, b"recording", "What is said.", request_id="mine")
    first = server.take("AddPrompt")
    sent = first.receive(2)
    first.end(grpc.StatusCode.UNAVAILABLE)
    second = server.take("AddPrompt")
    assert second.receive(2) == sent
    assert kinds(second.receive(1)) == ["commit"]
    second.send(pb.AudioChunk(handle=pb.VoiceHandle(id="prm_1")))
    second.end()
    assert voice.result().id == "prm_1"


def test_an_upload_that_ends_without_a_voice_is_an_error(client, server, background):
    voice = background(client.add_reference, b"recording", request_id="mine")
    call = server.take("AddReference")
    call.send(HEADER)
    call.end()
    error = error_of(voice)
    assert ("without a voice" in error.message, error.request_id) == (True, "mine")


def test_latents_are_the_answer_to_an_upload(client, server, background):
    latents = background(client.encode_latents, b"recording", role="prompt")
    call = server.take("EncodeLatents")
    config, part, commit = call.receive(3)
    call.receive_end()
    assert kinds([config, part, commit]) == ["config", "audio", "commit"]
    assert config.config.role == pb.AUDIO_ROLE_PROMPT
    data = np.arange(6, dtype="<f4")
    call.end(response=pb.EncodeLatentsResponse(latents=pb.Latents(data=data.tobytes(), feat_dim=3)))
    np.testing.assert_array_equal(latents.result().data, data.reshape(2, 3))


# ------------------------------------------------------------ other calls


def test_pages_are_read_until_the_last(client, server, background):
    found = background(client.voices, kind="reference", labels={"team": "x"})
    handles = [pb.VoiceHandle(id=f"ref_{number}") for number in range(3)]
    first, _ = server.answer("ListVoices", pb.ListVoicesResponse(handles=handles[:2], next_page_token="next"))
    second, _ = server.answer("ListVoices", pb.ListVoicesResponse(handles=handles[2:]))
    assert first == pb.ListVoicesRequest(kind=pb.VOICE_KIND_REFERENCE, labels={"team": "x"})
    assert second.page_token == "next"
    assert [voice.id for voice in found.result()] == ["ref_0", "ref_1", "ref_2"]


def test_a_short_call_is_repeated_and_has_a_short_timeout(client, server, background):
    info = background(client.model_info)
    server.answer("GetModelInfo", code=grpc.StatusCode.UNAVAILABLE)
    server.answer("GetModelInfo", pb.GetModelInfoResponse(model="played"))
    assert info.result().model == "played"
    assert all(0 < timeout <= 30 for timeout in server.channel.timeouts)


def test_a_deletion_names_the_voice_and_its_options(client, server, background):
    deleted = background(client.delete_voice, "hifi_1", missing_ok=True, cascade=True)
    request, _ = server.answer("DeleteVoice", pb.DeleteVoiceResponse(kept_names=["Ada"]))
    assert request == pb.DeleteVoiceRequest(id="hifi_1", allow_missing=True, cascade=True)
    assert deleted.result() == ("Ada",)


def test_the_metadata_of_the_client_goes_with_every_call(client, server, background):
    background(client.model_info)
    _, metadata = server.answer("GetModelInfo", pb.GetModelInfoResponse())
    assert metadata.items() >= METADATA.items()
    with client.session():
        assert server.take("Generate").metadata.items() >= METADATA.items()
    background(client.add_reference, b"recording")
    assert server.take("AddReference").metadata.items() >= METADATA.items()


def test_a_call_can_have_no_timeout(client, server):
    with client.session(timeout=None):
        server.take("Generate")
    assert server.channel.timeouts == [None]


def test_closing_the_client_cancels_its_calls(client, server):
    session = client.session()
    session.__enter__()
    call = server.take("Generate")
    client.close()
    call.receive_cancel()
