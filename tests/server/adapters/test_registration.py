"""LoRA adapters that admins register, list and unregister over gRPC while the server runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from support.clients.status_details import details_of
from support.doubles.fake_engine import MakeFake, write_lora
from support.servers.operated import Operated, operated
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_client import AlreadyExists, AsyncClient, NotFound
from voxcpm_client.cli import main
from voxcpm_grpc import lora_files
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.v1 import admin_pb2
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.auth.keys import create

STEP = 960  # samples


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The directory from which the server takes adapters, with one named anna."""
    write_lora(tmp_path / "sources" / "anna", 0.25)
    return tmp_path / "sources"


@pytest.fixture
async def server(tmp_path: Path, sources: Path) -> AsyncIterator[Operated]:
    async with operated(tmp_path / "voices", lora_sources=[sources, "memory://adapters"]) as server:
        yield server


async def register(server: Operated, name: str, source: object, **fields: Any) -> admin_pb2.LoraInfo:
    request = admin_pb2.RegisterLoraRequest(name=name, source=str(source), **fields)
    return (await server.admin.RegisterLora(request)).lora


async def unregister(server: Operated, name: str, model: str = "") -> None:
    await server.admin.UnregisterLora(admin_pb2.UnregisterLoraRequest(name=name, model=model))


async def listed(server: Operated, model: str = "") -> list[admin_pb2.LoraInfo]:
    return list((await server.admin.ListLoras(admin_pb2.ListLorasRequest(model=model))).loras)


async def names(server: Operated) -> list[str]:
    """The adapters that clients see."""
    return list((await server.stub.GetModelInfo(pb.GetModelInfoRequest())).loras)


async def sound(server: Operated, lora: str) -> float:
    """The first sample of the fake engine, which is the number of the adapter."""
    audio = b"".join([reply.audio async for reply in server.speak("Hello.", steps=1, lora=lora)])
    return round(float(np.frombuffer(audio, "<i2")[0]) / 32768, 2)


