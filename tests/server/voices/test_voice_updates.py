"""A recording that is uploaded again changes the name, the labels and the time to live of its voice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from support.servers.uploads import add_hifi, add_prompt, recording
from support.servers.voice_stores import DAY, FaultyObjects, listed, voice
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import NotFound
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import VoiceOptions
from voxcpm_server.values.voice import VoiceKind
from voxcpm_server.voices.store.records import StoredVoice
from voxcpm_server.voices.store.store import VoiceStore


def options(name: str = "", labels: dict[str, str] | None = None, ttl: int = 0) -> pb.VoiceOptions:
    return pb.VoiceOptions(display_name=name, labels=labels or {}, ttl=Duration(seconds=ttl) if ttl else None)


def shown(handle: pb.VoiceHandle) -> tuple[str, dict[str, str], int]:
    return handle.display_name, dict(handle.labels), handle.expire_time.seconds - handle.create_time.seconds


async def read(served, id: str) -> pb.VoiceHandle:
    return (await served.stub.GetVoice(pb.GetVoiceRequest(id=id))).handle


async def test_options_that_are_set_replace_those_of_the_stored_voice(served):
    first = await add_prompt(served, options=options("Ann", {"a": "b"}, 1000))
    assert shown(first) == ("Ann", {"a": "b"}, 1000)
    for changed, expected in (
        (options("Bea"), ("Bea", {"a": "b"}, 1000)),
        (options(labels={"c": "d"}), ("Bea", {"c": "d"}, 1000)),
        (options(ttl=2000), ("Bea", {"c": "d"}, 2000)),
        (options(), ("Bea", {"c": "d"}, 2000)),
    ):
        handle = await add_prompt(served, options=changed)
        assert handle.id == first.id
        assert handle.reused
        assert shown(handle) == shown(await read(served, first.id)) == expected
    assert served.pool.encoded == 1
    assert [handle.id for handle in (await served.stub.ListVoices(pb.ListVoicesRequest())).handles] == [first.id]
    await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=first.id))
    assert not (await served.stub.ListVoices(pb.ListVoicesRequest())).handles


async def test_an_update_of_a_hifi_voice_leaves_its_members(served):
    prompt = await add_prompt(served, options=options("member"))
    reference = pb.SameAsPrompt()
    config = {"uploaded_prompt": pb.UploadedPrompt(transcript="Hi there."), "same_as_prompt": reference}
    for name in ("first", "second"):
        handle = (await add_hifi(served, (0, recording(0)), options=options(name), **config))[0].handle
        assert handle.display_name == name
        assert (await read(served, handle.id)).display_name == name
        assert (await read(served, prompt.id)).display_name == "member"


async def test_an_update_does_not_count_against_the_limits(serve_front):
    async with serve_front(max_voices=1) as served:
        await add_prompt(served)
        for name in ("a", "b", "c"):
            assert (await add_prompt(served, options=options(name))).display_name == name


async def test_updates_of_several_servers_leave_one_voice_with_all_its_names(servers):
    stores = [servers.open() for _ in range(4)]
    [(first, _)] = await stores[0].add(voice(display_name="first"), owner="caller")
    names = ["a", "b", "c", "d"]
    updates = [
        store.add(voice(), owner="other", options=VoiceOptions(display_name=name))
        for store, name in zip(stores, names, strict=True)
    ]
    for [(updated, reused)] in await asyncio.gather(*updates):
        assert reused
        assert updated.display_name in names
    for store in stores:
        found = await store.find(first.id)
        assert {one.name for one in found.names} == {"first", *names}
    assert [await listed(store) for store in stores] == [[first.id]] * len(stores)
    assert servers.names.count(f"{first.id}.voice") == 1
    await stores[0].delete(first.id)
    for store in stores:
        with pytest.raises(NotFound):
            await store.load(first.id)


async def test_a_change_on_top_of_one_that_is_being_withdrawn_loses_no_name(servers):
    """The slow server plans, then the fast one changes the voice, then the slow one writes and finds that out.

    Before it has removed what it wrote, a third server changes the voice.
    """
    fast, slow, third = (servers.open() for _ in range(3))
    _, objects, others = servers.objects
    [(first, _)] = await fast.add(voice(display_name="first"))
    servers.clock.now += 1
    objects.block("write", ".latents")
    behind = asyncio.create_task(slow.add(voice(), options=VoiceOptions(display_name="slow")))
    await until(lambda: objects.count("write", ".latents"))
    servers.clock.now -= 1  # the version of the slow server is the newest
    await fast.add(voice(), options=VoiceOptions(display_name="fast"))
    objects.block("write", ".deleted")
    await until(lambda: objects.count("write", ".deleted"))
    last = asyncio.create_task(third.add(voice(), options=VoiceOptions(display_name="third")))
    await until(lambda: last.done() or others.count("write", ".deleted"))
    objects.unblock()
    await asyncio.gather(behind, last)
    for store in (fast, slow, third):
        found = await store.find(first.id)
        assert {one.name for one in found.names} == {"first", "fast", "slow", "third"}
    assert servers.names.count(f"{first.id}.voice") == 1


def change_at_each_read(
    objects: FaultyObjects, store: VoiceStore, names: Sequence[str], changed: StoredVoice | None = None
) -> None:
    """Another server gives a voice one of these names before each read of its objects."""
    stored = changed or voice()
    loop, left, read = asyncio.get_running_loop(), iter(names), objects.read

    def changed_before(*wanted: str) -> dict[str, bytes]:
        if wanted[0].startswith(stored.voice.id) and (name := next(left, "")):
            change = store.add(stored, options=VoiceOptions(display_name=name))
            asyncio.run_coroutine_threadsafe(change, loop).result(HANG_SECONDS)
        return read(*wanted)

    objects.read = changed_before


async def test_a_voice_that_is_changed_whenever_it_is_read_keeps_its_names(servers):
    one, other = servers.open(), servers.open()
    [(first, _)] = await one.add(voice(display_name="first"))
    names = ["a", "b", "c", "d"]
    change_at_each_read(servers.objects[1], one, names)
    [(changed, reused)] = await other.add(voice(), options=VoiceOptions(display_name="last"))
    assert reused
    assert {one.name for one in changed.names} == {"first", "last", *names}
    assert {one.name for one in (await one.find(first.id)).names} == {"first", "last", *names}


@pytest.mark.parametrize("call", ["find", "load", "page", "named"])
async def test_a_voice_that_is_changed_whenever_it_is_read_is_found(servers, call):
    one, other = servers.open(), servers.open()
    [(first, _)] = await one.add(voice(display_name="first"))
    change_at_each_read(servers.objects[1], one, ["a", "b", "c", "d"])
    found: Any = await getattr(other, call)(*{"page": [], "named": ["first"]}.get(call, [first.id]))
    match call:
        case "find":
            assert found.id == first.id
        case "load":
            assert found.voice.id == first.id
        case "page":
            assert [voice.id for voice in found[0]] == [first.id]
        case "named":
            assert [voice.id for voice in found] == [first.id]


async def test_a_member_of_a_voice_that_is_being_changed_is_not_deleted_with_another(servers):
    one, other = servers.open(), servers.open()
    [(member, _)] = await one.add(voice("member"))
    hifis = [
        replace(
            made := voice(name, kind=VoiceKind.HIFI, prompt_id=member.id, reference_id=member.id), reference=made.prompt
        )
        for name in ("one", "other")
    ]
    await one.add(*hifis)
    change_at_each_read(servers.objects[1], one, ["a"], hifis[1])
    await other.delete(hifis[0].voice.id, cascade=True)
    assert (await one.find(hifis[1].voice.id)).display_name == "a"
    assert (await one.find(member.id)).id == member.id


async def test_a_voice_that_is_deleted_during_its_update_stays_deleted_or_is_stored_anew(servers):
    one, other = servers.open(), servers.open()
    for round in range(5):
        [(first, _)] = await one.add(voice(display_name="first"), owner="caller")
        update = one.add(voice(), options=VoiceOptions(display_name=f"new {round}"))
        [(updated, _)], _ = await asyncio.gather(update, other.delete(first.id))
        assert updated.display_name in ("", f"new {round}")
        found = await listed(other)
        assert found in ([], [first.id])
        if found:
            await other.delete(first.id)
    assert not [name for name in servers.names if not name.endswith(".deleted")]


async def test_the_time_to_live_of_the_update_is_in_force(servers):
    store = servers.open()
    [(first, _)] = await store.add(voice(ttl=10 * DAY))
    await store.add(voice(), options=VoiceOptions(ttl=DAY))
    servers.clock.now += 2 * DAY
    with pytest.raises(NotFound):
        await store.load(first.id)
    assert await store.sweep() == 0


async def test_an_updated_voice_still_belongs_to_the_caller_that_stored_it(servers):
    store = servers.open(max_voices_per_caller=1)
    await store.add(voice("a"), owner="one")
    await store.add(voice("a"), owner="two", options=VoiceOptions(display_name="new"))
    await store.add(voice("b"), owner="two")  # has room
    other = servers.open(max_voices_per_caller=1)
    for owner in ("one", "two"):
        with pytest.raises(Exception, match="this caller has 1 stored voices and the limit is 1"):
            await other.add(voice("c"), owner=owner)
    await other.add(voice("c"))  # of no caller


async def test_a_voice_of_no_caller_counts_for_nobody(servers):
    store = servers.open(max_voices_per_caller=1)
    await store.add(voice("a"))
    await store.add(voice("a"), owner="one", options=VoiceOptions(display_name="new"))
    await store.add(voice("b"), owner="one")
