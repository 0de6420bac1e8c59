"""The statistics of a running server, over gRPC."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import trustme
from click.testing import CliRunner
from google.protobuf.duration_pb2 import Duration
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2
from support.clients.grpc_types import health_stub
from support.doubles.fake_engine import LoadForever, MakeFake
from support.doubles.pools import Launcher, pool_with
from support.servers.operated import SLOTS, operated
from support.servers.ports import free_port
from support.servers.waiting import HANG_SECONDS

from voxcpm_client.cli import main
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.operation import AdminSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.security import AuthSettings, TlsSettings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.app import running_server
from voxcpm_server.auth.exposure import exposure
from voxcpm_server.auth.keys import create
from voxcpm_server.services import statistics


@pytest.fixture
def engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics wait for the engine, however busy the host is."""
    monkeypatch.setattr(statistics, "ANSWER_SECONDS", HANG_SECONDS)


async def test_the_statistics_describe_the_server_and_its_engine(tmp_path, engine_answers):
    async with operated(tmp_path) as server:
        async for _ in server.speak("Hello there.", steps=20):
            pass
        found = await server.stats_when(lambda stats: stats.recent.calls)
    assert (found.state, found.model) == (admin_pb2.SERVER_STATE_SERVING, "fake")
    assert found.version and found.start_time.seconds <= found.read_time.seconds
    front = found.front
    assert (front.process_id, front.streams, dict(front.open_calls)) == (os.getpid(), 0, {})
    assert (front.calls_ended, front.calls_failed, front.upload_bytes) == (1, 0, 0)
    assert front.tasks and front.resident_bytes > 1e6 and front.open_files > 2
    assert front.audio_sent.ToNanoseconds() == found.recent.audio_sent.ToNanoseconds() == 20 * 20_000_000
    assert 0 < found.recent.first_audio_p50.ToNanoseconds() <= found.recent.first_audio_p99.ToNanoseconds()
    [engine] = found.engines
    assert (engine.name, engine.state, engine.device) == ("engine 0", admin_pb2.ENGINE_STATE_READY, "cpu")
    assert (engine.process_id, engine.restarts) == (server.launcher.pid, 0)
    assert engine.audio_made.ToNanoseconds() >= 20 * 20_000_000 and engine.kv_positions == 4096
    assert engine.steps >= 20 and engine.step_time.ToNanoseconds() > 0
    assert engine.HasField("age") and not engine.requests_running


async def test_the_next_statistics_after_a_cancel_show_its_slot_free(tmp_path, engine_answers):
    async with operated(tmp_path) as server:
        call = server.speak("Hello there.")
        while not (await call.read()).audio:
            pass
        found = await server.stats()
        assert (found.front.streams, dict(found.front.open_calls)) == (1, {"Generate": 1})
        assert (found.engines[0].slots_used, found.engines[0].requests_cancelled) == (1, 0)
        call.cancel()
        found = await server.stats_when(lambda stats: not stats.front.streams)
        # The front has cancelled the request, and the engine handles that before it answers.
        assert (found.engines[0].slots_used, found.engines[0].requests_cancelled) == (0, 1)
        assert (found.front.calls_ended, found.front.calls_failed) == (1, 0)


async def test_a_watch_sends_statistics_at_intervals(tmp_path):
    async with operated(tmp_path) as server:
        call = server.admin.WatchStats(admin_pb2.WatchStatsRequest(interval=Duration(nanos=100_000_000)))
        first, second = await call.read(), await call.read()
        times = [message.stats.read_time.ToMilliseconds() for message in (first, second)]
        assert times[1] - times[0] >= 99
        for seconds in (0.01, 4000):
            duration = Duration()
            duration.FromMilliseconds(int(1000 * seconds))
            with pytest.raises(grpc.aio.AioRpcError, match=r"from 0\.1 to 3600 s") as raised:
                await server.admin.WatchStats(admin_pb2.WatchStatsRequest(interval=duration)).read()
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_watch_sees_the_drain_and_ends_with_the_server(tmp_path):
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(operated(tmp_path))
        async with grpc.aio.insecure_channel(server.admin_address) as channel:
            stub: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(channel)
            watch = stub.WatchStats(admin_pb2.WatchStatsRequest(interval=Duration(nanos=100_000_000)))
            assert (await watch.read()).stats.state == admin_pb2.SERVER_STATE_SERVING
            await server.running.withdraw()
            async with asyncio.timeout(HANG_SECONDS):
                while (await watch.read()).stats.state != admin_pb2.SERVER_STATE_DRAINING:
                    pass
                await stack.aclose()
                while isinstance(await watch.read(), admin_pb2.WatchStatsResponse):
                    pass
            assert await watch.code() is grpc.StatusCode.OK


