"""The details in the status of a failed RPC, which every client can read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import grpc
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RequestInfo, ResourceInfo, RetryInfo
from support.clients.contract_fields import foreign_names, is_field


@dataclass
class Details:
    """The details in the status of a failed RPC. Those that the status lacks are None."""

    request_id: str = ""
    field: str = ""
    bad_request: bool = False
    retry_seconds: float | None = None
    pushback_ms: int | None = None
    size: int = 0
    reason: str = ""
    values: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    resource: tuple[str, str] | None = None


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
                for kind in (RequestInfo, BadRequest, RetryInfo, ErrorInfo, ResourceInfo):
                    message = kind()
                    if packed.Unpack(message):
                        _add(message, details)
            assert details.reason
            assert is_field(details.field) or not details.field, details.field
            assert not list(foreign_names(status.message)), status.message
            assert (error.code() is not grpc.StatusCode.NOT_FOUND) or details.resource
    return details


def _add(message: RequestInfo | BadRequest | RetryInfo | ErrorInfo | ResourceInfo, details: Details) -> None:
    match message:
        case RequestInfo():
            details.request_id = message.request_id
        case BadRequest():
            details.bad_request = True
            details.field = message.field_violations[0].field
        case RetryInfo():
            details.retry_seconds = message.retry_delay.ToMilliseconds() / 1000
        case ErrorInfo():
            assert message.domain == "voxcpm_grpc"
            details.reason, details.values = message.reason, dict(message.metadata)
        case ResourceInfo():
            details.resource = (message.resource_type, message.resource_name)
