"""A server that a test plays itself, call by call and message by message."""

from __future__ import annotations

import grpc
import grpc_testing
import numpy as np
from support.doubles.testing_channel import AsyncTestingChannel

from voxcpm_grpc.v1 import tts_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["VoxCPMService"]
HEADER = pb.AudioChunk(
    header=pb.StreamHeader(
        request_id="mine",
        format=pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=16000),
        model="played",
        seed=7,
    )
)


def audio(*samples: int, **fields) -> pb.AudioChunk:
    return pb.AudioChunk(audio=np.array(samples, "<i2").tobytes(), sample_count=len(samples), **fields)


class PlayedServer:
    """The server's side: `take` returns the next call of a method, and the test answers it."""

    def __init__(self) -> None:
        self._channel = grpc_testing.channel(pb.DESCRIPTOR.services_by_name.values(), grpc_testing.strict_fake_time(0))
        self.channel = AsyncTestingChannel(self._channel)

    def take(self, method: str) -> PlayedCall:
        """Waits for the call."""
        take = self._channel.take_stream_unary if method == "EncodeLatents" else self._channel.take_stream_stream
        metadata, rpc = take(SERVICE.methods_by_name[method])
        return PlayedCall(metadata, rpc)

    def answer(self, method: str, response=None, code=grpc.StatusCode.OK, details=""):
        """Answers the next call of a method with one request, and returns that request and the metadata."""
        metadata, request, rpc = self._channel.take_unary_unary(SERVICE.methods_by_name[method])
        rpc.terminate(response, (), code, details)
        return request, dict(metadata)


class PlayedCall:
    def __init__(self, metadata, rpc) -> None:
        self.metadata = dict(metadata)
        self._rpc = rpc

    def receive(self, count: int) -> list:
        """Waits for that many messages."""
        return [self._rpc.take_request() for _ in range(count)]

    def receive_end(self) -> None:
        """Waits until the client has closed its side."""
        self._rpc.requests_closed()

    def receive_cancel(self) -> None:
        """Waits until the client has cancelled the call."""
        self._rpc.cancelled()

    def send(self, *messages) -> None:
        for message in messages:
            self._rpc.send_response(message)

    def end(self, code=grpc.StatusCode.OK, details="", trailers=(), response=None) -> None:
        if response is not None:
            self._rpc.terminate(response, trailers, code, details)
        else:
            self._rpc.terminate(trailers, code, details)
