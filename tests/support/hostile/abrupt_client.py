"""A client that is killed: `python abrupt_client.py upload|speak HOST:PORT [CA] [KEY] [REQUEST_ID]`.

It prints "open" when the server has the call, or has sent audio, and then waits for its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

if TYPE_CHECKING:
    from support.servers.targets import Target

TEXT = "A sentence that goes on and on, as it has nothing better to do, and tells of this and that. " * 20


@contextmanager
def abrupt_client(work: str, target: Target, request_id: str) -> Iterator[None]:
    """Run a client until the server is at work for it, and kill it at the end of the block."""
    words = (work, target.address, str(target.ca or ""), target.api_key, request_id, target.run)
    with subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None and client.stdout.readline() == "open\n"
            yield
        finally:
            os.kill(client.pid, signal.SIGKILL)


def main(work: str, address: str, ca: str, key: str, request_id: str, run: str) -> None:
    metadata = [("authorization", f"Bearer {key}")] if key else []
    channel = (
        grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(ca).read_bytes()))
        if ca
        else grpc.insecure_channel(address)
    )
    stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
    if work == "upload":
        call = stub.AddPrompt(upload(request_id, run), metadata=metadata)
        stub.ListVoices(pb.ListVoicesRequest(), metadata=metadata)  # sent later on the same connection
        print("open", flush=True)
        for _ in call:
            pass
        return
    for chunk in stub.Generate(speech(request_id), metadata=metadata):
        if chunk.sample_count:
            print("open", flush=True)
            time.sleep(600)


def upload(request_id: str, run: str) -> Iterator[Any]:
    options = pb.VoiceOptions(request_id=request_id, labels={"conformance": run, "abrupt": request_id})
    yield pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="Hi.", options=options))
    yield pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(1000)))
    time.sleep(600)


def speech(request_id: str) -> Iterator[Any]:
    yield pb.GenerateRequest(config=pb.GenerateConfig(request_id=request_id))
    yield pb.GenerateRequest(text=TEXT)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
