"""Stored voices are read, listed and deleted, survive a restart, and are refused if the store is full or lost."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import cast

import grpc
import pytest
from support.clients.grpc_types import message_of
from support.servers.uploads import add_hifi, add_prompt, add_reference, conditioned, recording

from voxcpm_grpc.v1 import tts_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def test_voices_are_listed_newest_first_in_pages(served):
    ids = []
    for seed in range(5):
        ids.append((await add_prompt(served, seed, options=pb.VoiceOptions(labels={"even": str(seed % 2 == 0)}))).id)
    reference = await add_reference(served)
    everything = await served.stub.ListVoices(pb.ListVoicesRequest())
    assert [h.id for h in everything.handles] == [reference.id, *reversed(ids)]
    assert not everything.next_page_token
    seen, token = [], ""
    for _ in range(10):
        request = pb.ListVoicesRequest(kind=pb.VOICE_KIND_PROMPT, page_size=2, page_token=token)
        page = await served.stub.ListVoices(request)
        seen += [h.id for h in page.handles]
        if not (token := page.next_page_token):
            break
    assert seen == list(reversed(ids))
    even = await served.stub.ListVoices(pb.ListVoicesRequest(labels={"even": "True"}))
    assert [h.id for h in even.handles] == [ids[4], ids[2], ids[0]]
    tokens = [base64.urlsafe_b64encode(text).decode() for text in (b"[" * 100_000, b'[1%s, "x"]' % (b"0" * 400), b"7")]
    junk = [pb.ListVoicesRequest(page_token=token) for token in ("junk", *tokens)]
    unknown = pb.ListVoicesRequest(kind=cast(pb.VoiceKind, 9))
    for bad in (*junk, pb.ListVoicesRequest(page_size=-1), unknown):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.ListVoices(bad)
        assert caught.value.code() is INVALID


async def test_deletion(served):
    hifi = (
        await add_hifi(
            served,
            (0, recording()),
            uploaded_prompt=pb.UploadedPrompt(transcript="Hi."),
            same_as_prompt=pb.SameAsPrompt(),
        )
    )[0].handle
    await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=hifi.prompt_id))
    await served.generate(conditioned(hifi_id=hifi.id), "The hifi voice has its own copy.")
    await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=hifi.id, cascade=True))
    assert {path.suffix for path in served.directory.rglob("*.*")} == {".deleted"}  # only the marks of deletion remain
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=hifi.id))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=hifi.id, allow_missing=True))


async def test_cascade_keeps_members_that_other_voices_use(served):
    prompt, first, second = await add_prompt(served), await add_reference(served, 1), await add_reference(served, 2)
    hifi = (await add_hifi(served, prompt_id=prompt.id, reference_id=first.id))[0].handle
    other = (await add_hifi(served, prompt_id=prompt.id, reference_id=second.id))[0].handle
    await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=hifi.id, cascade=True))
    left = await served.stub.ListVoices(pb.ListVoicesRequest())
    assert {h.id for h in left.handles} == {prompt.id, second.id, other.id}


async def test_a_full_store_refuses_and_stores_nothing(serve_front, details_of):
    async with serve_front(max_voices=2) as served:
        await add_prompt(served)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await add_hifi(
                served,
                (0, recording(7)),
                uploaded_prompt=pb.UploadedPrompt(transcript="Hi."),
                same_as_prompt=pb.SameAsPrompt(),
            )
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(caught.value).retry_seconds
        assert len(list(served.directory.iterdir())) == 1
        assert (await add_prompt(served)).reused


async def test_voices_survive_a_restart_and_belong_to_their_model(serve_front, fake):
    async with serve_front() as served:
        handle = await add_prompt(served)
        info = served.pool.info
    async with serve_front() as served:
        assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=handle.id))).handle == handle
    async with serve_front(fake(info=replace(info, fingerprint="0" * 40))) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(conditioned(prompt_id=handle.id), "Hello.")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_two_servers_share_their_voices_at_once(serve_front, store_url):
    async with serve_front(url=store_url) as one, serve_front(url=store_url) as two:
        handle = await add_prompt(one)
        assert (await two.generate(conditioned(prompt_id=handle.id), "Hello."))[-1].HasField("summary")
        assert (await add_prompt(two)).reused
        assert two.pool.encoded == 0
        await one.stub.DeleteVoice(pb.DeleteVoiceRequest(id=handle.id))
        for served in (two, one):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served.generate(conditioned(prompt_id=handle.id), "Hello.")
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            assert not (await served.stub.ListVoices(pb.ListVoicesRequest())).handles


async def test_a_server_without_its_store_serves_streams_without_stored_voices(serve_front, details_of):
    async with serve_front() as served:
        handle = await add_prompt(served)
        moved = served.directory.rename(served.directory.with_name("away"))
        for call in (
            served.generate(conditioned(prompt_id=handle.id), "Hello."),
            served.stub.GetVoice(pb.GetVoiceRequest(id=handle.id)),
            served.stub.ListVoices(pb.ListVoicesRequest()),
            add_prompt(served, seed=3),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert details_of(caught.value).retry_seconds == details_of(caught.value).pushback_ms / 1000 > 0
        inline = pb.InlineReference(audio=pb.EncodedAudio(data=recording()))
        for config in (pb.GenerateConfig(), conditioned(inline_reference=inline)):
            assert (await served.generate(config, "Hello."))[-1].HasField("summary")
        moved.rename(served.directory)
        assert (await served.generate(conditioned(prompt_id=handle.id), "Hello."))[-1].HasField("summary")


async def test_a_damaged_voice_does_not_affect_others(serve_front, details_of):
    async with serve_front() as served:
        handle, other = await add_prompt(served), await add_prompt(served, seed=7)
    (latents,) = (served.directory / handle.id).glob("*.latents")
    latents.write_bytes(latents.read_bytes()[:-1])
    async with serve_front() as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(conditioned(prompt_id=handle.id), "Hello.")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "upload the recording again" in message_of(caught.value)
        await served.generate(conditioned(prompt_id=other.id), "Hello.")
        again = await add_prompt(served)
        assert (again.id, again.reused) == (handle.id, False)
        await served.generate(conditioned(prompt_id=handle.id), "Hello.")
