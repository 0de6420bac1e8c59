"""Encrypted connections, certificates of clients, and files that are replaced while the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from grpc_health.v1 import health_pb2
from support.clients.grpc_types import health_stub
from support.servers.tls_files import NAME, OPTIONS, Files
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.schema import Settings
from voxcpm_server.rpc import tls
from voxcpm_server.services.server import RpcServer


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files.new(tmp_path)


@asynccontextmanager
async def server(files: Files, **more: Path) -> AsyncIterator[str]:
    """The address of a server."""
    rpc = RpcServer(Settings.model_validate({"listen": "127.0.0.1:0", "tls": files.settings | more}))
    try:
        yield await rpc.open()
    finally:
        await rpc.stop()


async def alive(address: str, credentials: grpc.ChannelCredentials) -> None:
    """Ask the server over a connection of its own. Raises AioRpcError."""
    options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        request = health_pb2.HealthCheckRequest(service="liveness")
        await health_stub(channel).Check(request, wait_for_ready=False)


async def refused(address: str, credentials: grpc.ChannelCredentials) -> bool:
    try:
        await alive(address, credentials)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return True
    return False


async def test_a_client_that_trusts_the_authority_is_served(files):
    async with server(files) as address:
        await alive(address, files.credentials())
        assert await refused(address, grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes()))
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await health_stub(channel).Check(health_pb2.HealthCheckRequest(service="liveness"))


async def test_clients_need_a_certificate_of_their_authority(files, tmp_path):
    clients = trustme.CA()
    (tmp_path / "clients.pem").write_bytes(clients.cert_pem.bytes())
    async with server(files, client_ca=tmp_path / "clients.pem") as address:
        await alive(address, files.credentials(clients.issue_cert("gateway.test")))
        assert await refused(address, files.credentials())
        assert await refused(address, files.credentials(trustme.CA().issue_cert("gateway.test")))


async def test_a_replaced_certificate_serves_new_connections_and_open_ones_go_on(files, monkeypatch, caplog):
    monkeypatch.setattr("voxcpm_server.auth.watched_file.CHECK_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    new = trustme.CA()
    async with server(files) as address, grpc.aio.secure_channel(address, files.credentials(), OPTIONS) as channel:
        stub = health_stub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="liveness"))
        await watch.read()
        files.write(new)
        replaced = Files(files.folder, new)
        await until_served(address, replaced.credentials())
        assert await refused(address, files.credentials())
        await stub.Check(health_pb2.HealthCheckRequest(service="liveness"))
        assert not watch.done()
    assert "read again" in caplog.text


async def until_served(address: str, credentials: grpc.ChannelCredentials) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while await refused(address, credentials):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_broken_replacement_is_reported_and_the_last_good_one_stays(files, monkeypatch, caplog):
    monkeypatch.setattr("voxcpm_server.auth.watched_file.CHECK_SECONDS", 0.0)
    async with server(files) as address:
        files.settings["cert"].write_text("-----BEGIN CERTIFICATE-----\nhalf")
        for _ in range(3):
            await alive(address, files.credentials())
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert str(files.settings["cert"]) in caplog.text and "last good version" in caplog.text
        files.write()
        await alive(address, files.credentials())


def startup_error(files: Files, **more: Path) -> str:
    with pytest.raises(StartupError) as raised:
        tls.credentials(Settings.model_validate({"tls": files.settings | more}).tls)
    return str(raised.value)


def test_files_that_cannot_be_used_are_named_at_the_start(files, tmp_path):
    assert "missing.pem cannot be read: No such file" in startup_error(files, cert=tmp_path / "missing.pem")
    (tmp_path / "empty.pem").touch()
    assert "empty.pem" in startup_error(files, cert=tmp_path / "empty.pem")
    assert "clients.pem" in startup_error(files, client_ca=tmp_path / "clients.pem")
    other = trustme.CA().issue_cert(NAME)
    files.settings["key"].write_bytes(other.private_key_pem.bytes())
    assert "key values mismatch" in startup_error(files)


def test_an_encrypted_key_is_refused(files):
    key = serialization.load_pem_private_key(files.settings["key"].read_bytes(), None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    files.settings["key"].write_bytes(sealed)
    assert "remove its password" in startup_error(files)
