"""Point 5: a server answers from the first second, and is ready once it has spoken."""

from __future__ import annotations

import contextlib
import re
import socket
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_status import rpc_status
from support.clients.grpc_types import health_stub
from support.clients.newcomer import ROOT
from support.servers.waiting import wait_until

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def accepts(address: str) -> bool:
    host, port = address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def statuses(channel: grpc.Channel) -> dict[str, int]:
    check = health_stub(channel).Check
    return {name: check(health_pb2.HealthCheckRequest(service=name)).status for name in ("", SERVICE, "liveness")}


def details(error: Any) -> Any:
    return rpc_status.from_call(error).details


def refusal(call) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value


def test_calls_and_probes_are_answered_while_the_model_loads(serve):
    with serve(wait=False) as served:
        wait_until(lambda: accepts(served.address) or served.process.poll() is not None)
        with grpc.insecure_channel(served.address) as channel:
            assert statuses(channel) == {"": NOT_SERVING, SERVICE: NOT_SERVING, "liveness": SERVING}
            stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
            requests = (pb.GenerateRequest(text="Hello."),)
            for call in (
                lambda: stub.GetModelInfo(pb.GetModelInfoRequest()),
                lambda: next(stub.Generate(iter(requests))),
            ):
                error = refusal(call)
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                retry = error_details_pb2.RetryInfo()
                assert [retry for detail in details(error) if detail.Unpack(retry)]
                assert 0 < retry.retry_delay.ToTimedelta().total_seconds() < 100
            assert "listening on" not in served.output.read_text()  # all of this came before it

            wait_until(lambda: statuses(channel)[""] == SERVING)
            assert "model is loading" in served.errors.read_text()
            assert statuses(channel) == {"": SERVING, SERVICE: SERVING, "liveness": SERVING}
            assert stub.GetModelInfo(pb.GetModelInfoRequest()).model
            audio = [chunk.audio for chunk in stub.Generate(iter(requests))]
            assert len(b"".join(audio)) > 1000


def test_a_taken_port_is_refused_before_the_model_loads(newcomer, server):
    done = newcomer.run("voxcpm-grpc", "serve", "--listen", server)
    assert done.code == 1
    assert f"cannot listen on {server}" in done.errors
    assert "model is loading" not in done.errors


def test_a_page_says_how_to_probe():
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name != "settings.md"]
    probing = [page.name for page in pages if re.search(r"^#+ .*[Pp]rob", page.read_text("utf-8"), re.MULTILINE)]
    assert probing
