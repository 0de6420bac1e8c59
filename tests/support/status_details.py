"""The details in the status of a failed RPC, which every client can read."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest, RequestInfo, RetryInfo


@dataclass
class Details:
    """The details in the status of a failed RPC. Those that the status lacks are None."""

    request_id: str = ""
    field: str = ""
    bad_request: bool = False
    retry_seconds: float | None = None
    pushback_ms: int | None = None
    size: int = 0


def details_of(error: grpc.aio.AioRpcError) -> Details:
    """The details of a status. Code and message of the status must be those of the call."""
    details = Details()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-retry-pushback-ms":
            details.pushback_ms = int(value)
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            details.size = len(value)
            status = status_pb2.Status.FromString(value)
            assert (status.code, status.message) == (error.code().value[0], error.details())
            for packed in status.details:
                for kind in (RequestInfo, BadRequest, RetryInfo):
                    message = kind()
                    if packed.Unpack(message):
                        _add(message, details)
    return details


def _add(message: RequestInfo | BadRequest | RetryInfo, details: Details) -> None:
    match message:
        case RequestInfo():
            details.request_id = message.request_id
        case BadRequest():
            details.bad_request = True
            details.field = message.field_violations[0].field
        case RetryInfo():
            details.retry_seconds = message.retry_delay.ToMilliseconds() / 1000
