"""A certificate is replaced while streams are open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from support.servers import serving
from support.targets import Target, config, message, refusal, rest
from support.tls_files import OPTIONS, Files
from support.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb

pytestmark = pytest.mark.usefixtures("own")


async def accepted(target: Target) -> bool:
    """True if a new connection trusts the server and is served."""
    async with target.service() as service:
        try:
            return bool(await service.GetModelInfo(pb.GetModelInfoRequest()))
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False


async def test_open_streams_outlive_the_replacement_of_the_certificate(model: Path, tmp_path: Path) -> None:
    files = Files.new(tmp_path)
    flags = [text for name, path in files.settings.items() for text in (f"--tls.{name}", str(path))]
    authorities = [tmp_path / "old.pem", tmp_path / "new.pem"]
    files.ca.cert_pem.write_to_path(authorities[0])
    with serving(tmp_path / "voices", *flags, model=model) as server:
        old = Target(server.address, authorities[0], options=OPTIONS, server=server)
        new = replace(old, ca=authorities[1])
        async with old.service() as service:
            calls = [service.Generate() for _ in range(4)]
            for call in calls:
                for body in (config(), "Hello there. "):
                    await call.write(message(body))
                assert (await call.read()).HasField("header")
            successor = trustme.CA()
            successor.cert_pem.write_to_path(authorities[1])
            assert not await accepted(new)
            files.write(successor)
            async with asyncio.timeout(HANG_SECONDS):
                while not await accepted(new):
                    pass
            assert not await accepted(old)
            for call in calls:
                await call.write(message("How are you?"))
                await call.done_writing()
                assert (await rest(call))[-1].summary.segments == 2
            assert (await service.speak(config(), "A new call on the old connection."))[-1].summary.total_samples


async def test_bytes_without_encryption_end_their_own_connection(model: Path, tmp_path: Path) -> None:
    files = Files.new(tmp_path)
    flags = [text for name, path in files.settings.items() for text in (f"--tls.{name}", str(path))]
    files.ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(tmp_path / "voices", *flags, model=model) as server:
        target = Target(server.address, tmp_path / "ca.pem", options=OPTIONS, server=server)
        async with Target(server.address).service() as plain:
            code, _, _ = await refusal(plain.GetModelInfo(pb.GetModelInfoRequest()))
            assert code is grpc.StatusCode.UNAVAILABLE
        assert await accepted(target)
