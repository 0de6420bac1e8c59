"""Served stand-ins for a speech server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from voxcpm_grpc.v1 import tts_pb2_grpc


@contextmanager
def serving(servicer: tts_pb2_grpc.VoxCPMServiceServicer) -> Iterator[str]:
    """Serve `servicer` on a free port of loopback, which the yielded address names."""
    server = grpc.server(ThreadPoolExecutor(8))
    tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(servicer, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield target
    server.stop(0).wait(5)
