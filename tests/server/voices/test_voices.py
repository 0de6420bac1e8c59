"""Voices are uploaded in parts, stored, reused and spoken with."""

from __future__ import annotations

import numpy as np
from support.engines.voice_parts import latents_of
from support.servers.uploads import (
    PROMPT,
    REFERENCE,
    add_hifi,
    add_prompt,
    add_reference,
    chunks_of,
    conditioned,
    recording,
    upload,
)

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

PREVIEW = pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION)


async def test_a_prompt_is_stored_and_used(served):
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
    assert prompt.text == " Hi there. "  # unchanged
    assert latents_of(prompt).shape == (13, 4, 8)


async def test_the_reply_without_a_preview_is_a_handle_and_a_summary(served):
    chunks = await chunks_of(
        served.stub.AddReference, upload(pb.AddReferenceRequest, pb.AddReferenceConfig(), (REFERENCE, recording()))
    )
    assert chunks[0].handle.id.startswith("ref_")
    assert not b"".join(c.audio for c in chunks)
    assert chunks[-1].HasField("summary")


async def test_a_preview_has_the_requested_format(served):
    output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_WAV, sample_rate_hz=16000)
    preview = pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION, output=output)
    messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(preview=preview), (0, recording()))
    chunks = await chunks_of(served.stub.AddReference, messages)
    assert chunks[0].header.format == output
    assert len(b"".join(c.audio for c in chunks)) == 44 + 2 * 13 * 320


async def test_identical_content_is_reused(served):
    first = await add_prompt(served)
    again = await add_prompt(served)
    assert (again.id, again.create_time) == (first.id, first.create_time)
    assert again.reused
    assert served.pool.encoded == 1
    assert (await add_prompt(served, transcript="Other.")).id != first.id
    assert (await add_prompt(served, seed=5)).id != first.id
    assert (await add_reference(served, seed=0)).id[4:] != first.id[4:]


async def test_a_prompt_is_padded_at_its_beginning_and_a_reference_at_its_end(served):
    data = wav_bytes(0.5 + 0.1 * np.sin(np.arange(1921)), 16000)
    for kind, config, method in (
        (pb.AddPromptRequest, pb.AddPromptConfig(transcript="Hi."), served.stub.AddPrompt),
        (pb.AddReferenceRequest, pb.AddReferenceConfig(), served.stub.AddReference),
    ):
        handle = (await chunks_of(method, upload(kind, config, (0, data))))[0].handle
        stored = await served.store.load(handle.id)
        latents = latents_of(stored.prompt if stored.prompt is not None else stored.reference)
        quiet = np.abs(latents).mean(axis=(1, 2)) < 0.1
        assert list(np.flatnonzero(quiet)) == ([0] if stored.prompt is not None else [6])


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
    assert latents_of(conditioning.reference).shape == (13, 4, 8)


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
    stored = latents_of((await served.store.load(handle.id)).prompt)
    request = iter(list(upload(pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(role=PROMPT), (0, recording()))))
    encoded = await served.stub.EncodeLatents(request)
    assert encoded.audio_duration.ToMilliseconds() == 250
    assert encoded.latents.feat_dim == 8
    assert encoded.latents.model_fingerprint == served.pool.info.fingerprint
    audio = pb.EncodedAudio(data=recording())
    for prompt in (
        pb.InlinePrompt(transcript="Hi.", audio=audio),
        pb.InlinePrompt(transcript="Hi.", latents=encoded.latents),
    ):
        await served.generate(conditioned(inline_prompt=prompt), "Hello.")
        assert np.array_equal(latents_of(served.pool.requests[-1].conditioning.prompt), stored)
    await served.generate(conditioned(inline_reference=pb.InlineReference(latents=encoded.latents)), "Hello.")
    assert np.array_equal(latents_of(served.pool.requests[-1].conditioning.reference), stored)


async def test_raw_pcm_needs_no_header(served):
    pcm = (np.random.default_rng(0).uniform(-0.5, 0.5, 4000) * 32768).astype("<i2")
    source = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE)
    messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(source=source), (0, pcm.tobytes()))
    assert (await chunks_of(served.stub.AddReference, messages))[0].handle.reference_duration.ToMilliseconds() == 250
