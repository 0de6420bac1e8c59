"""A voice is chosen by its id, by the name of a preset or by its display name; the server finds it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import message_of
from support.servers.uploads import PROMPT, REFERENCE, add_hifi, add_prompt, add_reference, conditioned, recording
from support.servers.voice_stores import voice, write_as_before

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import VoiceChange
from voxcpm_server.voices.presets import Preset
from voxcpm_server.voices.store.names import HOUR
from voxcpm_server.voices.store.objects import Objects

ANNA = Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hi there. ")
OTTO = Preset(name="otto", kind="reference", recording="otto.wav")
PRESETS = [(ANNA, recording(50)), (OTTO, recording(51))]
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


def named(name: str, **options: Any) -> pb.VoiceOptions:
    return pb.VoiceOptions(display_name=name, **options)


def stored_before(served: Any, content: str, created: int = 0, **fields: Any) -> str:
    """The id of a voice that a server of an older version has stored in the last hour."""
    stored = voice(content, fingerprint=served.pool.info.fingerprint, **fields)
    write_as_before(Objects(str(served.directory)), stored, time.time() - 1800 + created)
    return stored.voice.id


async def used(served: Any, **conditioning: Any) -> str:
    """The voice in the header of a stream with this conditioning."""
    return (await served.generate(conditioned(**conditioning), "Hello."))[0].header.voice


async def got(served: Any, name: str) -> pb.VoiceHandle:
    return (await served.stub.GetVoice(pb.GetVoiceRequest(id=name))).handle


async def updated(served: Any, id: str, **properties: Any) -> pb.VoiceHandle:
    return (await served.stub.UpdateVoice(pb.UpdateVoiceRequest(id=id, **properties))).handle


@contextmanager
def refused(code: grpc.StatusCode, *texts: str) -> Iterator[None]:
    """Expects that the call in the block fails with this status and with all of these texts."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value
    assert [text for text in texts if text not in message_of(caught.value)] == [], message_of(caught.value)


async def test_every_call_takes_an_id_a_preset_or_a_display_name(serve_front):
    async with serve_front(presets=PRESETS) as served:
        ada = await add_reference(served, options=named("Ada L."))
        for name in (ada.id, "Ada L."):
            assert await used(served, voice=name) == ada.id
            assert (await got(served, name)).id == ada.id
        for name in ("anna", (await got(served, "anna")).id):
            assert await used(served, voice=name) == "anna"
            assert (await got(served, name)).display_name == "anna"
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id="Ada L."))
        with refused(NOT_FOUND):
            await used(served, voice=ada.id)


async def test_a_name_may_differ_in_the_case_of_letters(serve_front):
    async with serve_front(presets=PRESETS) as served:
        lower = await add_reference(served, 1, options=named("straße"))
        assert await used(served, voice="STRASSE") == lower.id
        assert await used(served, voice="OTTO") == "otto"
        upper = stored_before(served, "b", display_name="Strasse")
        assert (await got(served, "Strasse")).id == upper
        assert (await got(served, "straße")).id == lower.id
        with refused(INVALID, "2 voices are named 'STRASSE'", lower.id, upper):
            await used(served, voice="STRASSE")


async def test_an_ambiguous_name_lists_the_voices_and_changes_nothing(served, details_of):
    """Servers of older versions stored several voices of one name."""
    ids = [stored_before(served, f"v{number}", created=number, display_name="Ada") for number in range(7)]
    newest = ids[:1:-1]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await used(served, voice="Ada")
    text = message_of(caught.value)
    assert "7 voices are named 'Ada': " in text and ", and 2 more; give the id of one of them" in text
    assert [text.index(id) for id in newest] == sorted(text.index(id) for id in newest)
    assert text.count("('Ada', created 20") == 5 and not any(id in text for id in ids[:2])
    assert details_of(caught.value).field == "config.conditioning.voice"
    for call in (
        served.stub.DeleteVoice(pb.DeleteVoiceRequest(id="Ada", allow_missing=True)),
        served.stub.GetVoice(pb.GetVoiceRequest(id="Ada")),
        served.stub.UpdateVoice(pb.UpdateVoiceRequest(id="Ada", display_name="Bea")),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert (caught.value.code(), details_of(caught.value).field) == (INVALID, "id")
    assert len((await served.stub.ListVoices(pb.ListVoicesRequest())).handles) == 7


async def test_an_unknown_name_names_the_nearest(serve_front):
    async with serve_front(presets=PRESETS) as served:
        await add_reference(served, options=named("Ada Lovelace"))
        for wrong, hint in (
            ("ada lovelase", "did you mean 'Ada Lovelace'?"),
            ("ana", "did you mean 'anna'?"),
            ("zzzz", "the presets are anna, otto"),
        ):
            with refused(NOT_FOUND, f"there is no voice {wrong!r}: no preset, id or display name; ", hint):
                await used(served, voice=wrong)
            with refused(NOT_FOUND, hint):
                await got(served, wrong)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await used(served, reference_id="nobody" * 1000)
        assert len(message_of(caught.value)) < 300
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id="nobody", allow_missing=True))


