"""Engines of the admin service: from requests to values, and from values to messages."""

from __future__ import annotations

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.v1 import admin_pb2 as pb


def engine(request: pb.DrainEngineRequest | pb.StartEngineRequest) -> str:
    """The name of the engine. Raises InvalidRequest."""
    if not request.engine:
        raise InvalidRequest("engine is empty; name one of GetStats, such as 'engine cuda:0'", field="engine")
    return request.engine


def drained() -> pb.DrainEngineResponse:
    return pb.DrainEngineResponse()


def started() -> pb.StartEngineResponse:
    return pb.StartEngineResponse()
