"""Voices of several principals on one server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.servers.uploads import recording, upload

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.auth.keys import create
from voxcpm_server.voices.presets import Preset

Code = grpc.StatusCode
PROMPT = pb.UploadedPrompt(transcript="One.")
HIFI = pb.AddHifiConfig(uploaded_prompt=PROMPT, same_as_prompt=pb.SameAsPrompt())


@dataclass(frozen=True)
class Client:
    """A caller with a key of its own."""

    stub: Any
    metadata: tuple[tuple[str, str], ...]

    async def add(self, seed: int = 1, name: str = "", rpc: str = "AddReference") -> pb.VoiceHandle:
        request, config = {
            "AddReference": (pb.AddReferenceRequest, pb.AddReferenceConfig()),
            "AddHifi": (pb.AddHifiRequest, HIFI),
        }[rpc]
        config = type(config).FromString(config.SerializeToString())
        config.options.display_name = name
        messages = upload(request, config, (0, recording(seed)))
        chunks = [chunk async for chunk in getattr(self.stub, rpc)(iter(list(messages)), metadata=self.metadata)]
        [handle] = [chunk.handle for chunk in chunks if chunk.HasField("handle")]
        return handle

    async def get(self, id: str) -> pb.VoiceHandle:
        return (await self.stub.GetVoice(pb.GetVoiceRequest(id=id), metadata=self.metadata)).handle

    async def ids(self) -> set[str]:
        page = await self.stub.ListVoices(pb.ListVoicesRequest(page_size=1000), metadata=self.metadata)
        return {handle.id for handle in page.handles}

    async def delete(self, id: str, *, cascade: bool = False) -> None:
        await self.stub.DeleteVoice(pb.DeleteVoiceRequest(id=id, cascade=cascade), metadata=self.metadata)

    async def owners(self) -> dict[str, str]:
        page = await self.stub.ListVoices(pb.ListVoicesRequest(page_size=1000), metadata=self.metadata)
        return {handle.id: handle.principal for handle in page.handles}

    async def rename(self, id: str, name: str) -> pb.VoiceHandle:
        request = pb.UpdateVoiceRequest(id=id, display_name=name)
        return (await self.stub.UpdateVoice(request, metadata=self.metadata)).handle

    async def speak(self, voice: str) -> str:
        """The voice of the stream, by its header."""
        config = pb.GenerateConfig(conditioning=pb.Conditioning(voice=voice))
        messages = [pb.GenerateRequest(config=config), pb.GenerateRequest(text="Hello.")]
        chunks = [chunk async for chunk in self.stub.Generate(iter(messages), metadata=self.metadata)]
        return chunks[0].header.voice


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code()


@pytest.fixture
def clients(serve_front, tmp_path: Path) -> Any:
    """`async with clients() as (alice, bob, admin)`"""

    @asynccontextmanager
    async def serve(**options: Any) -> AsyncIterator[tuple[Client, Client, Client]]:
        file = tmp_path / "keys.toml"
        keys = [create(name, file, admin=name == "admin") for name in ("alice", "bob", "admin")]
        async with serve_front(server={"auth": {"keys": file}}, **options) as served:
            alice, bob, admin = (Client(served.stub, (("authorization", f"Bearer {key}"),)) for key in keys)
            yield alice, bob, admin

    return serve


async def test_a_voice_does_not_exist_for_other_principals(clients):
    async with clients() as (alice, bob, _):
        handle = await alice.add(name="Anna")
        assert await alice.speak("Anna") == await alice.speak(handle.id) == handle.id
        for name in ("Anna", handle.id):
            assert await refused(bob.get(name)) is Code.NOT_FOUND
            assert await refused(bob.speak(name)) is Code.NOT_FOUND
            assert await refused(bob.delete(name)) is Code.NOT_FOUND
            assert await refused(bob.rename(name, "Bea")) is Code.NOT_FOUND
        assert await bob.ids() == set() and await alice.ids() == {handle.id}


async def test_a_refusal_names_no_voice_of_another_principal(clients):
    async with clients() as (alice, bob, _):
        await alice.add(name="Confidential")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await bob.get("Confidentia")
        assert "Confidential" not in (raised.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError, match="did you mean 'Confidential'"):
            await alice.get("Confidentia")


async def test_the_same_recording_is_a_voice_of_its_own_for_each_principal(clients):
    async with clients() as (alice, bob, _):
        hers, his = await alice.add(name="Voice"), await bob.add(name="Voice")
        assert hers.id != his.id and not his.reused
        assert (await alice.add(name="Voice")).reused
        await alice.delete("Voice")
        assert await bob.get("Voice") and await refused(alice.get("Voice")) is Code.NOT_FOUND


async def test_voices_of_an_admin_are_everyones_and_only_an_admin_changes_them(clients):
    async with clients() as (alice, bob, admin):
        shared = await admin.add(name="House")
        assert await alice.speak("house") == await bob.speak(shared.id) == shared.id
        assert await refused(alice.delete("House")) is await refused(bob.rename("House", "X")) is Code.PERMISSION_DENIED
        own = await alice.add(seed=2, name="House")
        assert await alice.speak("House") == own.id and await bob.speak("House") == shared.id
        await admin.rename(shared.id, "Home")
        assert await bob.speak("Home") == shared.id


async def test_no_principal_makes_a_name_of_another_unusable(clients):
    async with clients() as (alice, bob, admin):
        hers = await alice.add(seed=1, name="Ada")
        house, his = await admin.add(seed=2, name="ada"), await bob.add(seed=3, name="ADA")
        assert {await alice.speak(name) for name in ("Ada", "ada", "ADA")} == {hers.id}
        assert {await bob.speak(name) for name in ("Ada", "ada", "ADA")} == {his.id}
        assert await refused(alice.add(seed=4, name="ada")) is Code.ALREADY_EXISTS
        await alice.add(seed=1, name="Eve")
        await bob.delete("Ada")
        await admin.delete(house.id)
        assert await alice.speak("Ada") == await alice.speak("Eve") == hers.id
        assert await refused(bob.speak("Eve")) is Code.NOT_FOUND


async def test_an_admin_sees_and_changes_all_voices(clients):
    async with clients() as (alice, bob, admin):
        hers, his = await alice.add(name="A"), await bob.add(name="B")
        assert await admin.ids() == {hers.id, his.id}
        await admin.rename("A", "C")
        assert (await alice.get("C")).id == hers.id
        await admin.delete(his.id)
        assert await bob.ids() == set()


async def test_only_an_admin_sees_the_owner_of_a_voice(clients):
    preset = Preset(name="hazel", kind="reference", recording="a.wav")
    async with clients(presets=[(preset, recording(5))]) as (alice, bob, admin):
        hers, everyones = await alice.add(name="A"), await admin.add(seed=2, name="House")
        owners = {hers.id: "key:alice", everyones.id: "", (await admin.get("hazel")).id: ""}
        assert await admin.owners() == owners
        assert {id: (await admin.get(id)).principal for id in owners} == owners
        assert (await admin.rename(hers.id, "B")).principal == "key:alice"
        for caller in (alice, bob):
            assert set((await caller.owners()).values()) == {""}
        assert not hers.principal and not (await alice.get(hers.id)).principal
        assert not (await alice.rename(hers.id, "C")).principal


async def test_a_hifi_voice_and_its_members_have_one_owner(clients):
    async with clients() as (alice, bob, _):
        hifi = await alice.add(name="Both", rpc="AddHifi")
        theirs = await alice.ids()
        assert len(theirs) == 3
        for id in theirs:
            assert await refused(bob.get(id)) is Code.NOT_FOUND
        await alice.delete(hifi.id, cascade=True)
        assert await alice.ids() == set()


async def test_deleting_with_members_keeps_those_of_everyone(clients):
    async with clients() as (alice, _, admin):
        await admin.add(name="Reference")
        messages = upload(
            pb.AddHifiRequest,
            pb.AddHifiConfig(uploaded_prompt=PROMPT, reference_id="Reference"),
            (0, recording(2)),
        )
        chunks = [chunk async for chunk in alice.stub.AddHifi(iter(list(messages)), metadata=alice.metadata)]
        [hifi] = [chunk.handle for chunk in chunks if chunk.HasField("handle")]
        await alice.delete(hifi.id, cascade=True)
        assert len(await alice.ids()) == 1 and await alice.speak("Reference")


async def test_presets_are_everyones(clients):
    preset = Preset(name="hazel", kind="reference", recording="a.wav")
    async with clients(presets=[(preset, recording(5))]) as (alice, bob, admin):
        assert await alice.speak("hazel") == await bob.speak("hazel") == "hazel"
        assert await refused(admin.delete("hazel")) is Code.FAILED_PRECONDITION


async def test_quotas_count_the_voices_of_a_principal(clients):
    async with clients(max_voices_per_caller=2) as (alice, bob, _):
        for seed in (1, 2):
            await alice.add(seed=seed)
        assert await refused(alice.add(seed=3)) is Code.RESOURCE_EXHAUSTED
        await bob.add(seed=3)


async def test_voices_of_principals_are_hidden_without_authentication(clients, serve_front):
    async with clients() as (alice, _, admin):
        hers, everyones = await alice.add(name="Anna"), await admin.add(seed=2, name="House")
    async with serve_front() as served:
        nobody = Client(served.stub, ())
        assert await nobody.ids() == {everyones.id}
        assert await refused(nobody.get(hers.id)) is Code.NOT_FOUND
        await nobody.delete("House")