async def test_a_hifi_voice_precedes_its_members_of_the_same_name(served):
    both = (
        await add_hifi(
            served,
            (PROMPT, recording(0)),
            (REFERENCE, recording(1)),
            uploaded_prompt=pb.UploadedPrompt(transcript="Hi."),
            uploaded_reference=pb.UploadedReference(),
            options=named("Ada"),
        )
    )[0].handle
    assert await used(served, voice="Ada") == both.id
    assert await used(served, prompt_id="Ada") == both.prompt_id
    assert await used(served, reference_id="Ada", prompt_id="Ada") == f"{both.prompt_id}+{both.reference_id}"
    assert await used(served, hifi_id="Ada") == both.id
    made = (await add_hifi(served, prompt_id="Ada", reference_id="Ada"))[0].handle
    assert (made.id, made.reused) == (both.id, True)


async def test_a_voice_of_the_wrong_kind_is_refused_by_its_name(serve_front):
    async with serve_front(presets=PRESETS) as served:
        await add_reference(served, options=named("Ada"))
        with refused(INVALID, "voice Ada is a reference; prompt_id needs a prompt"):
            await used(served, prompt_id="Ada")
        with refused(INVALID, "voice anna is a prompt; reference_id needs a reference"):
            await used(served, reference_id="anna")


@pytest.mark.parametrize(
    "others", [{"preset": "anna"}, {"prompt_id": "x"}, {"reference_id": "x"}, {"hifi_id": "x"}, {"no_voice": True}]
)
async def test_a_voice_excludes_the_other_fields(served, others):
    with refused(INVALID, "excludes every other voice"):
        await used(served, voice="anna", **others)


async def test_a_style_goes_with_a_named_reference_only(served):
    await add_reference(served, options=named("Ada"))
    await add_prompt(served, options=named("Bea"))
    config = conditioned(voice="Ada")
    config.turn.style = "calm"
    await served.generate(config, "Hello.")
    config.conditioning.voice = "Bea"
    with refused(INVALID, "a style cannot be combined with a prompt"):
        await served.generate(config, "Hello.")


# ---- updates


async def test_an_update_changes_what_is_set(served):
    first = await add_reference(served, options=named("Ada", labels={"a": "b"}, ttl=Duration(seconds=1000)))

    def shown(handle: pb.VoiceHandle) -> tuple[str, dict[str, str], int]:
        return handle.display_name, dict(handle.labels), handle.expire_time.seconds - handle.create_time.seconds

    for change, expected in (
        ({"display_name": "Bea"}, ("Bea", {"a": "b"}, 1000)),
        ({"labels": pb.VoiceLabels(labels={"c": "d"})}, ("Bea", {"c": "d"}, 1000)),
        ({"ttl": Duration(seconds=2000)}, ("Bea", {"c": "d"}, 2000)),
        ({"labels": pb.VoiceLabels()}, ("Bea", {}, 2000)),
        ({"display_name": ""}, ("", {}, 2000)),
        ({"display_name": ""}, ("", {}, 2000)),
    ):
        handle = await updated(served, first.id, **change)
        assert handle.id == first.id
        assert shown(handle) == shown(await got(served, first.id)) == expected
    assert [handle.id for handle in (await served.stub.ListVoices(pb.ListVoicesRequest())).handles] == [first.id]


async def test_a_renamed_voice_has_its_new_name_only(served):
    ada = await add_reference(served, options=named("Ada"))
    assert (await updated(served, "Ada", display_name="Bea")).id == ada.id
    assert await used(served, voice="Bea") == ada.id
    with refused(NOT_FOUND):
        await used(served, voice="Ada")
    other = await add_reference(served, 9, options=named("Ada"))
    assert await used(served, voice="Ada") == other.id
    assert (await updated(served, ada.id, display_name="bea")).display_name == "bea"
    assert await used(served, voice="bea") == ada.id
    for id in (ada.id, other.id):
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=id))
    assert {path.suffix for path in served.directory.rglob("*.*")} == {".deleted"}


