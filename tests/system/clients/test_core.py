"""The core of tests/conformance through other clients: voices of recordings, errors, cancel and deadline.

Their speech is compared with that of the Python client in test_libraries.py and test_tools.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from google.protobuf.json_format import ParseDict
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RequestInfo
from google.rpc.status_pb2 import Status
from grpclib.client import Channel, Stream
from grpclib.const import Cardinality
from grpclib.exceptions import GRPCError
from support.servers.running import Server
from support.servers.uploads import tone, upload
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_grpc.v1 import tts_pb2 as pb

HERE = Path(__file__).parent
PROTO = HERE.parents[2] / "protos/voxcpm_grpc/v1/tts.proto"
SERVICE = "voxcpm_grpc.v1.VoxCPMService"
LONG = "A sentence that goes on and on, as it has nothing better to do, and tells of this and that. " * 20
INVALID_ARGUMENT, CANCELLED, DEADLINE_EXCEEDED = 3, 1, 4
DEADLINE_SECONDS = 3


@dataclass
class Outcome:
    """The end of a call, as a client sees it."""

    code: int = 0
    message: str = ""
    details: bytes = b""  # google.rpc.Status
    bytes: int = 0  # of audio
    voice: str = ""
    id: str = ""


class Caller(Protocol):
    """The core calls of a client."""

    def clone(self, recording: Path, text: str) -> Outcome: ...
    def error(self, request_id: str) -> Outcome: ...
    def cancel(self, request_id: str) -> None: ...
    def deadline(self, request_id: str) -> Outcome: ...


@dataclass(frozen=True)
class Node:
    address: str

    def _run(self, *words: str) -> Outcome:
        command = ("node", str(HERE / "core.js"), str(PROTO), self.address, *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 0, done.stderr
        fields = json.loads(done.stdout)
        return Outcome(**fields | {"details": base64.b64decode(fields["details"])})

    def clone(self, recording: Path, text: str) -> Outcome:
        return self._run("clone", str(recording), text)

    def error(self, request_id: str) -> Outcome:
        return self._run("error", request_id)

    def cancel(self, request_id: str) -> None:
        assert self._run("cancel", request_id, LONG).code == CANCELLED

    def deadline(self, request_id: str) -> Outcome:
        return self._run("deadline", request_id, LONG)


@dataclass(frozen=True)
class Grpclib:
    address: str

    @asynccontextmanager
    async def _stream(self, method: str, kind: Any, seconds: float = HANG_SECONDS) -> AsyncIterator[Stream[Any, Any]]:
        host, port = self.address.rsplit(":", 1)
        async with Channel(host, int(port)) as channel:
            call = channel.request(
                f"/{SERVICE}/{method}", Cardinality.STREAM_STREAM, kind, pb.AudioChunk, timeout=seconds
            )
            async with call as stream:
                yield stream

    async def _call(self, method: str, messages: list[Any]) -> list[pb.AudioChunk]:
        async with self._stream(method, type(messages[0])) as stream:
            for message in messages:
                await stream.send_message(message)
            await stream.end()
            return [chunk async for chunk in stream]

    def clone(self, recording: Path, text: str) -> Outcome:
        data = recording.read_bytes()

        async def clone() -> Outcome:
            messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(), (0, data))
            id = (await self._call("AddReference", list(messages)))[0].handle.id
            config = pb.GenerateConfig(conditioning=pb.Conditioning(voice=id))
            speech = await self._call("Generate", [pb.GenerateRequest(config=config), pb.GenerateRequest(text=text)])
            host, port = self.address.rsplit(":", 1)
            async with Channel(host, int(port)) as channel:
                method = (Cardinality.UNARY_UNARY, pb.DeleteVoiceRequest, pb.DeleteVoiceResponse)
                async with channel.request(f"/{SERVICE}/DeleteVoice", *method) as stream:
                    await stream.send_message(pb.DeleteVoiceRequest(id=id), end=True)
                    await stream.recv_message()
            return Outcome(bytes=sum(len(c.audio) for c in speech), voice=speech[0].header.voice, id=id)

        return asyncio.run(clone())

    def error(self, request_id: str) -> Outcome:
        async def fail() -> Outcome:
            config = pb.GenerateConfig(request_id=request_id, turn=pb.TurnConfig(sampling=pb.Sampling(temperature=99)))
            try:
                await self._call("Generate", [pb.GenerateRequest(config=config)])
            except GRPCError as error:  # its details are messages already
                status = Status(code=error.status.value, message=error.message or "")
                for detail in error.details or ():
                    status.details.add().Pack(detail)
                return Outcome(error.status.value, error.message or "", status.SerializeToString())
            raise AssertionError("the call ended with OK")

        return asyncio.run(fail())

    def cancel(self, request_id: str) -> None:
        async def cancel() -> None:
            async with self._stream("Generate", pb.GenerateRequest) as stream:
                config = pb.GenerateConfig(request_id=request_id)
                for message in (pb.GenerateRequest(config=config), pb.GenerateRequest(text=LONG)):
                    await stream.send_message(message)
                while not (chunk := await stream.recv_message()) or not chunk.audio:
                    pass
                await stream.cancel()

        asyncio.run(cancel())

    def deadline(self, request_id: str) -> Outcome:
        async def expire() -> Outcome:
            try:
                async with self._stream("Generate", pb.GenerateRequest, DEADLINE_SECONDS) as stream:
                    await stream.send_message(pb.GenerateRequest(config=pb.GenerateConfig(request_id=request_id)))
                    async for _ in stream:
                        pass
            except TimeoutError:  # of grpclib, which has sent the deadline as well
                return Outcome(DEADLINE_EXCEEDED)
            except GRPCError as error:
                return Outcome(error.status.value)
            raise AssertionError("the call ended with OK")

        return asyncio.run(expire())


@dataclass(frozen=True)
class Grpcurl:
    address: str

    def _command(self, method: str, *messages: dict[str, Any], seconds: float = HANG_SECONDS) -> list[str]:
        data = "\n".join(map(json.dumps, messages))
        options = ("-plaintext", "-format-error", "-max-time", str(seconds), "-d", data)
        return ["grpcurl", *options, self.address, f"{SERVICE}/{method}"]

    def _run(self, *arguments: Any, **options: Any) -> tuple[list[Any], Outcome]:
        done = subprocess.run(self._command(*arguments, **options), capture_output=True, timeout=HANG_SECONDS)
        replies, position, text = [], 0, done.stdout.decode()
        while position < len(text):
            reply, position = json.JSONDecoder().raw_decode(text, position)
            replies.append(reply)
            position += len(text[position:]) - len(text[position:].lstrip())
        if done.returncode:
            status = json.loads(done.stderr.decode().removeprefix("ERROR:"))
            details = Status(code=status["code"], message=status["message"])
            for detail in status.get("details", ()):
                kinds = {kind.DESCRIPTOR.full_name: kind for kind in (RequestInfo, BadRequest, ErrorInfo)}
                kind = kinds[detail.pop("@type").rpartition("/")[2]]
                made = kind()
                details.details.add().Pack(ParseDict(detail, made))
            return replies, Outcome(status["code"], status["message"], details.SerializeToString())
        return replies, Outcome(bytes=sum(len(base64.b64decode(reply.get("audio", ""))) for reply in replies))

    def clone(self, recording: Path, text: str) -> Outcome:
        data = recording.read_bytes()
        messages: list[dict[str, Any]] = [
            {"config": {}},
            {"audio": {"data": base64.b64encode(data).decode()}},
            {"commit": {"digests": [{"totalBytes": len(data)}]}},
        ]
        replies, _ = self._run("AddReference", *messages)
        id = replies[0]["handle"]["id"]
        speech, outcome = self._run("Generate", {"config": {"conditioning": {"voice": id}}}, {"text": text})
        self._run("DeleteVoice", {"id": id})
        return Outcome(bytes=outcome.bytes, voice=speech[0]["header"]["voice"], id=id)

    def error(self, request_id: str) -> Outcome:
        config = {"requestId": request_id, "turn": {"sampling": {"temperature": 99}}}
        return self._run("Generate", {"config": config})[1]

    def cancel(self, request_id: str) -> None:
        command = self._command("Generate", {"config": {"requestId": request_id}}, {"text": LONG * 10})
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while '"audio"' not in process.stdout.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)

    def deadline(self, request_id: str) -> Outcome:
        messages = ({"config": {"requestId": request_id}}, {"text": LONG * 10})  # it half-closes, so the text is long
        return self._run("Generate", *messages, seconds=DEADLINE_SECONDS)[1]


pytestmark = pytest.mark.models
CLIENTS: dict[str, Callable[[str], Caller]] = {"grpc-js": Node, "grpclib": Grpclib, "grpcurl": Grpcurl}


@pytest.fixture(params=CLIENTS)
def caller(request: pytest.FixtureRequest, server: Server) -> Caller:
    return CLIENTS[request.param](server.address)


@pytest.fixture
def request_id() -> str:
    return uuid.uuid4().hex


@pytest.mark.references
def test_a_recording_becomes_a_voice_that_speaks(caller, tmp_path):
    (tmp_path / "tone.wav").write_bytes(tone())
    outcome = caller.clone(tmp_path / "tone.wav", "Hello.")
    assert outcome.code == 0 and outcome.bytes > 0
    assert outcome.voice == outcome.id and outcome.id.startswith("ref_")


def test_an_error_has_details_that_the_client_parses(caller, request_id):
    outcome = caller.error(request_id)
    assert outcome.code == INVALID_ARGUMENT and "temperature" in outcome.message
    status, info, fault = Status.FromString(outcome.details), RequestInfo(), BadRequest()
    assert (status.code, status.message) == (outcome.code, outcome.message)
    assert any(detail.Unpack(info) for detail in status.details) and info.request_id == request_id
    assert any(detail.Unpack(fault) for detail in status.details)
    assert fault.field_violations[0].field == "config.turn.sampling.temperature"


def ended(server: Server, request_id: str) -> str:
    """The code with which the server logs the end of a call."""
    pattern = re.compile(rf" rpc id={request_id} method=Generate code=(\w+) ")
    wait_until(lambda: pattern.search(server.log))
    return pattern.findall(server.log)[0]


def test_a_cancel_ends_the_stream_in_the_server(caller, server, request_id):
    caller.cancel(request_id)
    assert ended(server, request_id) == "CANCELLED"


def test_a_deadline_ends_the_stream_in_the_server(caller, server, request_id):
    assert caller.deadline(request_id).code == DEADLINE_EXCEEDED
    assert ended(server, request_id) == "CANCELLED"
