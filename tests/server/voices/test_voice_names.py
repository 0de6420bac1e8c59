"""A recording has one id and any number of names, and a name belongs to one recording."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import message_of
from support.servers.uploads import PROMPT, REFERENCE, add_hifi, add_prompt, add_reference, conditioned, recording
from support.servers.voice_stores import DAY, voice, write_as_before

from voxcpm_client import AlreadyExists as ClientAlreadyExists
from voxcpm_client import AsyncClient
from voxcpm_client import VoiceName as ClientVoiceName
from voxcpm_client.cli import main
from voxcpm_grpc.errors import AlreadyExists, FailedPrecondition, NotFound, Unavailable
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import VoiceChange, VoiceOptions
from voxcpm_server.values.voice import VoiceName
from voxcpm_server.voices.presets import Preset
from voxcpm_server.voices.store.objects import Objects

Code = grpc.StatusCode
NARRATOR = Preset(name="narrator", kind="reference", recording="n.wav", labels={"x": "y"})


def named(name: str, consent: str = "", ttl: int = 0, lora: str | None = None) -> pb.VoiceOptions:
    labels = {"consent": consent} if consent else {}
    return pb.VoiceOptions(display_name=name, labels=labels, ttl=Duration(seconds=ttl) if ttl else None, lora=lora)


def names_of(handle: pb.VoiceHandle) -> dict[str, str]:
    """The consent label of each name, the shown name first."""
    assert not handle.names or (handle.names[0].display_name, handle.names[0].labels) == (
        handle.display_name,
        handle.labels,
    )
    return {one.display_name: one.labels.get("consent", "") for one in handle.names}


async def used(served: Any, **conditioning: Any) -> str:
    return (await served.generate(conditioned(**conditioning), "Hello."))[0].header.voice


async def got(served: Any, name: str) -> pb.VoiceHandle:
    return (await served.stub.GetVoice(pb.GetVoiceRequest(id=name))).handle


async def listed(served: Any, **fields: Any) -> list[pb.VoiceHandle]:
    return list((await served.stub.ListVoices(pb.ListVoicesRequest(**fields))).handles)


async def deleted(served: Any, id: str, *, cascade: bool = False) -> list[str]:
    return list((await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=id, cascade=cascade))).kept_names)


async def updated(served: Any, id: str, **properties: Any) -> pb.VoiceHandle:
    return (await served.stub.UpdateVoice(pb.UpdateVoiceRequest(id=id, **properties))).handle


async def error_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), message_of(caught.value)


# ---- one recording, many names


async def test_a_second_name_is_added_and_each_name_keeps_its_consent(served):
    first = await add_reference(served, options=named("Ada", "signed by A"))
    second = await add_reference(served, options=named("Eve", "signed by B"))
    assert (first.reused, second.reused, second.id) == (False, True, first.id)
    assert names_of(second) == {"Eve": "signed by B", "Ada": "signed by A"}
    for name, consent in (("Ada", "signed by A"), ("eve", "signed by B")):
        assert await used(served, voice=name) == await used(served, reference_id=name) == first.id
        handle = await got(served, name)
        assert (handle.display_name.casefold(), handle.labels["consent"]) == (name.casefold(), consent)
        assert names_of(handle) == names_of(second)
    [only] = await listed(served)
    assert names_of(only) == names_of(second) and served.pool.encoded == 1


async def test_a_label_finds_the_name_that_it_belongs_to(served):
    await add_reference(served, options=named("Ada", "A"))
    await add_reference(served, options=named("Eve", "B"))
    for consent, name in (("A", "Ada"), ("B", "Eve")):
        [handle] = await listed(served, labels={"consent": consent})
        assert (handle.display_name, handle.labels["consent"]) == (name, consent)
    assert await listed(served, labels={"consent": "C"}) == []


async def test_a_name_of_the_recording_itself_gets_the_new_labels(served):
    await add_reference(served, options=named("Ada", "A"))
    await add_reference(served, options=named("Eve", "B"))
    handle = await add_reference(served, options=named("ADA", "A again"))
    assert names_of(handle) == {"ADA": "A again", "Eve": "B"}


async def test_names_survive_a_new_start_and_are_found_by_every_server(serve_front, store_url):
    async with serve_front(url=store_url) as one:
        ada = await add_reference(one, options=named("Ada", "A"))
        await add_reference(one, options=named("Eve", "B"))
    async with serve_front(url=store_url) as one, serve_front(url=store_url) as two:
        await add_reference(two, options=named("Mia", "C"))
        for served in (one, two):
            assert names_of(await got(served, ada.id)) == {"Mia": "C", "Eve": "B", "Ada": "A"}
            assert {await used(served, voice=name) for name in ("Ada", "Eve", "Mia")} == {ada.id}
        await one.store.maintain()
        assert await used(two, voice="Ada") == await used(two, voice="Eve") == ada.id
        _, said = await error_of(got(one, "Ade"))
        assert "did you mean 'Ada'" in said


async def test_a_shorter_time_to_live_of_another_name_does_not_end_the_first_one(served):
    first = await add_reference(served, options=named("Ada", ttl=1000))
    second = await add_reference(served, options=named("Eve", ttl=10))
    assert second.expire_time.seconds - second.create_time.seconds == 1000
    third = await add_reference(served, options=named("Eve", ttl=5000))
    assert third.expire_time.seconds - third.create_time.seconds == 5000
    changed = await updated(served, first.id, ttl=Duration(seconds=20))
    assert changed.expire_time.seconds - changed.create_time.seconds == 20


async def test_a_voice_has_up_to_50_names(folder):
    store = folder.open()
    others = tuple(VoiceName(f"name {number}") for number in range(1, 50))
    [(first, _)] = await store.add(voice(display_name="name 0", other_names=others))
    with pytest.raises(FailedPrecondition, match="has 50 names and the limit is 50; use one of them, or delete some"):
        await store.add(voice(), options=VoiceOptions(display_name="one more"))
    await store.add(voice(), options=VoiceOptions(display_name="NAME 7"))
    assert [one.id for one in await store.named("name 49")] == [first.id]


async def test_a_voice_without_a_name_gets_one(served):
    await add_reference(served, options=pb.VoiceOptions(labels={"consent": "A"}))
    assert names_of(await add_reference(served, options=named("Ada"))) == {"Ada": "A"}
    assert names_of(await add_reference(served)) == {"Ada": "A"}


# ---- a name belongs to one recording


async def test_a_name_of_another_recording_is_refused_and_keeps_its_voice(served):
    ada = await add_reference(served, 1, options=named("Ada", "A"))
    for name in ("Ada", "ADA"):
        code, said = await error_of(add_reference(served, 2, options=named(name, "B")))
        assert code is Code.ALREADY_EXISTS
        assert f"the name {name!r} belongs to another recording, the reference {ada.id}" in said
        assert "choose another name, or rename or delete that voice" in said
    assert (await error_of(add_prompt(served, options=named("Ada"))))[0] is Code.ALREADY_EXISTS
    assert await used(served, voice="ada") == ada.id
    assert [handle.id for handle in await listed(served)] == [ada.id]
    eve = await add_reference(served, 2, options=named("Eve", "B"))
    assert (await error_of(updated(served, eve.id, display_name="ada")))[0] is Code.ALREADY_EXISTS
    assert names_of(await got(served, eve.id)) == {"Eve": "B"}
    assert await deleted(served, "Ada") == []
    assert (await updated(served, "Eve", display_name="Ada")).id == await used(served, voice="Ada") == eve.id


async def test_a_name_that_was_given_up_is_free(served):
    ada = await add_reference(served, 1, options=named("Ada"))
    await add_reference(served, 1, options=named("Eve"))
    await updated(served, "Ada", display_name="Mia")
    other = await add_reference(served, 2, options=named("Ada"))
    assert (await used(served, voice="Ada"), await used(served, voice="Mia")) == (other.id, ada.id)


async def test_a_hifi_voice_shares_its_name_with_its_members_only(served):
    uploads = {"uploaded_prompt": pb.UploadedPrompt(transcript="Hi."), "same_as_prompt": pb.SameAsPrompt()}
    both = (await add_hifi(served, (0, recording(0)), options=named("Ada"), **uploads))[0].handle
    assert await used(served, voice="Ada") == both.id
    for call in (
        add_reference(served, 5, options=named("Ada")),
        add_prompt(served, 5, options=named("Ada")),
        add_hifi(served, (0, recording(5)), options=named("Ada"), **uploads),
    ):
        assert (await error_of(call))[0] is Code.ALREADY_EXISTS
    again = (await add_hifi(served, (0, recording(0)), options=named("Ada"), **uploads))[0].handle
    assert (again.id, again.reused) == (both.id, True)
    renamed = await updated(served, both.reference_id, display_name="timbre")
    assert (await updated(served, renamed.id, display_name="Ada")).display_name == "Ada"


async def test_a_reference_becomes_a_hifi_voice_of_the_same_name(served):
    reference = await add_reference(served, 0, options=named("Ada", "A"))
    uploads = {"uploaded_prompt": pb.UploadedPrompt(transcript="Hi."), "same_as_prompt": pb.SameAsPrompt()}
    both = (await add_hifi(served, (0, recording(0)), options=named("Ada", "A"), **uploads))[0].handle
    assert both.reference_id == reference.id
    assert await used(served, voice="Ada") == both.id


async def test_one_of_two_uploads_at_once_gets_the_name(served):
    calls = [add_reference(served, seed, options=named("Ada")) for seed in range(1, 5)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    [winner] = [one for one in done if isinstance(one, pb.VoiceHandle)]
    assert [one.code() for one in done if isinstance(one, grpc.aio.AioRpcError)] == [Code.ALREADY_EXISTS] * 3
    assert await used(served, voice="Ada") == winner.id
    assert [handle.id for handle in await listed(served)] == [winner.id]


# ---- deletion


async def test_a_name_is_deleted_alone_as_long_as_the_voice_has_others(served):
    ada = await add_reference(served, options=named("Ada", "A"))
    await add_reference(served, options=named("Eve", "B"))
    assert await deleted(served, "eve") == ["Ada"]
    assert (await error_of(used(served, voice="Eve")))[0] is Code.NOT_FOUND
    assert names_of(await got(served, ada.id)) == {"Ada": "A"} and await used(served, voice="Ada") == ada.id
    assert await deleted(served, "Ada") == [] and await listed(served) == []
    assert {path.suffix for path in served.directory.rglob("*.*")} == {".deleted"}


async def test_an_id_deletes_the_voice_with_all_names(served):
    ada = await add_reference(served, options=named("Ada", "A"))
    await add_reference(served, options=named("Eve", "B"))
    assert await deleted(served, ada.id) == []
    for name in ("Ada", "Eve", ada.id):
        assert (await error_of(used(served, voice=name)))[0] is Code.NOT_FOUND
    again = await add_reference(served, options=named("Mia", "C"))
    assert (again.id, again.reused, names_of(again)) == (ada.id, False, {"Mia": "C"})


async def test_a_deletion_with_members_leaves_names_of_others(served):
    theirs = await add_reference(served, 1, options=named("Timbre", "B"))
    uploads = {
        "uploaded_prompt": pb.UploadedPrompt(transcript="Hi."),
        "uploaded_reference": pb.UploadedReference(),
    }
    recordings = ((PROMPT, recording(0)), (REFERENCE, recording(1)))
    both = (await add_hifi(served, *recordings, options=named("Ada", "A"), **uploads))[0].handle
    await add_hifi(served, *recordings, options=named("Eve", "C"), **uploads)
    assert await deleted(served, "Ada", cascade=True) == ["Eve"]
    assert (await error_of(used(served, voice="Ada")))[0] is Code.NOT_FOUND
    assert await used(served, voice="Eve") == both.id
    assert await deleted(served, "Eve", cascade=True) == []
    assert [handle.id for handle in await listed(served)] == [theirs.id]
    assert names_of(await got(served, "Timbre")) == {"Timbre": "B"}


# ---- updates


async def test_an_update_by_a_name_changes_this_name(served):
    ada = await add_reference(served, options=named("Ada", "A"))
    await add_reference(served, options=named("Eve", "B"))
    labels = pb.VoiceLabels(labels={"consent": "A2"})
    assert names_of(await updated(served, "Ada", labels=labels)) == {"Ada": "A2", "Eve": "B"}
    assert names_of(await updated(served, "Ada", display_name="Bea")) == {"Bea": "A2", "Eve": "B"}
    assert (await updated(served, "Eve", ttl=Duration(seconds=50))).display_name == "Eve"
    assert names_of(await updated(served, ada.id, display_name="")) == {"Eve": "B"}
    assert names_of(await updated(served, ada.id, display_name="EVE")) == {"EVE": "B"}


# ---- presets


async def test_a_recording_of_a_preset_gets_names_beside_the_preset(serve_front):
    async with serve_front(presets=[(NARRATOR, recording(1))]) as served:
        mine = await add_reference(served, options=named("mine", "A"))
        assert (mine.reused, mine.display_name, names_of(mine)) == (True, "mine", {"mine": "A"})
        assert served.pool.encoded == 1  # by the preset
        assert await used(served, voice="mine") == mine.id and await used(served, voice=mine.id) == "narrator"
        [preset] = await listed(served)
        assert preset == await got(served, "narrator") == await got(served, mine.id)
        assert (preset.id, preset.display_name, dict(preset.labels)) == (mine.id, "narrator", {"x": "y"})
        assert [one.display_name for one in preset.names] == ["narrator", "mine"]
        assert [one.display_name for one in await listed(served, labels={"consent": "A"})] == ["narrator"]
        assert (await updated(served, "mine", display_name="my own")).display_name == "my own"
        assert (await error_of(deleted(served, mine.id)))[0] is Code.FAILED_PRECONDITION
        assert await deleted(served, "my own") == []
        assert [one.display_name for one in (await got(served, "narrator")).names] == ["narrator"]
        assert {path.suffix for path in served.directory.rglob("*.*")} == {".deleted"}
        unnamed = await add_reference(served)
        assert (unnamed.display_name, unnamed.HasField("expire_time")) == ("narrator", False)


# ---- the client and the command line


async def test_the_client_shows_all_names_and_what_a_deletion_keeps(served):
    async with AsyncClient(served.address) as client:
        await client.add_reference(recording(1), name="Ada", labels={"consent": "A"})
        both = await client.add_reference(recording(1), name="Eve", labels={"consent": "B"})
        assert both.names == (ClientVoiceName("Eve", {"consent": "B"}), ClientVoiceName("Ada", {"consent": "A"}))
        assert [one.names for one in await client.voices()] == [both.names]
        with pytest.raises(ClientAlreadyExists, match="'ada' belongs to another recording"):
            await client.add_reference(recording(2), name="ada")
        assert await client.delete_voice("Ada") == ("Eve",)
        assert await client.delete_voice("Eve") == await client.delete_voice("Eve", missing_ok=True) == ()


async def test_the_command_line_shows_all_names(served, tmp_path):
    for seed in (1, 2):
        (tmp_path / f"{seed}.wav").write_bytes(recording(seed))

    async def run(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, [*words, "--target", served.address])

    async def clone(seed: int, name: str, consent: str) -> Result:
        options = ("--reference-only", "--name", name, "--label", f"consent={consent}")
        return await run("clone", str(tmp_path / f"{seed}.wav"), *options)

    await clone(1, "Ada", "A")
    again = await clone(1, "Eve", "B")
    assert "the server had this recording already; its voice is also named Ada" in again.stderr
    taken = await clone(2, "Ada", "C")
    assert taken.exit_code == 1 and "the name 'Ada' belongs to another recording" in taken.stderr
    assert "Eve, Ada" in (await run("voices", "list")).stdout
    shown = (await run("voices", "show", "Ada")).stdout
    assert "Eve (consent=B)" in shown and "consent=A" in shown
    removed = await run("voices", "delete", "Ada")
    assert removed.stderr == "deleted Ada; the voice is still stored as Eve\n"
    assert (await run("voices", "delete", again.stdout.strip())).stderr == f"deleted {again.stdout.strip()}\n"


# ---- several servers, other versions


async def test_servers_that_give_names_at_once_lose_none(servers):
    stores = [servers.open() for _ in range(4)]
    adding = [store.add(voice(display_name=f"n{at}"), owner="one") for at, store in enumerate(stores)]
    added = await asyncio.gather(*adding)
    assert sorted(reused for [(_, reused)] in added) == [False, True, True, True]
    for at, store in enumerate(stores):
        await store.add(voice(), options=VoiceOptions(display_name=f"n{at}"))
    renames = [
        store.update(voice().voice.id, VoiceChange(of_name=f"n{at}", display_name=f"m{at}"))
        for at, store in enumerate(stores)
    ]
    await asyncio.gather(*renames)
    for store in stores:
        found = await store.find(voice().voice.id)
        assert {one.name for one in found.names} == {"m0", "m1", "m2", "m3"}
        assert [one.id for one in await store.named("M2")] == [found.id]
        assert await store.named("n2") == []
    assert servers.names.count(f"{voice().voice.id}.voice") == 1


async def test_servers_that_take_one_name_at_once_agree_on_its_voice(servers):
    stores = [servers.open() for _ in range(4)]
    for round in range(4):
        adding = [store.add(voice(f"{round} {at}", display_name="Ada")) for at, store in enumerate(stores)]
        done = await asyncio.gather(*adding, return_exceptions=True)
        [winner] = [one[0][0] for one in done if not isinstance(one, BaseException)]
        assert sum(isinstance(one, AlreadyExists) for one in done) == 3
        for store in stores:
            assert [one.id for one in await store.named("ada")] == [winner.id]
        await stores[0].delete(winner.id)
    assert not [name for name in servers.names if not name.endswith(".deleted")]


async def test_a_name_whose_server_has_died_is_free_after_a_while(folder):
    dying, other = folder.open(timeout_seconds=10), folder.open(timeout_seconds=10)
    folder.objects[0].writes_left = 1
    with pytest.raises(Unavailable):
        await dying.add(voice("a", display_name="Ada"))
    assert [name.partition("-")[0] for name in folder.names] == ["name"]
    with pytest.raises(Unavailable, match="at the same time; retry"):
        await other.add(voice("b", display_name="Ada"))
    assert [name.partition("-")[0] for name in folder.names] == ["name"]
    folder.clock.now += 71
    [(mine, _)] = await other.add(voice("b", display_name="Ada"))
    assert [one.id for one in await other.named("Ada")] == [mine.id]


async def test_names_of_other_owners_and_models_are_free(servers):
    store = servers.open(fingerprint=["model", "other"])
    await store.add(voice("a", display_name="Ada"))
    await store.add(voice("b", display_name="Ada", principal="key:alice"))
    await store.add(voice("c", display_name="Ada", principal="key:bob"))
    await store.add(voice("d", display_name="Ada", fingerprint="other"))
    with pytest.raises(AlreadyExists):
        await store.add(voice("e", display_name="ada", principal="key:bob"))
    assert len(await store.named("Ada")) == 4


async def test_records_of_older_servers_load_and_get_names(servers):
    store = servers.open()
    stored = voice("a", display_name="Ada", labels={"consent": "A"})
    write_as_before(Objects(servers.url), stored, servers.clock.now - 60)
    id = stored.voice.id
    assert [one.name for one in (await store.find(id)).names] == ["Ada"]
    [(changed, reused)] = await store.add(voice("a"), options=VoiceOptions(display_name="Eve", labels={"x": "y"}))
    assert reused and {one.name: one.labels for one in changed.names} == {"Eve": {"x": "y"}, "Ada": {"consent": "A"}}
    assert [one.id for one in await store.named("Ada")] == [one.id for one in await store.named("Eve")] == [id]


async def test_a_deletion_during_an_upload_leaves_no_old_name(servers):
    one, other = servers.open(), servers.open()
    for round in range(5):
        [(first, _)] = await one.add(voice(display_name="old"))
        adding = one.add(voice(display_name="new"), options=VoiceOptions(display_name=f"new {round}"))
        await asyncio.gather(adding, other.delete(first.id))
        try:
            found = await other.find(first.id)
        except NotFound:
            continue
        assert "old" not in {name.name for name in found.names}
        await other.delete(first.id)


async def test_a_damaged_voice_of_several_names_is_deleted_by_one_of_them(servers):
    store = servers.open()
    [(first, _)] = await store.add(voice(display_name="Ada"))
    await store.add(voice(), options=VoiceOptions(display_name="Eve"))
    objects = Objects(servers.url)
    [latents] = [name for name in objects.names() if name.endswith(".latents")]
    objects.remove(latents)
    objects.write(latents, b"damaged")
    other = servers.open()
    with pytest.raises(FailedPrecondition):
        await other.load(first.id)
    assert await other.delete(first.id, name="Ada") == ()
    assert await other.named("Eve") == []


async def test_a_renewed_voice_lives_for_the_longest_time_that_was_promised(servers):
    store = servers.open()
    [(first, _)] = await store.add(voice(ttl=20 * DAY, display_name="Ada"))
    await store.add(voice(), options=VoiceOptions(display_name="Eve", ttl=DAY))
    servers.clock.now += 15 * DAY
    assert (await store.load(first.id)).voice.id == first.id