async def test_updates_that_cannot_be(serve_front, details_of):
    async with serve_front(presets=PRESETS) as served:
        ada = await add_reference(served, options=named("Ada"))
        for change, text, field in (
            ({"display_name": "anna"}, "'anna' is the name of a preset", "display_name"),
            ({"display_name": ada.id}, "display_name has the form of an id", "display_name"),
            ({"display_name": "a\x1b[1mb"}, "has the control character U+001B", "display_name"),
            ({"display_name": "x" * 201}, "has 201 characters and the limit is 200", "display_name"),
            ({"labels": pb.VoiceLabels(labels={"a": "\n"})}, "has the control character U+000A", "labels"),
            ({"ttl": Duration(seconds=-1)}, "it must be more than 0", "ttl"),
            ({}, "there is nothing to change", "display_name"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await updated(served, "Ada", **change)
            assert caught.value.code() is INVALID
            assert text in message_of(caught.value)
            assert details_of(caught.value).field == field
        for id in ("anna", (await got(served, "anna")).id):
            with refused(
                grpc.StatusCode.FAILED_PRECONDITION, "is the preset 'anna' of the model and cannot be changed"
            ):
                await updated(served, id, display_name="mine")
        with refused(NOT_FOUND, "there is no voice 'nobody'"):
            await updated(served, "nobody", display_name="x")
        assert (await got(served, ada.id)) == ada


async def test_an_upload_with_a_name_that_chooses_another_voice_is_refused(serve_front, details_of):
    async with serve_front(presets=PRESETS) as served:
        for name in ("anna", "ANNA", "ref_" + "a" * 32):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await add_reference(served, options=named(name))
            assert (caught.value.code(), details_of(caught.value).field) == (INVALID, "config.options.display_name")
        assert served.pool.encoded == len(PRESETS)


# ---- the index


async def test_names_are_found_at_once_on_every_server(serve_front, store_url):
    async with serve_front(url=store_url) as one, serve_front(url=store_url) as two:
        ada = await add_reference(one, options=named("Ada"))
        assert await used(two, voice="Ada") == ada.id
        await updated(two, "Ada", display_name="Bea")
        assert await used(one, voice="Bea") == ada.id
        again = await add_reference(two, 8, options=named("Ada"))
        assert await used(one, voice="Ada") == again.id
        with refused(grpc.StatusCode.ALREADY_EXISTS, again.id):
            await updated(one, ada.id, display_name="Ada")
        await two.stub.DeleteVoice(pb.DeleteVoiceRequest(id=again.id))
        await updated(one, ada.id, display_name="Ada")
        assert await used(two, voice="Ada") == ada.id


async def test_a_name_is_found_without_reading_other_voices(servers):
    writer, reader = servers.open(), servers.open()
    for number in range(20):
        await writer.add(voice(f"v{number}", display_name=f"voice {number}"))
    objects = servers.objects[1]
    (found,) = await reader.named("Voice 7")
    assert found.display_name == "voice 7"
    assert [verb for verb, _ in objects.calls] == ["names", "names", "read"]
    assert objects.count("read", ".voice") == 1
    assert not any(verb == "names" and not folder for verb, (folder,) in objects.calls[:2])


async def test_names_follow_expiry_and_the_sweep_repairs_the_index(servers):
    store = servers.open()
    [(first, _)] = await store.add(voice("a", display_name="Ada"))
    [(other, _)] = await store.add(voice("b", display_name="Bea"))
    index = [name for name in servers.objects[0].names() if name.startswith("name-")]
    assert len(index) == 2
    servers.objects[0].remove(*index)  # as after a crash, or from a server without an index
    assert await store.named("Ada") == []
    await store.maintain()
    assert [found.id for found in await store.named("ada")] == [first.id]
    assert sorted(name for name in servers.objects[0].names() if name.startswith("name-")) == sorted(index)
    servers.objects[0].write(index[0].replace(index[0].partition("/")[0], "name-" + "a" * 32), b"x")  # stale
    servers.clock.now += 2 * HOUR / 1e6
    await store.maintain()
    assert sorted(name for name in servers.objects[0].names() if name.startswith("name-")) == sorted(index)
    await store.update(other.id, VoiceChange(ttl=1.0))
    servers.clock.now += 2
    assert await store.named("Bea") == []
    await store.maintain()
    assert len([name for name in servers.objects[0].names() if name.startswith("name-")]) == 1
    assert await store.nearest("Aba", []) == "Ada"
    assert await servers.open().nearest("Aba", ["otto"]) == ""