async def refused(call: Any) -> tuple[str, str, str]:
    """The status, the field and the message of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, details_of(caught.value).field, str(caught.value.details())


async def test_a_registered_adapter_is_listed_and_speaks(server, sources):
    anna = await register(server, "anna", sources / "anna")
    assert (anna.name, anna.model, anna.source) == ("anna", "fake", str(sources / "anna"))
    assert (len(anna.fingerprint), anna.streams, anna.engines) == (32, 0, 1)
    assert await listed(server) == await listed(server, "fake") == [anna]
    assert await names(server) == ["anna"]
    assert (await sound(server, "anna"), await sound(server, "")) == (0.25, 0.0)


async def test_an_adapter_that_is_unregistered_goes_when_its_last_stream_ends(server, sources):
    await register(server, "anna", sources / "anna")
    stream = server.speak("Hello there.", lora="anna")
    await stream.read()
    assert [info.streams for info in await listed(server)] == [1]
    await unregister(server, "anna")
    assert await names(server) == [] and await listed(server) == []
    status, _, message = await refused(server.speak("Hello.", lora="anna").read())
    assert (status, "there is no LoRA adapter 'anna'" in message) == ("NOT_FOUND", True)
    [replica] = server.running.pool.replicas
    assert replica.adapters
    await register(server, "anna", write_lora(sources / "other", 0.5))
    assert await sound(server, "anna") == 0.5
    assert len(replica.adapters) == 2
    stream.cancel()
    await until(lambda: len(replica.adapters) == 1)


async def test_a_turn_speaks_on_with_an_adapter_that_is_unregistered_and_whose_files_are_gone(server, sources):
    await register(server, "anna", sources / "anna")
    call = server.stub.Generate()
    turn = pb.TurnConfig(lora="anna", sampling=pb.Sampling(max_steps=2))
    await call.write(pb.GenerateRequest(config=pb.GenerateConfig(turn=turn)))

    async def say(tag: str) -> set[float]:
        """The samples of a segment."""
        await call.write(pb.GenerateRequest(text=f"Hello {tag}. "))
        await call.write(pb.GenerateRequest(flush=pb.Flush(tag=tag)))
        audio = b""
        while (reply := await call.read()).flush_done.tag != tag:
            audio += reply.audio
        return {round(sample / 32768, 2) for sample in np.frombuffer(audio, "<i2").tolist()}

    assert 0.25 in await say("there")
    await unregister(server, "anna")
    shutil.rmtree(sources / "anna")
    for tag in ("again", "once more"):
        assert 0.25 in await say(tag)
    [replica] = server.running.pool.replicas
    assert replica.adapters
    call.cancel()
    await until(lambda: not replica.adapters)


async def test_errors_of_a_registration_name_the_field_and_the_remedy(server, sources, tmp_path):
    await register(server, "anna", sources / "anna")
    outside, pickle = write_lora(tmp_path / "outside"), sources / "pickle"
    pickle.mkdir()
    (pickle / lora_files.CONFIG).touch()
    (pickle / lora_files.LEGACY).touch()
    found = hashlib.sha256(b"0.25").hexdigest()
    for fields, expected, said in (
        ({"name": "anna"}, ("ALREADY_EXISTS", "name"), "unregister it first, or choose another name"),
        ({"name": ""}, ("INVALID_ARGUMENT", "name"), "name is ''; it must have 1 to 64 letters"),
        ({"name": "a/b"}, ("INVALID_ARGUMENT", "name"), "name is 'a/b'"),
        ({"name": "ä"}, ("INVALID_ARGUMENT", "name"), "letters of ASCII"),
        ({"name": "a" * 65}, ("INVALID_ARGUMENT", "name"), "1 to 64"),
        ({"model": "big"}, ("NOT_FOUND", "model"), "there is no model 'big'; this server has fake"),
        ({"source": str(outside)}, ("FAILED_PRECONDITION", "source"), "add its source to admin.lora_sources"),
        ({"source": str(sources)}, ("INVALID_ARGUMENT", "source"), "has no lora_config.json and no lora_weights"),
        ({"source": str(sources / "missing")}, ("INVALID_ARGUMENT", "source"), "is not a directory of this server"),
        ({"source": str(pickle)}, ("INVALID_ARGUMENT", "source"), "save its tensors with safetensors"),
        ({"source": ""}, ("INVALID_ARGUMENT", "source"), "name a directory or a URL"),
        ({"sha256": "1" * 64}, ("INVALID_ARGUMENT", "sha256"), f"has the SHA-256 {found}, not 1111"),
        ({"sha256": ""}, ("INVALID_ARGUMENT", "sha256"), "must be 64 hexadecimal digits"),
    ):
        status, field, message = await refused(
            register(server, **({"name": "bert", "source": str(sources / "anna")} | fields))
        )
        assert (status, said in message) == (expected[0], True), message
        assert status != "INVALID_ARGUMENT" or field == expected[1], fields
    await register(server, "bert", sources / "anna", sha256=found)
    assert await names(server) == ["anna", "bert"]


async def test_an_adapter_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path, sources):
    async with operated(tmp_path / "voices", MakeFake(loras_taken=False), lora_sources=[sources]) as server:
        status, field, message = await refused(register(server, "anna", sources / "anna"))
        assert (status, field) == ("INVALID_ARGUMENT", "source")
        assert message == "the LoRA adapter 'anna': it does not fit this model"
        assert await names(server) == []


async def test_errors_of_other_calls(server):
    assert await refused(unregister(server, "anna")) == (
        "NOT_FOUND",
        "",
        "there is no LoRA adapter 'anna'; the server has none; its operator adds them with --lora NAME=DIRECTORY",
    )
    assert (await refused(unregister(server, "")))[:2] == ("INVALID_ARGUMENT", "name")
    assert "there is no model 'big'" in (await refused(unregister(server, "anna", "big")))[2]
    assert "there is no model 'big'" in (await refused(listed(server, "big")))[2]


async def test_a_server_without_sources_registers_nothing(tmp_path, sources):
    async with operated(tmp_path / "voices") as server:
        status, _, message = await refused(register(server, "anna", sources / "anna"))
        assert status == "FAILED_PRECONDITION" and "admin.lora_sources is empty" in message
        assert await listed(server) == []


async def test_a_download_is_read_again_when_an_engine_restarts(server, stored):
    files = {lora_files.CONFIG: b"", lora_files.WEIGHTS: b"0.125"}
    stored("memory://adapters/bert", files)
    await register(server, "bert", "memory://adapters/bert")
    assert await sound(server, "bert") == 0.12
    stored("memory://adapters/bert", {lora_files.WEIGHTS: b"0.5"})
    [replica] = server.running.pool.replicas
    server.launcher.kill()
    await until(lambda: not replica.ready)
    await until(lambda: replica.adapters)
    assert await sound(server, "bert") == 0.12


async def test_an_adapter_that_is_registered_again_and_again_is_stored_once(server, stored, tmp_path):
    stored("memory://adapters/bert", {lora_files.CONFIG: b"", lora_files.WEIGHTS: b"0.5"})
    for _ in range(20):
        await register(server, "bert", "memory://adapters/bert")
        await unregister(server, "bert")
    assert len(list((tmp_path / "lora cache").iterdir())) == 1
    [replica] = server.running.pool.replicas
    await until(lambda: not replica.adapters)


async def test_a_call_that_is_cancelled_registers_nothing(server, sources, tmp_path):
    may_read = tmp_path / "may read"
    write_lora(sources / "slow", then=f"after {may_read}")
    call = asyncio.ensure_future(register(server, "slow", sources / "slow"))
    await until((tmp_path / "may read.reading").exists)
    call.cancel()
    await asyncio.wait([call])
    may_read.touch()
    async with asyncio.timeout(HANG_SECONDS):
        while not await registers(server, "slow", sources / "slow"):
            pass  # the server has not seen the cancel yet
    assert await names(server) == ["slow"]


async def registers(server: Operated, name: str, source: Path) -> bool:
    """Register an adapter; False if there is one of this name."""
    try:
        await register(server, name, source)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.ALREADY_EXISTS:
            return False
        raise
    return True


async def test_with_authentication_only_admins_register(tmp_path, sources):
    file = tmp_path / "keys.toml"
    keys = {name: create(name, file, admin=name == "operator") for name in ("operator", "billing")}
    calls = (
        ("RegisterLora", admin_pb2.RegisterLoraRequest(name="anna", source=str(sources / "anna"))),
        ("ListLoras", admin_pb2.ListLorasRequest()),
        ("UnregisterLora", admin_pb2.UnregisterLoraRequest(name="anna")),
    )
    async with operated(tmp_path / "voices", auth={"keys": file}, lora_sources=[sources]) as server:
        for method, request in calls:
            for name, code in (("", "UNAUTHENTICATED"), ("billing", "PERMISSION_DENIED"), ("operator", "OK")):
                metadata = (("authorization", f"Bearer {keys[name]}"),) if name else ()
                call = getattr(server.admin, method)(request, metadata=metadata)
                assert (await call.code()).name == code, (method, name)


async def test_the_log_tells_who_registers_which_adapter(server, sources, caplog):
    caplog.set_level("INFO")
    anna = await register(server, "anna", sources / "anna")
    await unregister(server, "anna")
    lines = [record.getMessage() for record in caplog.records if record.name == "voxcpm_server.adapters.registry"]
    what = f"lora=anna model=fake source={sources / 'anna'} fingerprint={anna.fingerprint} caller="
    assert len(lines) == 2
    assert lines[0].startswith(f"a LoRA adapter is registered {what}")
    assert lines[1].startswith(f"a LoRA adapter is unregistered {what}")


async def test_the_command_line_registers_lists_and_unregisters(server, sources):
    async def run(*command: str) -> tuple[int, str]:
        options = ["--target", server.admin_address]
        result = await asyncio.to_thread(CliRunner().invoke, main, ["lora", *command, *options])
        return result.exit_code, " ".join(result.output.split())

    source = str(sources / "anna")
    wrong = await run("register", "anna", source, "--sha256", "1" * 64)
    assert wrong[0] == 1 and "has the SHA-256" in wrong[1]
    assert await run("register", "anna", source) == (0, "anna is registered for fake")
    again = await run("register", "anna", source)
    assert again[0] == 1 and "unregister it first" in again[1]
    assert await run("list") == (0, f"NAME MODEL STREAMS ENGINES SOURCE anna fake 0 1 {source}")
    [found] = json.loads((await run("list", "--json"))[1])
    assert (found["name"], found["engines"]) == ("anna", 1)
    assert await run("unregister", "anna") == (0, "anna is unregistered")
    assert await run("list") == (0, "there are no adapters; `voxcpm-grpc lora register` adds one")
    elsewhere = await asyncio.to_thread(CliRunner().invoke, main, ["lora", "list", "--target", server.running.address])
    assert elsewhere.exit_code == 1 and "this port has no admin service" in elsewhere.output


async def test_the_client_registers_lists_and_unregisters(server, sources):
    async with AsyncClient(server.admin_address) as client:
        anna = await client.register_lora("anna", str(sources / "anna"), model="fake")
        assert await client.list_loras() == await client.list_loras("fake") == [anna]
        with pytest.raises(AlreadyExists):
            await client.register_lora("anna", str(sources / "anna"))
        await client.unregister_lora("anna")
        with pytest.raises(NotFound):
            await client.unregister_lora("anna")


async def test_a_source_that_is_not_valid_stops_the_start(tmp_path):
    with pytest.raises(StartupError, match=r"admin\.lora_sources has the root 'nonsense://x'"):
        async with operated(tmp_path / "voices", lora_sources=["nonsense://x"]):
            pass