async def test_the_statistics_show_the_step_of_a_start(tmp_path):
    admin = f"127.0.0.1:{free_port()}"
    settings = Settings(
        listen="127.0.0.1:0", admin=AdminSettings(listen=admin), voices=VoiceSettings(url=str(tmp_path / "voices"))
    )
    make = MakeFake(before=LoadForever(tmp_path))

    async def start() -> None:
        async with running_server(settings, pool=pool_with(Launcher([make]))):
            pass

    starting = asyncio.create_task(start())
    async with grpc.aio.insecure_channel(admin) as channel:
        stub: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(channel)
        async with asyncio.timeout(HANG_SECONDS):
            found = (await stub.GetStats(admin_pb2.GetStatsRequest(), wait_for_ready=True)).stats
            while "model is loading" not in found.start_step:
                found = (await stub.GetStats(admin_pb2.GetStatsRequest())).stats
    assert (found.state, found.model, len(found.engines)) == (admin_pb2.SERVER_STATE_STARTING, "", 0)
    starting.cancel()
    await asyncio.wait([starting])


async def test_an_engine_that_restarts_is_reported(tmp_path):
    async with operated(tmp_path) as server:
        before = (await server.stats()).engines[0]
        server.launcher.kill()
        found = await server.stats_when(lambda stats: stats.engines[0].restarts == 1 and stats.engines[0].process_id)
        assert found.engines[0].process_id not in (0, before.process_id)
        assert found.state == admin_pb2.SERVER_STATE_SERVING


async def test_with_authentication_only_admins_see_the_statistics(tmp_path):
    file = tmp_path / "keys.toml"
    keys = {name: create(name, file, admin=name == "operator") for name in ("operator", "billing")}
    async with operated(tmp_path / "voices", auth={"keys": file}) as server:
        for method, request in (("GetStats", "GetStatsRequest"), ("WatchStats", "WatchStatsRequest")):
            for name, code in (
                ("", "UNAUTHENTICATED"),
                ("billing", "PERMISSION_DENIED"),
                ("operator", "OK"),
            ):
                metadata = (("authorization", f"Bearer {keys[name]}"),) if name else ()
                call = getattr(server.admin, method)(getattr(admin_pb2, request)(), metadata=metadata)
                try:
                    assert (await (call.read() if hasattr(call, "read") else call)).stats.version
                    found = "OK"
                    call.cancel()
                except grpc.aio.AioRpcError as error:
                    found = error.code().name
                assert found == code, (method, name)
        answer = await health_stub(server.channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_channelz_counts_the_calls_of_the_serving_port(tmp_path):
    async with operated(tmp_path) as server:
        for _ in range(3):
            await server.stub.GetModelInfo(pb.GetModelInfoRequest())
        channelz: Any = channelz_pb2_grpc.ChannelzStub(server.channel)  # pyright: ignore[reportArgumentType]
        found = (await channelz.GetServers(channelz_pb2.GetServersRequest())).server
        # channelz names the port of the setting. Servers of other tests may not have been freed yet.
        serving = max(
            (one for one in found if one.listen_socket and one.listen_socket[0].name.endswith(":0")),
            key=lambda one: one.ref.server_id,
        )
        assert serving.data.calls_started == 3
        sockets = await channelz.GetServerSockets(channelz_pb2.GetServerSocketsRequest(server_id=serving.ref.server_id))
        assert len(sockets.socket_ref) == 1


async def test_with_authentication_only_admins_call_channelz(tmp_path):
    file = tmp_path / "keys.toml"
    keys = {name: create(name, file, admin=name == "operator") for name in ("operator", "billing")}
    async with operated(tmp_path / "voices", auth={"keys": file}) as server:
        channelz: Any = channelz_pb2_grpc.ChannelzStub(server.channel)  # pyright: ignore[reportArgumentType]

        async def servers(*metadata: tuple[str, str]) -> Any:
            return await channelz.GetServers(channelz_pb2.GetServersRequest(), metadata=metadata)

        assert (await servers(("authorization", f"Bearer {keys['operator']}"))).server
        with pytest.raises(grpc.aio.AioRpcError, match="only admins") as raised:
            await servers(("authorization", f"Bearer {keys['billing']}"))
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError, match="has no credential"):
            await servers()


