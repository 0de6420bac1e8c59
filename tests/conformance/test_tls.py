"""A certificate is replaced while streams are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from support.servers.running import serving
from support.servers.targets import Target, config, message, refusal, rest
from support.servers.tls_files import OPTIONS, Files
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb


async def accepted(target: Target) -> bool:
    """True if a new connection trusts the server and is served."""
    async with target.service() as service:
        try:
            return bool(await service.GetModelInfo(pb.GetModelInfoRequest()))
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False


@pytest.fixture(scope="module")
def served(own: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Files]]:
    """A server with TLS, as a target that trusts it, and its files."""
    files = Files.new(tmp_path_factory.mktemp("tls"))
    flags = [text for name, path in files.settings.items() for text in (f"--tls.{name}", str(path))]
    trusted = files.folder / "ca.pem"
    files.ca.cert_pem.write_to_path(trusted)
    with serving(files.folder / "voices", *flags, model=model) as server:
        yield Target(server.address, trusted, options=OPTIONS, server=server), files


async def test_bytes_without_encryption_end_their_own_connection(served: tuple[Target, Files]) -> None:
    target, _ = served
    async with Target(target.address).service() as plain:
        code, _, _ = await refusal(plain.GetModelInfo(pb.GetModelInfoRequest()))
        assert code is grpc.StatusCode.UNAVAILABLE
    assert await accepted(target)


async def test_open_streams_outlive_the_replacement_of_the_certificate(
    served: tuple[Target, Files], tmp_path: Path
) -> None:
    """The last test of this server."""
    old, files = served
    successor, authority = trustme.CA(), tmp_path / "new.pem"
    successor.cert_pem.write_to_path(authority)
    new = replace(old, ca=authority)
    async with old.service() as service:
        calls = [service.Generate() for _ in range(4)]
        for call in calls:
            for body in (config(), "Hello there. "):
                await call.write(message(body))
            assert (await call.read()).HasField("header")
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
