"""A server that ends in mid-stream is an error that says so; before the first audio, the call is repeated."""

import asyncio
import sys
import threading
from collections.abc import Callable

import grpc
import pytest
from support.hostile.http2_frames import CANCEL, INTERNAL_ERROR, NO_ERROR, REFUSED_STREAM, FrameCall, frame_server
from support.servers.played_server import HEADER, audio
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, SpeechError, Unavailable
from voxcpm_grpc.v1 import tts_pb2_grpc


class Speaking(tts_pb2_grpc.VoxCPMServiceServicer):
    """Sends audio and then nothing."""

    async def Generate(self, request_iterator, context):
        yield HEADER
        yield audio(1, 2, 3)
        await asyncio.Event().wait()


async def fail(target: str, then: Callable[[], object] = lambda: None) -> SpeechError:
    """The error of a stream after its first audio, at which `then` is called."""
    async with AsyncClient(target, timeout=HANG_SECONDS) as client, client.speak("Hello.") as stream:
        assert (await anext(stream)).sample_count == 3
        then()
        with pytest.raises(SpeechError) as raised:
            await anext(stream)
    return raised.value


async def test_a_server_that_stops_in_mid_stream_is_shutting_down():
    server = grpc.aio.server()
    tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(Speaking(), server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    error = await fail(target, lambda: asyncio.ensure_future(server.stop(0)))
    assert type(error) is Unavailable
    assert error.message.startswith(f"the server at {target} is shutting down; it ended the connection in mid-stream")


PROGRAM = """
import asyncio, sys, grpc
sys.path[:0] = sys.argv[1:]
from clients.transport.test_lost import Speaking, tts_pb2_grpc

async def main():
    server = grpc.aio.server()
    tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(Speaking(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


async def test_a_server_that_is_killed_in_mid_stream_was_lost(request):
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(request.config.rootpath / "tests"), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    target = f"127.0.0.1:{int(await child.stdout.readline())}"
    error = await fail(target, child.kill)
    await child.wait()
    assert type(error) is Unavailable
    assert error.message.startswith(f"the connection to {target} was lost in mid-stream; the server may have ended")


class Heard:
    """Plays of a server that end a stream once the client has its first audio."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def answer(self, call: FrameCall) -> None:
        call.answer(HEADER, audio(1, 2, 3))
        assert self.event.wait(HANG_SECONDS)

    def reset(self, code: int) -> Callable[[FrameCall], None]:
        def play(call: FrameCall) -> None:
            self.answer(call)
            call.reset(code)

        return play

    def go_away(self, call: FrameCall) -> None:
        self.answer(call)
        call.go_away(last_stream=0, text=b"Server shutdown")
        call.close()

    def close(self, call: FrameCall) -> None:
        self.answer(call)
        call.close()


@pytest.fixture
def heard():
    heard = Heard()
    yield heard
    heard.event.set()


@pytest.mark.parametrize("code", [NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL])
async def test_a_stream_that_is_reset_was_cut(heard, code):
    with frame_server(heard.reset(code)) as (target, calls):
        error = await fail(target, heard.event.set)
    assert type(error) is Unavailable
    assert error.message.startswith("the connection was cut between client and server, and the server may have ended")
    assert len(calls) == 1


async def test_a_connection_that_ends_in_mid_stream_was_lost(heard):
    with frame_server(heard.close) as (target, calls):
        error = await fail(target, heard.event.set)
    assert type(error) is Unavailable
    assert error.message.startswith(f"the connection to {target} was lost in mid-stream; the server may have ended")
    assert len(calls) == 1


async def test_a_server_that_goes_away_in_mid_stream_is_shutting_down(heard):
    with frame_server(heard.go_away) as (target, calls):
        error = await fail(target, heard.event.set)
    assert type(error) is Unavailable
    assert error.message.startswith(f"the server at {target} is shutting down; it ended the connection in mid-stream")
    assert len(calls) == 1


def lost_after_the_header(call: FrameCall) -> None:
    call.answer(HEADER)
    call.close()


@pytest.mark.parametrize(
    "lost",
    [
        lambda call: call.reset(INTERNAL_ERROR),
        lambda call: call.reset(REFUSED_STREAM),
        lambda call: call.go_away(last_stream=0),
        lambda call: call.close(),
        lost_after_the_header,
    ],
    ids=["reset", "refused", "GOAWAY", "closed", "closed after the header"],
)
async def test_a_call_that_is_lost_before_its_audio_is_repeated(heard, lost):
    with frame_server(lost, heard.close) as (target, calls):
        error = await fail(target, heard.event.set)  # of the second call, which has audio
    assert "in mid-stream" in error.message
    assert len(calls) == 2


def end_before_the_call(call: FrameCall) -> None:
    call.stop_listening()
    call.go_away(last_stream=0)
    call.close()


async def test_a_stream_ends_if_its_server_has_ended_before_it_took_the_call():
    """With grpcio's blocking API it may hang instead; see docs/other-languages.md."""
    for _ in range(10):
        with frame_server(end_before_the_call) as (target, calls):
            async with AsyncClient(target, timeout=None, retries=0) as client, client.speak("Hello.") as stream:
                with pytest.raises(Unavailable):
                    await asyncio.wait_for(anext(stream), HANG_SECONDS)
            assert len(calls) == 1
