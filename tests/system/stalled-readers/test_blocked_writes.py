"""A client of the h2 package whose flow control lets nothing through. The server ends its calls and forgets them."""

from __future__ import annotations

import re
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.settings import SettingCodes, Settings
from support.servers.running import Server, serving
from support.servers.uploads import recording
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_client import Client
from voxcpm_grpc.v1 import tts_pb2 as pb

SERVICE = "/voxcpm_grpc.v1.VoxCPMService/"
MAX_STREAMS = 4
LONG = "This is a sentence of some length, and it goes on for a while. " * 40
ENDLESS_WINDOW = 2**31 - 1


class Connection:
    """An HTTP/2 connection with an initial window of this many bytes for each stream."""

    def __init__(self, address: str, *, window: int, receive_buffer: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.socket()
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(HANG_SECONDS)
        self._socket.connect((host, int(port)))
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        initial = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.ENABLE_PUSH: 0}
        self._http.local_settings = Settings(client=True, initial_values=initial)
        self._http.initiate_connection()
        if window > 65_535:
            self._http.increment_flow_control_window(window - 65_535)
        self._flush()
        self.events: list[Event] = []

    def call(self, method: str, *messages: object, ends: bool = False) -> int:
        """Start a call and send these messages; returns the number of its stream."""
        stream = self._http.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":path": SERVICE + method, ":authority": "server"}
        headers |= {"te": "trailers", "content-type": "application/grpc"}
        self._http.send_headers(stream, list(headers.items()))
        for message in messages:
            data = message.SerializeToString()  # type: ignore[attr-defined]
            self._http.send_data(stream, struct.pack(">?I", False, len(data)) + data)
        if ends:
            self._http.end_stream(stream)
        self._flush()
        return stream

    def read(self) -> None:
        """Handle what has arrived."""
        while select.select([self._socket], [], [], 0)[0]:
            data = self._socket.recv(65_536)
            assert data, "the server has closed the connection"
            self.events += self._http.receive_data(data)
            self._flush()

    def open_window(self, stream: int) -> None:
        self._http.increment_flow_control_window(1 << 20, stream)
        self._flush()

    def has(self, kind: type[Event], stream: int) -> bool:
        self.read()
        return any(isinstance(event, kind) and getattr(event, "stream_id", None) == stream for event in self.events)

    def close(self) -> None:
        self._socket.close()

    def _flush(self) -> None:
        self._socket.sendall(self._http.data_to_send())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = ("--limits.write-seconds", "2", "--limits.max-streams", str(MAX_STREAMS))
    with serving(tmp_path_factory.mktemp("voices"), *limits, "--limits.stream-idle-seconds", "4") as running:
        with Client(running.address, timeout=HANG_SECONDS) as client:
            assert client.say("Hello.", max_steps=3, timesteps=4).samples.any()
        yield running
        for fault in ("Traceback", " ERROR ", " WARNING ", "code=INTERNAL"):
            assert fault not in running.log, running.log[-3000:]


def ended(server: Server, code: str) -> int:
    return len(re.findall(rf"method=Generate code={code} ", server.log))


def speak(client: Client) -> None:
    assert client.say("Still here.", max_steps=3, timesteps=4, max_queue_time=HANG_SECONDS).samples.any()


def sampled(text: str) -> list[pb.GenerateRequest]:
    turn = pb.TurnConfig(sampling=pb.Sampling(seed=1, inference_timesteps=4, max_steps=4))
    return [pb.GenerateRequest(config=pb.GenerateConfig(turn=turn)), pb.GenerateRequest(text=text)]


def test_streams_that_get_no_further_than_their_header_make_room(server):
    """With a window of 0 the first message never leaves the server."""
    connection = Connection(server.address, window=0)
    before = ended(server, "ABORTED")
    try:
        with Client(server.address, timeout=HANG_SECONDS) as client:
            streams = [
                connection.call("Generate", *sampled("Hello there."), pb.GenerateRequest(flush=pb.Flush()))
                for _ in range(MAX_STREAMS)
            ]
            wait_until(lambda: all(connection.has(ResponseReceived, stream) for stream in streams))
            wait_until(lambda: ended(server, "ABORTED") == before + MAX_STREAMS)
            speak(client)
            wait_until(lambda: all(connection.has(StreamReset, stream) for stream in streams[:-1]))
            speak(client)  # the server forgets its latest call when it accepts another one
            wait_until(lambda: connection.has(StreamReset, streams[-1]))
    finally:
        connection.close()


