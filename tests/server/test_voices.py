"""Voices: uploaded in parts, made durable, found again, used, listed and deleted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

PROMPT, REFERENCE = pb.AUDIO_ROLE_PROMPT, pb.AUDIO_ROLE_REFERENCE
INVALID = grpc.StatusCode.INVALID_ARGUMENT
PREVIEW = pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION)


def recording(seed: int = 0, samples: int = 4000) -> bytes:
    return wav_bytes(np.random.default_rng(seed).uniform(-0.5, 0.5, samples).astype(np.float32), 16000)


def upload(kind: Any, config: Any, *recordings: tuple[int, bytes], sha: bool = True, size: int = 1000) -> Iterator[Any]:
    """The messages of a whole upload: config, parts, commit."""
    yield kind(config=config)
    for role, data in recordings:
        for at in range(0, len(data), size):
            yield kind(audio=pb.AudioPart(data=data[at : at + size], offset_bytes=at, role=role))
    digests = [
        pb.UploadDigest(role=role, total_bytes=len(data), sha256=hashlib.sha256(data).digest() if sha else b"")
        for role, data in recordings
    ]
    yield kind(commit=pb.UploadCommit(digests=digests))


async def chunks_of(method: Any, messages: Any) -> list[pb.AudioChunk]:
    return [chunk async for chunk in method(iter(list(messages)))]


async def add_prompt(served: Any, seed: int = 0, transcript: str = "Hi there.", **config: Any) -> pb.VoiceHandle:
    messages = upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript=transcript, **config), (0, recording(seed)))
    return (await chunks_of(served.stub.AddPrompt, messages))[0].handle


async def add_reference(served: Any, seed: int = 1, **config: Any) -> pb.VoiceHandle:
    messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(**config), (0, recording(seed)))
    return (await chunks_of(served.stub.AddReference, messages))[0].handle


async def add_hifi(served: Any, *recordings: tuple[int, bytes], **config: Any) -> list[pb.AudioChunk]:
    return await chunks_of(served.stub.AddHifi, upload(pb.AddHifiRequest, pb.AddHifiConfig(**config), *recordings))


def conditioned(**fields: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(conditioning=pb.Conditioning(**fields))


async def test_a_prompt_is_stored_and_spoken_with(served):
    options = pb.VoiceOptions(display_name="Ann", labels={"a": "b"}, request_id="mine")
    messages = upload(
        pb.AddPromptRequest,
        pb.AddPromptConfig(transcript=" Hi there. ", options=options, preview=PREVIEW),
        (0, recording()),
    )
    chunks = await chunks_of(served.stub.AddPrompt, messages)
    handle, header, summary = chunks[0].handle, chunks[0].header, chunks[-1].summary
    assert header.request_id == "mine"
    assert handle.id.startswith("prm_")
    assert handle.content_digest in handle.id
    assert (handle.kind, handle.transcript, handle.display_name) == (pb.VOICE_KIND_PROMPT, " Hi there. ", "Ann")
    assert handle.labels == {"a": "b"}
    assert handle.prompt_duration.ToMilliseconds() == 250
    assert handle.expire_time.seconds - handle.create_time.seconds == 30 * 86400
    assert not handle.reused
    assert [c.sequence for c in chunks] == list(range(len(chunks)))
    assert summary.total_samples == sum(c.sample_count for c in chunks) == 13 * 960  # 4000 samples in patches of 320
    assert served.pool.encoded == 1
    assert not served.pool.decoding
    await served.generate(conditioned(prompt_id=handle.id), "Hello.")
    prompt = served.pool.requests[-1].conditioning.prompt
    assert prompt.text == " Hi there. "  # as it was written
    assert prompt.latents.shape == (13, 4, 8)


async def test_no_preview_is_a_handle_and_a_summary(served):
    chunks = await chunks_of(
        served.stub.AddReference, upload(pb.AddReferenceRequest, pb.AddReferenceConfig(), (REFERENCE, recording()))
    )
    assert chunks[0].handle.id.startswith("ref_")
    assert not b"".join(c.audio for c in chunks)
    assert chunks[-1].HasField("summary")


async def test_a_preview_has_the_format_asked_for(served):
    output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_WAV, sample_rate_hz=16000)
    preview = pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION, output=output)
    messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(preview=preview), (0, recording()))
    chunks = await chunks_of(served.stub.AddReference, messages)
    assert chunks[0].header.format == output
    assert len(b"".join(c.audio for c in chunks)) == 44 + 2 * 13 * 320


async def test_identical_content_is_found_again(served):
    first = await add_prompt(served)
    again = await add_prompt(served, options=pb.VoiceOptions(display_name="other name"))
    assert again.id == first.id
    assert again.reused
    assert served.pool.encoded == 1
    assert (await add_prompt(served, transcript="Other.")).id != first.id
    assert (await add_prompt(served, seed=5)).id != first.id
    assert (await add_reference(served, seed=0)).id[4:] != first.id[4:]


async def test_roles_are_padded_on_their_own_side(served):
    samples = np.ones(321, np.float32)
    data = wav_bytes(samples * 0.5, 16000)
    for kind, config, method in (
        (pb.AddPromptRequest, pb.AddPromptConfig(transcript="Hi."), served.stub.AddPrompt),
        (pb.AddReferenceRequest, pb.AddReferenceConfig(), served.stub.AddReference),
    ):
        handle = (await chunks_of(method, upload(kind, config, (0, data))))[0].handle
        stored = served.store.load(handle.id)
        latents = stored.prompt if stored.prompt is not None else stored.reference
        quiet = np.abs(latents).mean(axis=(1, 2)) < 0.1
        assert list(quiet) == ([True, False] if stored.prompt is not None else [False, True])


async def test_a_hifi_voice_of_one_recording_in_both_roles(served):
    chunks = await add_hifi(
        served,
        (0, recording()),
        uploaded_prompt=pb.UploadedPrompt(transcript="Hi."),
        same_as_prompt=pb.SameAsPrompt(),
        preview=PREVIEW,
    )
    handle = chunks[0].handle
    assert served.pool.encoded == 2
    assert handle.kind == pb.VOICE_KIND_HIFI
    assert chunks[-1].summary.total_samples == 2 * 13 * 960
    for member in (handle.prompt_id, handle.reference_id):
        assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=member))).handle.id == member
    await served.generate(conditioned(hifi_id=handle.id), "Hello.")
    conditioning = served.pool.requests[-1].conditioning
    assert conditioning.prompt.text == "Hi."
    assert conditioning.reference.shape == (13, 4, 8)


async def test_a_hifi_voice_of_stored_and_of_uploaded_members_is_the_same(served):
    prompt, reference = await add_prompt(served), await add_reference(served)
    stored = (await add_hifi(served, prompt_id=prompt.id, reference_id=reference.id))[0].handle
    uploaded = (
        await add_hifi(
            served,
            (PROMPT, recording(0)),
            (REFERENCE, recording(1)),
            uploaded_prompt=pb.UploadedPrompt(transcript="Hi there."),
            uploaded_reference=pb.UploadedReference(),
        )
    )[0].handle
    assert (stored.id, stored.reused) == (uploaded.id, not uploaded.reused)
    assert (stored.prompt_id, stored.reference_id) == (prompt.id, reference.id)
    assert served.pool.encoded == 2


async def test_inline_audio_and_latents_condition_like_stored_voices(served):
    handle = await add_prompt(served)
    stored = served.store.load(handle.id).prompt
    request = iter(list(upload(pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(role=PROMPT), (0, recording()))))
    encoded = await served.stub.EncodeLatents(request)
    assert encoded.audio_duration.ToMilliseconds() == 250
    assert encoded.latents.feat_dim == 8
    assert encoded.latents.model_fingerprint == served.pool.info.fingerprint
    for source in ({"audio": pb.EncodedAudio(data=recording())}, {"latents": encoded.latents}):
        await served.generate(conditioned(inline_prompt=pb.InlinePrompt(transcript="Hi.", **source)), "Hello.")
        assert np.array_equal(served.pool.requests[-1].conditioning.prompt.latents, stored)
    await served.generate(conditioned(inline_reference=pb.InlineReference(latents=encoded.latents)), "Hello.")
    assert np.array_equal(served.pool.requests[-1].conditioning.reference, stored)


async def test_raw_pcm_needs_no_container(served):
    pcm = (np.random.default_rng(0).uniform(-0.5, 0.5, 4000) * 32768).astype("<i2")
    source = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE)
    messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(source=source), (0, pcm.tobytes()))
    assert (await chunks_of(served.stub.AddReference, messages))[0].handle.reference_duration.ToMilliseconds() == 250


GOOD = recording()
FOREVER = pb.VoiceOptions(ttl=Duration(seconds=300_000_000_000))
NAMED = pb.VoiceOptions(display_name="y" * 201)
HALF = [
    pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="Hi.")),
    pb.AddPromptRequest(audio=pb.AudioPart(data=GOOD[:2000])),
]
REST = pb.AddPromptRequest(audio=pb.AudioPart(data=GOOD[2000:], offset_bytes=2000))


def whole(data: bytes) -> list[pb.AddPromptRequest]:
    return list(upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript="x"), (0, data)))


def commit(*digests: pb.UploadDigest) -> pb.AddPromptRequest:
    return pb.AddPromptRequest(commit=pb.UploadCommit(digests=digests))


BAD_UPLOADS = [
    ([], "commit"),
    (HALF[:1], "commit"),
    (HALF, "commit"),
    (HALF[1:], "config"),
    ([HALF[0], HALF[0]], "config"),
    ([*HALF, pb.AddPromptRequest()], ""),
    ([*HALF, pb.AddPromptRequest(audio=pb.AudioPart(data=b"x", offset_bytes=2001))], "audio.offset_bytes"),
    ([*HALF, pb.AddPromptRequest(audio=pb.AudioPart(data=b"x", offset_bytes=0))], "audio.offset_bytes"),
    ([HALF[0], pb.AddPromptRequest(audio=pb.AudioPart(data=b"x", role=REFERENCE))], "audio.role"),
    ([HALF[0], pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(20_001)))], "audio.data"),
    ([*HALF, REST, commit()], "commit.digests"),
    ([*HALF, REST, commit(pb.UploadDigest(total_bytes=2000))], "commit.digests.total_bytes"),
    ([*HALF, REST, commit(pb.UploadDigest(total_bytes=len(GOOD), sha256=bytes(32)))], "commit.digests.sha256"),
    ([*HALF, REST, commit(*[pb.UploadDigest(total_bytes=len(GOOD))] * 2)], "commit.digests"),
    ([HALF[0], commit(pb.UploadDigest(total_bytes=0))], "audio"),
    ([*HALF, commit(pb.UploadDigest(total_bytes=2000, role=REFERENCE))], "commit.digests.role"),
    ([pb.AddPromptRequest(config=pb.AddPromptConfig())], "config.transcript"),
    ([pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="x" * 2001))], "config.transcript"),
    (
        [pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="x", options=pb.VoiceOptions(ttl=Duration())))],
        "config.options.ttl",
    ),
    (
        [pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="x", options=FOREVER))],
        "config.options.ttl",
    ),
    (
        [pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="x", preview=pb.Preview(mode=9)))],  # type: ignore[arg-type]
        "config.preview.mode",
    ),
    (
        [pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="x", options=NAMED))],
        "config.options.display_name",
    ),
    (whole(b"RIFF not audio at all"), "audio"),
    (whole(wav_bytes(np.zeros(0, np.float32), 16000)), "audio"),
    (whole(recording(samples=9000)), "audio"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "field"), BAD_UPLOADS)
async def test_bad_uploads_store_nothing(serve_front, details_of, messages, field):
    async with serve_front(max_upload_bytes=20_000, max_prompt_seconds=0.5) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chunks_of(served.stub.AddPrompt, messages)
        assert caught.value.code() is INVALID
        assert details_of(caught.value).field == field
        assert details_of(caught.value).request_id
        assert not list(served.directory.iterdir())


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({}, INVALID),
        ({"prompt_id": "prm_x"}, INVALID),
        ({"uploaded_prompt": pb.UploadedPrompt(transcript="Hi.")}, INVALID),
        ({"prompt_id": "prm_x", "same_as_prompt": pb.SameAsPrompt()}, INVALID),
        ({"prompt_id": "prm_" + "a" * 32, "reference_id": "ref_" + "a" * 32}, grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_bad_hifi_configs(served, config, code):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await add_hifi(served, **config)
    assert caught.value.code() is code


async def test_two_recordings_need_their_roles(served, details_of):
    both = {"uploaded_prompt": pb.UploadedPrompt(transcript="Hi."), "uploaded_reference": pb.UploadedReference()}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await add_hifi(served, (0, recording()), **both)
    assert details_of(caught.value).field == "audio.role"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await add_hifi(served, (PROMPT, recording()), **both)
    assert details_of(caught.value).field == "commit.digests"


async def test_a_voice_of_the_wrong_kind_is_refused(served, details_of):
    reference = await add_reference(served)
    for call in (
        served.generate(conditioned(prompt_id=reference.id), "Hello."),
        add_hifi(served, prompt_id=reference.id, reference_id=reference.id),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is INVALID
        assert details_of(caught.value).field.endswith("prompt_id")


async def test_a_silent_upload_ends(serve_front):
    async with serve_front(upload_idle_seconds=0.1) as served:
        for begun in ([], HALF):
            call = served.stub.AddPrompt()
            for message in begun:
                await call.write(message)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(call.read(), 5)
            assert caught.value.code() is INVALID
        assert not list(served.directory.iterdir())


async def test_a_cancelled_upload_stores_nothing(served):
    call = served.stub.AddPrompt()
    for message in HALF:
        await call.write(message)
    await asyncio.sleep(0.05)
    call.cancel()
    await served.idle()
    assert not list(served.directory.iterdir())


CLIENT = """
import sys, time, grpc
from voxcpm_grpc.v1 import tts_pb2 as pb, tts_pb2_grpc
def messages():
    yield pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="Hi."))
    yield pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(1000)))
    print("uploading", flush=True)
    time.sleep(60)
for _ in tts_pb2_grpc.VoxCPMServiceStub(grpc.insecure_channel(sys.argv[1])).AddPrompt(messages()):
    pass
"""


async def test_a_killed_client_stores_nothing(served):
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, served.address, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert await asyncio.wait_for(client.stdout.readline(), 20) == b"uploading\n"
    async with asyncio.timeout(5):
        while served.uploads.held != 1000:  # noqa: ASYNC110 - looks from outside
            await asyncio.sleep(0.01)
    os.kill(client.pid, signal.SIGKILL)
    await client.wait()
    await served.idle()
    assert served.uploads.held == 0
    assert not list(served.directory.iterdir())


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
    junk = [{"page_token": token} for token in ("junk", *tokens)]
    for bad in (*junk, {"page_size": -1}, {"kind": 9}):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.ListVoices(pb.ListVoicesRequest(**bad))
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
    assert not list(served.directory.iterdir())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=hifi.id))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=hifi.id, allow_missing=True))


async def test_cascade_spares_members_that_others_use(served):
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
    from dataclasses import replace

    async with serve_front(fake(info=replace(info, fingerprint="0" * 40))) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(conditioned(prompt_id=handle.id), "Hello.")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
