"""After crashes, damage and the loss of a store, only calls that need the data fail, with a clear error."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.engines.voice_parts import voice_part
from support.servers.voice_stores import listed, prompt_of, voice
from support.servers.waiting import until

from voxcpm_grpc.errors import FailedPrecondition, NotFound, Unavailable
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.records import Damaged


async def test_a_crash_between_latents_and_record_leaves_no_voice(servers):
    store = servers.open()
    for writes in (0, 1):
        servers.objects[0].writes_left = writes
        with pytest.raises(Unavailable):
            await store.add(voice())
        with pytest.raises(NotFound):
            await store.load(voice().voice.id)
        assert await listed(store) == []
    assert servers.names == [f"{voice().voice.id}.latents"]
    servers.objects[0].writes_left = None
    ((stored, reused),) = await store.add(voice())
    assert not reused
    servers.clock.now += 7200
    await servers.open().sweep()
    assert servers.names == sorted(f"{stored.id}.{part}" for part in ("latents", "voice"))
    assert (await servers.open().load(stored.id)).voice.created == stored.created


async def test_a_crash_while_deleting_leaves_no_voice(servers):
    one, two = servers.open(), servers.open()
    ((stored, _),) = await one.add(voice())
    await two.load(stored.id)
    remove, servers.objects[0].remove = servers.objects[0].remove, lambda *names: 1 / 0
    with pytest.raises(ZeroDivisionError):
        await one.delete(stored.id)
    with pytest.raises(NotFound):
        await two.load(stored.id)
    servers.objects[0].remove = remove
    await one.delete(stored.id)  # removes the rest
    assert servers.names == [f"{stored.id}.deleted"]


def damage(url: str, ending: str, data: bytes | None) -> None:
    """Replace the data of an object; None truncates it."""
    objects = Objects(url)
    (name,) = [name for name in objects.names() if name.endswith(ending)]
    (old,) = objects.read(name).values()
    objects.write(name, old[:-10] if data is None else data)


@pytest.mark.parametrize("ending", [".voice", ".latents"])
@pytest.mark.parametrize("data", [b"\x00" * 100, b"\xff" * 100, b'{"format": 1}', None])
async def test_a_damaged_voice_is_reported_and_can_be_stored_again(folder, caplog, ending, data):
    one = folder.open()
    ((stored, _),) = await one.add(voice())
    damage(folder.url, ending, data)
    ((other, _),) = await one.add(voice("other"))
    two = folder.open()
    with pytest.raises(Damaged, match="upload the recording again"):
        await two.load(stored.id)
    assert f"voice id={stored.id} damaged" in caplog.text
    assert (await two.load(other.id)).voice == other
    assert other.id in await listed(two)
    ((again, reused),) = await two.add(voice())
    assert not reused
    for store in (two, folder.open()):
        assert (await store.load(stored.id)).voice == again == await store.find(stored.id)
    folder.clock.now += 7200
    await two.sweep()
    assert (
        len([name for name in folder.names if name.startswith(stored.id)]) == 3
    )  # including the mark of the damaged voice


@pytest.mark.parametrize(("ending", "verb"), [(".latents", "load"), (".voice", "load"), (".voice", "find")])
async def test_every_caller_gets_its_own_error(folder, ending, verb):
    ((stored, _),) = await folder.open().add(voice())
    damage(folder.url, ending, b"x")
    call = getattr(folder.open(), verb)
    errors = await asyncio.gather(*(call(stored.id) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(error, Damaged) for error in errors)
    assert len(set(map(id, errors))) == 5


@pytest.mark.parametrize("ending", [".voice", ".latents"])
async def test_a_damaged_voice_can_be_deleted(folder, ending):
    store = folder.open()
    ((stored, _),) = await store.add(voice())
    damage(folder.url, ending, b"x")
    await folder.open().delete(stored.id)
    with pytest.raises(NotFound):
        await store.load(stored.id)


async def test_the_voice_of_an_older_server_has_no_adapter(folder):
    ((stored, _),) = await folder.open().add(voice(display_name="Ada", lora="anna"))
    objects = Objects(folder.url)
    (record,) = (name for name in objects.names() if name.endswith(".voice"))
    kept = json.loads(objects.read(record)[record])
    assert kept["voice"].pop("lora") == "anna"
    damage(folder.url, ".voice", json.dumps(kept).encode())
    loaded = await folder.open().load(stored.id)
    assert (loaded.voice.display_name, loaded.voice.lora) == ("Ada", "")


async def test_the_voice_of_a_newer_server_is_kept_and_refused(folder):
    store = folder.open()
    ((stored, _),) = await store.add(voice())
    damage(folder.url, ".voice", b'{"format": 3, "timbre": []}')
    for call in (store.find, folder.open().load):
        with pytest.raises(FailedPrecondition, match=r"format 3 .* reads formats 1 to 2"):
            await call(stored.id)
    with pytest.raises(FailedPrecondition, match="upgrade"):
        await folder.open().add(voice())


async def test_the_voice_of_another_model_is_refused(folder):
    ((stored, _),) = await folder.open().add(voice())
    with pytest.raises(FailedPrecondition, match=r"model model and this server runs other; upload the recording again"):
        await folder.open("other").load(stored.id)


# ---- a store that is lost


async def test_a_lost_store_is_unavailable_until_it_returns(folder):
    store = folder.open()
    ((stored, _),) = await store.add(voice())
    folder.objects[0].lost = True
    for call in (
        store.load(stored.id),
        store.find(stored.id),
        store.page(),
        store.delete(stored.id),
        store.add(voice("b")),
    ):
        with pytest.raises(Unavailable) as caught:
            await call
        assert caught.value.retry_after
    folder.objects[0].lost = False
    assert (await store.load(stored.id)).voice == stored


async def test_a_store_that_hangs_is_unavailable_after_the_timeout(folder, caplog):
    ((stored, _),) = await folder.open().add(voice())
    store = folder.open(timeout_seconds=0.2)
    folder.objects[1].block()
    try:
        for call in (store.load(stored.id), store.add(voice("b")), store.page()):
            with pytest.raises(Unavailable, match=r"within 0.2 s") as caught:
                await call
            assert caught.value.retry_after
    finally:
        folder.objects[1].unblock()
    assert "no answer within 0.2 s" in caplog.text


async def test_a_sweep_is_repeated_after_the_loss_of_the_store(folder, caplog):
    caplog.set_level(logging.ERROR)
    async with folder.open(sweep_seconds=0.05) as store:
        await store.add(voice(ttl=60.0))
        folder.objects[0].lost = True
        calls = len(folder.objects[0].calls)
        await until(lambda: len(folder.objects[0].calls) > calls + 1)
        folder.clock.now += 61
        folder.objects[0].lost = False
        await until(lambda: "voice" not in {name.rpartition(".")[2] for name in folder.names})
    assert not caplog.records


# ---- everything at once


async def test_servers_that_add_use_delete_and_sweep_concurrently_agree(servers):
    """Every load returns the requested voice, and voices that were stored and not deleted exist."""
    stores = [servers.open(cache_bytes=600) for _ in range(3)]
    random, voices = Random(7), [voice(str(number)) for number in range(4)]
    voices = [replace(one, prompt=voice_part(prompt_of(one) + number)) for number, one in enumerate(voices)]

    async def work(store, turns: int) -> None:
        for _ in range(turns):
            wanted = random.choice(voices)
            with suppress(NotFound):
                match random.choice(["add", "load", "load", "delete", "sweep", "page"]):
                    case "add":
                        await store.add(wanted)
                    case "load":
                        assert np.array_equal(prompt_of(await store.load(wanted.voice.id)), prompt_of(wanted))
                    case "delete":
                        await store.delete(wanted.voice.id)
                    case "sweep":
                        servers.clock.now += 1.0
                        await store.sweep()
                    case "page":
                        assert set(await listed(store)) <= {one.voice.id for one in voices}

    await asyncio.gather(*(work(store, 25) for store in stores for _ in range(2)))
    await stores[0].add(voices[0])
    for one in voices[1:]:
        with suppress(NotFound):
            await stores[1].delete(one.voice.id)
    for store in stores:
        assert await listed(store) == [voices[0].voice.id]
        assert np.array_equal(prompt_of(await store.load(voices[0].voice.id)), prompt_of(voices[0]))
    servers.clock.now += 7200
    await stores[2].sweep()
    kept = [name for name in servers.names if not name.endswith((".deleted", ".used"))]
    assert kept == [f"{voices[0].voice.id}.{part}" for part in ("latents", "voice")]
