"""Servers that share a store: storing, deletion, loading and expiry of voices."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.servers.voice_stores import DAY, listed, prompt_of, voice
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import Exhausted, NotFound
from voxcpm_server.values.voice import VoiceKind
from voxcpm_server.voices.store.records import voice_id


async def test_a_voice_stored_by_one_server_is_loaded_by_all_at_once(servers):
    one, two = servers.open(), servers.open()
    assert await listed(two) == []
    ((stored, reused),) = await one.add(voice(labels={"a": "b"}, display_name="Ann"))
    assert not reused
    for store in (one, two):
        loaded = await store.load(stored.id)
        assert loaded.voice == stored == await store.find(stored.id)
        assert np.array_equal(prompt_of(loaded), prompt_of(voice()))
        assert loaded.reference is None
        assert await listed(store) == [stored.id]
    assert (stored.labels, stored.display_name, stored.created) == ({"a": "b"}, "Ann", servers.clock.now)
    assert await two.add(voice(display_name="new")) == [(stored, True)]  # the stored description stays


async def test_a_voice_deleted_by_one_server_is_deleted_for_all(servers):
    one, two = servers.open(), servers.open()
    ((stored, _),) = await one.add(voice())
    await two.load(stored.id)
    await one.delete(stored.id)
    for store in (two, one):
        for call in (store.load, store.find, store.delete):
            with pytest.raises(NotFound, match="deleted"):
                await call(stored.id)
        assert await listed(store) == []
    assert servers.names == [f"{stored.id}.deleted"]
    ((again, reused),) = await two.add(voice(display_name="again"))
    assert not reused
    assert (await one.load(stored.id)).voice == again


async def test_a_deleted_member_is_not_stored_again_with_its_hifi_voice(folder):
    one, two = folder.open(), folder.open()
    ((stored, _),) = await one.add(voice())
    held = await two.load(stored.id)
    await one.delete(stored.id)
    hifi = replace(held.voice, id=voice_id(VoiceKind.HIFI, "h"), kind=VoiceKind.HIFI, prompt_id=stored.id)
    with pytest.raises(NotFound):
        await two.add(replace(held, voice=hifi), using=[stored.id])
    assert await listed(one) == []


async def test_concurrent_loads_of_a_voice_read_it_once(servers):
    one, two = servers.open(), servers.open()
    ((stored, _), (other, _)) = await one.add(voice(), voice("other"))
    objects = servers.objects[1]
    objects.block("read")
    loading = asyncio.gather(*(two.load(stored.id) for _ in range(40)), two.load(other.id))
    await until(lambda: objects.count("read", ".latents") or objects.count("read", ".voice"))
    objects.unblock()
    loaded = await loading
    assert servers.objects[1].count("read", ".latents") == 2
    assert all(one.prompt is loaded[0].prompt for one in loaded[:40])
    await two.load(stored.id)
    assert servers.objects[1].count("read", "") == 2
    assert not prompt_of(loaded[0]).flags.writeable


async def test_a_cancelled_load_does_not_cancel_the_others(folder):
    one, two = folder.open(), folder.open()
    ((stored, _),) = await one.add(voice())
    folder.objects[1].block("read")
    first, second = asyncio.create_task(two.load(stored.id)), asyncio.create_task(two.load(stored.id))
    await until(lambda: folder.objects[1].count("read", ""))
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    folder.objects[1].unblock()
    assert (await second).voice == stored
    assert folder.objects[1].count("read", ".latents") == 1


async def test_the_cache_holds_the_last_used_voices_that_fit(folder):
    voices = [voice(str(number)) for number in range(4)]
    one = folder.open()
    ids = [stored.id for stored, _ in await one.add(*voices)]
    two = folder.open(cache_bytes=2 * voices[0].nbytes)
    for at in (0, 1, 0, 2, 0, 1):  # voice 2 replaces 1, then 1 replaces 2
        await two.load(ids[at])
    assert folder.objects[1].count("read", ".latents") == 4
    small = folder.open(cache_bytes=1)
    for _ in range(3):
        assert (await small.load(ids[3])).voice.id == ids[3]
    assert folder.objects[2].count("read", ".latents") == 3


async def test_the_store_never_blocks_the_event_loop(folder):
    """The loop unblocks every call of the store, which it could not do while blocked by it."""
    store = folder.open()
    [objects] = folder.objects

    async def blocked(call: Awaitable[Any]) -> Any:
        objects.block()
        calls = len(objects.calls)
        answer = asyncio.ensure_future(call)
        await until(lambda: len(objects.calls) > calls)
        objects.unblock()
        return await answer

    ((stored, _),) = await blocked(store.add(voice()))
    for call in (store.load(stored.id), store.find(stored.id), store.page(), store.sweep(), store.delete(stored.id)):
        await blocked(call)
    assert all(name.startswith("voxcpm-voices") for name in objects.threads)


# ---- time


async def test_a_use_on_any_server_postpones_the_expiry(servers):
    one, two = servers.open(), servers.open()
    ((stored, _),) = await one.add(voice())
    for store in (one, two, one, two):
        servers.clock.now += 9 * DAY
        assert (await store.find(stored.id)).expires == servers.clock.now + 10 * DAY
        assert servers.names == sorted(f"{stored.id}.{part}" for part in ("latents", "used", "voice"))
    servers.clock.now += 11 * DAY
    for store in (one, two):
        with pytest.raises(NotFound):
            await store.load(stored.id)


async def test_a_use_is_recorded_at_most_once_an_hour(folder):
    store = folder.open()
    ((stored, _),) = await store.add(voice())
    folder.clock.now += 1800
    await store.load(stored.id)
    assert folder.objects[0].count("write", ".used") == 0
    folder.clock.now += 1801
    await asyncio.gather(*(store.load(stored.id) for _ in range(20)))
    await store.load(stored.id)
    assert folder.objects[0].count("write", ".used") == 1


async def test_concurrent_sweeps_remove_expired_voices(servers):
    one, two = servers.open(), servers.open()
    await one.add(voice("short", ttl=60.0), voice("long"))
    servers.clock.now += 61
    assert await asyncio.gather(one.sweep(), two.sweep(), one.sweep()) == [1, 1, 1]
    assert [v.transcript for v in (await two.page())[0]] == ["long"]
    assert [name for name in servers.names if not name.endswith(".deleted")] == sorted(
        f"{voice('long').voice.id}.{part}" for part in ("latents", "voice")
    )
    servers.clock.now += 2 * DAY
    assert await two.sweep() == 1
    assert len(servers.names) == 2  # the mark is removed too


async def test_a_server_sweeps_in_the_background(folder):
    async with folder.open(sweep_seconds=0.05) as store:
        await store.add(voice(ttl=60.0))
        folder.clock.now += 61
        await until(lambda: "voice" not in {name.rpartition(".")[2] for name in folder.names})


async def test_an_expired_voice_makes_room(folder):
    store = folder.open(max_voices=2)
    await store.add(voice("short", ttl=60.0), voice("long"))
    with pytest.raises(Exhausted, match="2 voices"):
        await store.add(voice("more"))
    folder.clock.now += 61
    await store.add(voice("more"))


async def test_the_count_of_a_full_store_includes_changes_of_other_servers(folder):
    one, two = folder.open(max_voices=3), folder.open(max_voices=3)
    await one.add(voice("a"))
    ((b, _), _) = await two.add(voice("b"), voice("c"))
    await one.sweep()
    with pytest.raises(Exhausted):
        await one.add(voice("d"))
    await two.delete(b.id)
    await one.add(voice("d"))


async def test_voices_stored_during_a_sweep_are_counted(folder, monkeypatch):
    store = folder.open(max_voices=4)
    await store.add(voice("short", ttl=60.0), voice("a"))
    folder.clock.now += 61
    [objects], removing, may_remove = folder.objects, threading.Event(), threading.Event()
    remove = objects.remove
    monkeypatch.setattr(
        objects, "remove", lambda *names: (removing.set(), may_remove.wait(HANG_SECONDS), remove(*names))
    )
    sweeping = asyncio.create_task(store.sweep())
    assert await asyncio.to_thread(removing.wait, HANG_SECONDS)
    await store.add(voice("b"), voice("c"))
    may_remove.set()
    await sweeping
    await store.add(voice("d"))
    with pytest.raises(Exhausted, match="4 voices"):
        await store.add(voice("e"))


# ---- ids


def test_ids_depend_on_all_content_and_its_division():
    ids = {voice_id(VoiceKind.PROMPT, *parts) for parts in (("a", "bc"), ("ab", "c"), ("abc",), ("a", "bc", ""))}
    assert len(ids | {voice_id(VoiceKind.REFERENCE, "a", "bc")}) == 5


@pytest.mark.parametrize(
    "id", ["", "prm_", "../" + "a" * 32, "prm_" + "A" * 32, "prm_" + "a" * 31 + "/", "prm_" + "a" * 32 + "\n"]
)
async def test_malformed_ids_are_not_found_and_never_used_as_names(folder, id):
    store = folder.open()
    for call in (store.find, store.load, store.delete):
        with pytest.raises(NotFound):
            await call(id)
    assert folder.objects[0].calls == []
