"""Invalid, broken and stalled uploads: the error names the field, and nothing is stored."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import message_of
from support.servers.uploads import (
    PROMPT,
    REFERENCE,
    add_hifi,
    add_reference,
    chunks_of,
    conditioned,
    recording,
    upload,
)
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_client.status import CallStatus
from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

INVALID = grpc.StatusCode.INVALID_ARGUMENT
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


def named(**options: Any) -> list[pb.AddPromptRequest]:
    config = pb.AddPromptConfig(transcript="x", options=pb.VoiceOptions(**options))
    return [pb.AddPromptRequest(config=config)]


DONE = commit(pb.UploadDigest(total_bytes=len(GOOD)))
BAD_UPLOADS = [
    ([], "commit"),
    (HALF[:1], "commit"),
    (HALF, "commit"),
    (HALF[1:], "config"),
    ([HALF[0], HALF[0]], "config"),
    ([*HALF, pb.AddPromptRequest()], "request"),
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
    (named(display_name="a\x1b[2Jb"), "config.options.display_name"),
    (named(labels={"a\u202e": "b"}), "config.options.labels"),
    (named(labels={"a": "b\nc"}), "config.options.labels"),
    ([*HALF, REST, DONE, REST], "audio"),
    ([*HALF, REST, DONE, HALF[0]], "config"),
    ([*HALF, REST, DONE, DONE], "commit"),
    (whole(b"RIFF not audio at all"), "audio"),
    (whole(wav_bytes(np.ones(1, np.float32), 16000)), "audio"),
    (whole(wav_bytes(np.zeros(4000, np.float32), 16000)), "audio"),
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


async def test_an_upload_without_messages_times_out(serve_front, details_of):
    async def stalled(messages: list[pb.AddPromptRequest]) -> AsyncIterator[pb.AddPromptRequest]:
        for message in messages:
            yield message
        await asyncio.sleep(NEVER_SECONDS)

    async with serve_front(upload_idle_seconds=0.1) as served:
        for messages, field in (([], "config"), (HALF, "commit")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(served.stub.AddPrompt(stalled(messages)).read(), HANG_SECONDS)
            assert caught.value.code() is INVALID
            assert details_of(caught.value).field == field
        assert not list(served.directory.iterdir())


async def test_an_upload_that_takes_too_long_in_all_ends(serve_front):
    """No pause between its messages is long."""
    async with serve_front(upload_seconds=0.5, upload_idle_seconds=NEVER_SECONDS) as served:
        call = served.stub.AddPrompt()
        status = CallStatus(call)  # grpc.aio may replace it with that of a write that the end of the call meets

        async def trickle() -> None:
            await call.write(HALF[0])
            for offset in itertools.count():
                await call.write(pb.AddPromptRequest(audio=pb.AudioPart(data=b"x", offset_bytes=offset)))
                await asyncio.sleep(0.05)

        sending = asyncio.create_task(trickle())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call.read(), HANG_SECONDS)
        ended = await status.final(caught.value)
        assert ended.code() is INVALID
        assert "took longer than 0.5 s; send a compressed" in message_of(ended)
        sending.cancel()
        await asyncio.wait({sending})
        await served.idle()
        assert served.uploads.held == 0


async def test_a_client_may_keep_its_side_open_after_the_commit(served):
    call = served.stub.AddPrompt()
    for message in (*HALF, REST, DONE):
        await call.write(message)
    assert (await asyncio.wait_for(call.read(), HANG_SECONDS)).handle.id
    await call.done_writing()


async def test_a_message_long_after_the_commit_is_refused_while_the_voice_is_made(serve_front, fake, details_of):
    async with serve_front(fake(hold_after=0)) as served:
        call = served.stub.AddPrompt()
        for message in (*HALF, REST, DONE):
            await call.write(message)
        await until(lambda: served.pool.encoded)
        await call.write(REST)
        with pytest.raises(grpc.aio.AioRpcError, match="after the commit") as caught:
            await asyncio.wait_for(call.read(), HANG_SECONDS)
        assert (caught.value.code(), details_of(caught.value).field) == (INVALID, "audio")
        assert not list(served.directory.iterdir())


@pytest.mark.parametrize("ended", [False, True])
async def test_a_client_that_leaves_while_its_voice_is_made_causes_no_error(serve_front, fake, caplog, ended):
    async with serve_front(fake(hold_after=0)) as served, grpc.aio.insecure_channel(served.address) as channel:
        call = tts_pb2_grpc.VoxCPMServiceStub(channel).AddPrompt()
        for message in (*HALF, REST, DONE):
            await call.write(message)
        if ended:
            await call.done_writing()
        await until(lambda: served.pool.encoded)
        call.cancel()
        await served.idle()
        served.pool.release()
        assert not list(served.directory.iterdir())
    gc.collect()  # reports exceptions of tasks that nobody retrieved
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_bad_voices_are_refused_with_the_figures(served):
    def messages(samples: np.ndarray) -> list[pb.AddPromptRequest]:
        return whole(wav_bytes(samples.astype(np.float32), 16000))

    noise = np.random.default_rng(0).uniform(-1, 1, 16000)
    for samples, text in (
        (noise[:1], r"lasts 0\.0001 s and the minimum is 0\.1 s"),
        (noise[:1599], r"lasts 0\.0999 s and the minimum is 0\.1 s"),
        (np.zeros(16000), r"-200 dBFS and the minimum is -60 dBFS"),
        (np.full(16000, 0.5), r"-200 dBFS and the minimum is -60 dBFS"),
        (noise * 0.0015, r"-61 dBFS and the minimum is -60 dBFS"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await chunks_of(served.stub.AddPrompt, messages(samples))
        assert caught.value.code() is INVALID
        inline = pb.InlineReference(audio=pb.EncodedAudio(data=wav_bytes(samples.astype(np.float32), 16000)))
        with pytest.raises(grpc.aio.AioRpcError, match=text):
            await served.generate(conditioned(inline_reference=inline), "Hello.")
    quiet = np.concatenate([np.zeros(16000), noise[:3200] * 0.01, np.zeros(16000)])
    assert (await chunks_of(served.stub.AddPrompt, messages(quiet)))[0].handle.id


async def test_a_cancelled_upload_stores_nothing(served):
    call = served.stub.AddPrompt()
    for message in HALF:
        await call.write(message)
    await until(lambda: served.uploads.held == 2000)
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
    time.sleep(600)
for _ in tts_pb2_grpc.VoxCPMServiceStub(grpc.insecure_channel(sys.argv[1])).AddPrompt(messages()):
    pass
"""


async def test_a_killed_client_stores_nothing(served):
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, served.address, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert await asyncio.wait_for(client.stdout.readline(), HANG_SECONDS) == b"uploading\n"
    await until(lambda: served.uploads.held == 1000)
    os.kill(client.pid, signal.SIGKILL)
    await client.wait()
    await served.idle()
    assert served.uploads.held == 0
    assert not list(served.directory.iterdir())