async def test_the_admin_port_uses_the_certificate_of_the_server(tmp_path):
    ca = trustme.CA()
    made = ca.issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    admin = f"127.0.0.1:{free_port()}"
    settings = Settings(
        listen="127.0.0.1:0",
        admin=AdminSettings(listen=admin),
        voices=VoiceSettings(url=str(tmp_path / "voices")),
        tls=TlsSettings(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem"),
    )
    pool = pool_with(Launcher([MakeFake()]))
    credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes())
    async with running_server(settings, pool=pool), grpc.aio.secure_channel(admin, credentials) as channel:
        stub: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(channel)
        assert (await stub.GetStats(admin_pb2.GetStatsRequest())).stats.version
        async with grpc.aio.insecure_channel(admin) as plain:
            other: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(plain)
            with pytest.raises(grpc.aio.AioRpcError):
                await other.GetStats(admin_pb2.GetStatsRequest())


async def test_certificates_of_admins_are_named_in_the_settings(tmp_path):
    ca = trustme.CA()
    made = ca.issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    admin = f"127.0.0.1:{free_port()}"
    settings = Settings(
        listen="127.0.0.1:0",
        admin=AdminSettings(listen=admin),
        voices=VoiceSettings(url=str(tmp_path / "voices")),
        tls=TlsSettings(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem", client_ca=tmp_path / "ca.pem"),
        auth=AuthSettings(admin_certificates=("operator.test",)),
    )
    async with running_server(settings, pool=pool_with(Launcher([MakeFake()]))):
        for name, code in (("operator.test", "OK"), ("billing.test", "PERMISSION_DENIED")):
            client = ca.issue_cert(name)
            credentials = grpc.ssl_channel_credentials(
                ca.cert_pem.bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
            )
            async with grpc.aio.secure_channel(admin, credentials) as channel:
                stub: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(channel)
                call = stub.GetStats(admin_pb2.GetStatsRequest())
                assert (await call.code()).name == code


async def test_an_admin_port_that_is_taken_is_an_error():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = AdminSettings(listen=f"127.0.0.1:{holder.getsockname()[1]}")
        pool = pool_with(Launcher([MakeFake()]))
        with pytest.raises(StartupError, match="the port is taken"):
            async with running_server(Settings(listen="127.0.0.1:0", admin=taken), pool=pool):
                pass


def test_the_warning_about_exposure_covers_the_admin_port():
    local = Settings(listen="127.0.0.1:1", admin=AdminSettings(listen="127.0.0.1:2"))
    assert not exposure(local)
    admin = Settings(listen="127.0.0.1:1", admin=AdminSettings(listen="0.0.0.0:2"))
    assert exposure(admin).startswith("0.0.0.0:2 (admin.listen) is open to other hosts without encryption")
    both = Settings(listen="0.0.0.0:1", admin=AdminSettings(listen="0.0.0.0:2"))
    assert exposure(both).startswith("0.0.0.0:1 and 0.0.0.0:2 (admin.listen) are open to other hosts")


async def test_top_shows_a_running_server(tmp_path, engine_answers):
    async with operated(tmp_path) as server:
        call = server.speak("Hello there.")
        while not (await call.read()).audio:
            pass
        command = ["top", "--once", "--interval", "0.1", "--target", server.admin_address]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        call.cancel()
    page = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.output
    assert "● serving fake" in page and "1 of 256" in page and f"1/{SLOTS}" in page