def test_a_window_that_opens_in_time_lets_the_status_through(server):
    connection = Connection(server.address, window=0)
    before = ended(server, "ABORTED")
    try:
        stream = connection.call("Generate", *sampled("Hello there."), pb.GenerateRequest(flush=pb.Flush()))
        wait_until(lambda: ended(server, "ABORTED") == before + 1)
        connection.open_window(stream)
        wait_until(lambda: connection.has(TrailersReceived, stream))
        [trailers] = [event.headers for event in connection.events if isinstance(event, TrailersReceived)]
        fields = dict(trailers)
        assert fields["grpc-status"] == "10"  # ABORTED
        assert "limits.write_seconds" in fields["grpc-message"]
        assert "grpc-retry-pushback-ms" not in fields
    finally:
        connection.close()


@pytest.mark.parametrize("method", ["ListVoices", "GetModelInfo"])
def test_a_unary_reply_that_is_not_read_is_dropped(server, method):
    connection = Connection(server.address, window=0)
    try:
        request = pb.ListVoicesRequest() if method == "ListVoices" else pb.GetModelInfoRequest()
        replies = [connection.call(method, request, ends=True) for _ in range(3)]
        wait_until(lambda: all(connection.has(StreamEnded, reply) for reply in replies[:-1]))
    finally:
        connection.close()


def test_a_preview_that_is_not_read_ends(server):
    connection = Connection(server.address, window=0)
    try:
        data = recording(1)
        config = pb.AddPromptConfig(transcript="Hi there.")
        config.preview.mode = pb.PREVIEW_MODE_RECONSTRUCTION
        digest = pb.UploadDigest(total_bytes=len(data))
        parts = [data[at : at + 10_000] for at in range(0, len(data), 10_000)]
        messages = [pb.AddPromptRequest(config=config)]
        for number, part in enumerate(parts):
            messages.append(pb.AddPromptRequest(audio=pb.AudioPart(data=part, offset_bytes=10_000 * number)))
        messages.append(pb.AddPromptRequest(commit=pb.UploadCommit(digests=[digest])))
        connection.call("AddPrompt", *messages)
        wait_until(lambda: "method=AddPrompt code=ABORTED" in server.log)
    finally:
        connection.close()


def test_a_client_whose_socket_is_full_loses_its_stream(server):
    """The windows of HTTP/2 are open, but the client does not read from its socket."""
    connection = Connection(server.address, window=ENDLESS_WINDOW, receive_buffer=4096)
    before = ended(server, "ABORTED")
    try:
        turn = pb.TurnConfig(sampling=pb.Sampling(inference_timesteps=4))
        large = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE)  # fills the buffers with few steps
        config = pb.GenerateRequest(config=pb.GenerateConfig(turn=turn, output=large))
        connection.call("Generate", config, pb.GenerateRequest(text=LONG), pb.GenerateRequest(flush=pb.Flush()))
        wait_until(lambda: ended(server, "ABORTED") > before)
        with Client(server.address, timeout=HANG_SECONDS) as client:
            speak(client)
    finally:
        connection.close()


SPEAKER = """
import sys
from voxcpm_client import Client
with Client(sys.argv[1], timeout=None) as client, client.speak(sys.argv[2], timesteps=4, format="pcm_f32le") as stream:
    for chunk in stream:
        print(chunk.sample_count, flush=True)
"""


def test_a_client_that_is_stopped_loses_its_stream(server):
    before = ended(server, "ABORTED")
    client = subprocess.Popen([sys.executable, "-c", SPEAKER, server.address, LONG * 7], stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None
        assert client.stdout.readline()
        client.send_signal(signal.SIGSTOP)
        wait_until(lambda: ended(server, "ABORTED") > before)
        with Client(server.address, timeout=HANG_SECONDS) as other:
            speak(other)
    finally:
        client.kill()
        client.communicate()
