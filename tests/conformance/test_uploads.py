"""Uploads that break off store nothing, equal uploads store one voice, and a voice in use can be deleted."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from support.hostile.abrupt_client import abrupt_client
from support.servers.targets import Service, Target, config, message, refusal, rest
from support.servers.uploads import upload

from voxcpm_grpc.v1 import tts_pb2 as pb

NOT_FOUND = grpc.StatusCode.NOT_FOUND
TEXT = "A sentence that goes on and on, as it has nothing better to do, and tells of this and that. "


@pytest.fixture
def request_id() -> str:
    return uuid.uuid4().hex


async def stored(service: Service, request_id: str) -> list[str]:
    listed = await service.ListVoices(pb.ListVoicesRequest(labels={"abrupt": request_id}))
    return [handle.id for handle in listed.handles]


async def half(service: Service, target: Target, recording: bytes, request_id: str) -> Any:
    """An upload of which the server has half."""
    options = target.options_of_voice(request_id=request_id, labels={"abrupt": request_id})
    call = service.AddReference()
    await call.write(pb.AddReferenceRequest(config=pb.AddReferenceConfig(options=options)))
    await call.write(pb.AddReferenceRequest(audio=pb.AudioPart(data=recording[: len(recording) // 2])))
    await service.GetModelInfo(pb.GetModelInfoRequest())  # sent later on the same connection
    return call


@pytest.mark.references
async def test_an_upload_that_is_half_closed_stores_nothing(target, service, recording, request_id) -> None:
    call = await half(service, target, recording, request_id)
    await call.done_writing()
    code, _, details = await refusal(rest(call))
    assert (code, details.field) == (grpc.StatusCode.INVALID_ARGUMENT, "commit")
    assert details.request_id == request_id
    assert await stored(service, request_id) == []


@pytest.mark.references
async def test_an_upload_that_is_cancelled_stores_nothing(target, service, recording, request_id) -> None:
    before = target.calls("AddReference")
    call = await half(service, target, recording, request_id)
    call.cancel()
    await target.ended("AddReference", before + 1)
    assert await stored(service, request_id) == []


@pytest.mark.references
async def test_an_upload_whose_connection_ends_stores_nothing(target, service, recording, request_id) -> None:
    before = target.calls("AddReference")
    async with target.service() as other:
        await half(other, target, recording, request_id)
    await target.ended("AddReference", before + 1)
    assert await stored(service, request_id) == []


@pytest.mark.prompts
async def test_an_upload_whose_client_is_killed_stores_nothing(target, service, request_id) -> None:
    before = target.calls("AddPrompt")
    with abrupt_client("upload", target, request_id):
        pass
    await target.ended("AddPrompt", before + 1)
    assert await stored(service, request_id) == []


@pytest.mark.prompts
async def test_an_error_reaches_a_client_that_is_still_sending(service, request_id) -> None:
    """The client sends megabytes after the message that causes the error."""

    async def endless() -> AsyncIterator[pb.AddPromptRequest]:
        options = pb.VoiceOptions(request_id=request_id)
        yield pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="Hi.", options=options))
        for index in range(200):
            yield pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(100_000), offset_bytes=7 + 100_000 * index))

    code, _, details = await refusal(service.AddPrompt(endless()))
    assert (code, details.field) == (grpc.StatusCode.INVALID_ARGUMENT, "audio.offset_bytes")
    assert details.request_id == request_id


async def add(service: Service, target: Target, data: bytes, **options) -> pb.VoiceHandle:
    settings = pb.AddReferenceConfig(options=target.options_of_voice(**options))
    return (await service.stream("AddReference", upload(pb.AddReferenceRequest, settings, (0, data))))[0].handle


async def delete(service: Service, id: str, **fields) -> None:
    await service.DeleteVoice(pb.DeleteVoiceRequest(id=id, **fields))


@pytest.mark.references
async def test_the_same_recording_is_one_voice_with_all_its_names(target, service, recording, request_id) -> None:
    one, two = f"one {request_id}", f"two {request_id}"
    first = await add(service, target, recording, display_name=one, ttl=Duration(seconds=1000))
    again = await add(service, target, recording)
    named = await add(service, target, recording, display_name=two, labels={"more": "x"})
    assert first.id == again.id == named.id
    assert (first.reused, again.reused, named.reused) == (False, True, True)
    assert (again.display_name, named.display_name) == (one, two)
    assert [name.display_name for name in named.names] == [two, one]
    assert named.labels["more"] == "x" and "more" not in again.labels
    assert "more" not in named.names[1].labels
    await delete(service, first.id)
    assert not (await add(service, target, recording)).reused, "a deleted voice is stored anew"
    await delete(service, first.id)


@pytest.mark.references
async def test_equal_uploads_at_once_store_one_voice(target, recording, request_id) -> None:
    async def one() -> pb.VoiceHandle:
        async with target.service() as service:
            return await add(service, target, recording, labels={"abrupt": request_id})

    handles = await asyncio.gather(*(one() for _ in range(8)))
    assert len({handle.id for handle in handles}) == 1
    assert sum(not handle.reused for handle in handles) >= 1
    async with target.service() as service:
        assert await stored(service, request_id) == [handles[0].id]
        await delete(service, handles[0].id)
        assert await stored(service, request_id) == []


@pytest.mark.references
async def test_a_stream_whose_voice_is_deleted_goes_on(target, service, recording) -> None:
    voice = await add(service, target, recording)
    spoken = config(20, conditioning=pb.Conditioning(voice=voice.id))
    call = service.Generate()
    for body in (spoken, TEXT, pb.Flush()):
        await call.write(message(body))
    while not (await call.read()).sample_count:
        pass
    await delete(service, voice.id)
    assert (await refusal(service.speak(spoken, "Hello.")))[0] is NOT_FOUND
    assert (await refusal(service.GetVoice(pb.GetVoiceRequest(id=voice.id))))[0] is NOT_FOUND
    await call.write(message(TEXT))
    await call.done_writing()
    summary = (await rest(call))[-1].summary
    assert summary.segments == 2 and summary.finish_reason != pb.FINISH_REASON_INTERRUPTED


@pytest.mark.references
async def test_a_voice_is_deleted_once_and_a_retry_can_be_safe(target, service, recording) -> None:
    voice = await add(service, target, recording)
    outcomes = await asyncio.gather(*(delete(service, voice.id) for _ in range(4)), return_exceptions=True)
    codes = [outcome.code() for outcome in outcomes if isinstance(outcome, grpc.aio.AioRpcError)]
    assert None in outcomes and set(codes) <= {NOT_FOUND}
    await delete(service, voice.id, allow_missing=True)
    assert (await refusal(service.DeleteVoice(pb.DeleteVoiceRequest(id=voice.id))))[0] is NOT_FOUND


@pytest.mark.references
async def test_the_members_of_a_hifi_voice_outlive_it_unless_they_are_deleted_with_it(
    target, service, recording
) -> None:
    settings = pb.AddHifiConfig(
        options=target.options_of_voice(),
        uploaded_prompt=pb.UploadedPrompt(transcript="A tone. "),
        same_as_prompt=pb.SameAsPrompt(),
    )
    for cascade in (False, True):
        messages = upload(pb.AddHifiRequest, settings, (0, recording))
        handle = (await service.stream("AddHifi", messages))[0].handle
        await delete(service, handle.id, cascade=cascade)
        for member in (handle.prompt_id, handle.reference_id):
            found = service.GetVoice(pb.GetVoiceRequest(id=member))
            if cascade:
                assert (await refusal(found))[0] is NOT_FOUND
            else:
                assert (await found).handle.id == member
