"""Calls with and without credentials, over gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2
from support.clients.grpc_types import health_stub

from voxcpm_grpc.errors import Unauthenticated
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.auth.authenticator import certificate_principal
from voxcpm_server.auth.keys import create, revoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def bearing(credential: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {credential}"),)


async def refusal(call: Any) -> str:
    """The text of an UNAUTHENTICATED status."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    return raised.value.details() or ""


async def test_a_key_opens_every_rpc_and_its_absence_none(serve_front, file):
    key = create("billing", file)
    async with serve_front(server={"auth": {"keys": file}}) as served:
        assert (await served.generate("Hello.", metadata=bearing(key)))[-1].HasField("summary")
        assert await served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=bearing(key))
        for method in ("Generate", "AddPrompt", "AddReference", "AddHifi", "EncodeLatents"):
            call = getattr(served.stub, method)()
            assert "authorization: Bearer KEY" in await refusal(call.read() if hasattr(call, "read") else call)
        for method, request in (("GetVoice", pb.GetVoiceRequest), ("ListVoices", pb.ListVoicesRequest)):
            assert "has no credential" in await refusal(getattr(served.stub, method)(request()))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((("authorization", "Bearer voxcpm_0123456789ab_" + "A" * 43),), "API key is not valid"),
        ((("authorization", "Bearer another"),), "keys of this server begin with voxcpm_"),
        ((("authorization", "Basic dXNlcjpwYXNz"),), "must be `Bearer KEY`"),
        ((("authorization", "Bearer "),), "must be `Bearer KEY`"),
        ((("authorization", "Bearer a"), ("authorization", "Bearer b")), "several"),
    ],
)
async def test_wrong_credentials_are_refused_with_the_reason(serve_front, file, metadata, reason):
    create("billing", file)
    async with serve_front(server={"auth": {"keys": file}}) as served:
        assert reason in await refusal(served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata))


async def test_a_refused_upload_is_not_read(serve_front, file):
    """A message that cannot be parsed would be reported if it were."""
    create("billing", file)
    async with serve_front(server={"auth": {"keys": file}}) as served:
        path = "/voxcpm_grpc.v1.VoxCPMService/AddPrompt"
        call = served.channel.stream_stream(path, request_serializer=bytes)()
        await call.write(b"\xff")
        assert "has no credential" in await refusal(call.read())


async def test_a_revoked_key_is_refused_and_its_open_stream_goes_on(serve_front, file, monkeypatch):
    monkeypatch.setattr("voxcpm_server.auth.watched_file.CHECK_SECONDS", 0.0)
    key = create("billing", file)
    async with serve_front(server={"auth": {"keys": file}}) as served:
        call = served.stub.Generate(metadata=bearing(key))
        await call.write(pb.GenerateRequest(text="Hello there. "))
        await call.read()
        revoke("billing", file)
        assert "revoked" in await refusal(served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=bearing(key)))
        await call.done_writing()
        rest = []
        while isinstance(chunk := await call.read(), pb.AudioChunk):
            rest.append(chunk)
        assert rest[-1].HasField("summary")


async def test_health_needs_no_credential(serve_front, file):
    create("billing", file)
    async with serve_front(server={"auth": {"keys": file}}) as served:
        stub = health_stub(served.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_limits_count_the_streams_of_a_key_wherever_they_come_from(serve_front, file):
    keys = [create(name, file) for name in ("a", "b")]
    front = serve_front(server={"auth": {"keys": file}}, max_streams_per_caller=1)
    async with front as served, grpc.aio.insecure_channel(served.address) as other:
        first = served.stub.Generate(metadata=bearing(keys[0]))
        await first.write(pb.GenerateRequest(text="Hello there. "))
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError, match="this caller has 1 open streams"):
            await type(served.stub)(other).Generate(metadata=bearing(keys[0])).read()
        assert (await served.generate("Hello.", metadata=bearing(keys[1])))[-1].HasField("summary")
        first.cancel()


async def test_a_client_certificate_alone_identifies_its_caller(serve_front, tmp_path, caplog):
    ca, clients = trustme.CA(), trustme.CA()
    made = ca.issue_cert("voxcpm.test")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    files = {"cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem", "client_ca": tmp_path / "clients.pem"}
    async with serve_front(server={"tls": files}, max_streams_per_caller=1) as served:
        calls = []
        for name in ("a.test", "b.test"):
            client = clients.issue_cert(name)
            credentials = grpc.ssl_channel_credentials(
                ca.cert_pem.bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
            )
            options = (("grpc.ssl_target_name_override", "voxcpm.test"),)
            channel = grpc.aio.secure_channel(served.address, credentials, options)
            calls.append(type(served.stub)(channel).Generate())
            await calls[-1].write(pb.GenerateRequest(text="Hello there. "))
            await calls[-1].read()
        with pytest.raises(grpc.aio.AioRpcError, match="this caller has 1 open streams"):
            await type(served.stub)(channel).Generate().read()
        for call in calls:
            call.cancel()


def test_a_certificate_names_its_bearer():
    assert certificate_principal({"x509_common_name": [b"gateway"]}).name == "cert:gateway"
    both = {"x509_common_name": [b"gateway"], "x509_subject_alternative_name": [b"gateway.test", b"other"]}
    assert certificate_principal(both).name == "cert:gateway.test"
    assert certificate_principal(both | {"peer_spiffe_id": [b"spiffe://x/y"]}).name == "cert:spiffe://x/y"
    with pytest.raises(Unauthenticated):
        certificate_principal({})
