"""Noise and silence are removed from recordings that a caller uploads or sends with a request, if it asks for that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.servers.uploads import chunks_of, upload

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

RATE = 16000
LOUD = (0.5 * np.sin(np.arange(RATE) * 0.3)).astype(np.float32)
SILENT = np.zeros(2 * RATE, np.float32)
RECORDING = wav_bytes(np.concatenate([SILENT, LOUD, SILENT]), RATE)
PROMPT, REFERENCE = 1, 2


async def seconds(served: Any, method: str, kind: Any, config: Any, *recordings: tuple[int, bytes]) -> Any:
    handle = (await chunks_of(getattr(served.stub, method), upload(kind, config, *recordings)))[0].handle
    return handle.prompt_duration.ToMilliseconds() / 1000, handle.reference_duration.ToMilliseconds() / 1000, handle.id


@pytest.mark.parametrize("denoise", [False, True])
async def test_every_upload_can_be_cleaned(served, denoise):
    wanted = {"trim_silence_vad": True, "denoise": denoise}
    one = (0, RECORDING)
    prompt = await seconds(
        served, "AddPrompt", pb.AddPromptRequest, pb.AddPromptConfig(transcript="Hi. ", **wanted), one
    )
    reference = await seconds(served, "AddReference", pb.AddReferenceRequest, pb.AddReferenceConfig(**wanted), one)
    both = pb.AddHifiConfig(
        uploaded_prompt=pb.UploadedPrompt(transcript="Hi. ", **wanted), uploaded_reference=pb.UploadedReference()
    )
    hifi = await seconds(served, "AddHifi", pb.AddHifiRequest, both, (PROMPT, RECORDING), (REFERENCE, RECORDING))
    assert prompt[0] == reference[1] == hifi[0] == pytest.approx(1.5, abs=0.2)
    assert hifi[1] == 5.0, "the reference of this upload is not cleaned"
    latents = await served.stub.EncodeLatents(
        upload(
            pb.EncodeLatentsRequest,
            pb.EncodeLatentsConfig(role=pb.AUDIO_ROLE_REFERENCE, **wanted),
            one,
        )
    )
    assert latents.audio_duration.ToMilliseconds() / 1000 == reference[1]


async def test_a_cleaned_recording_is_another_voice_and_cleaned_again_the_same(served):
    ids = []
    for trim in (False, True, True):
        config = pb.AddReferenceConfig(trim_silence_vad=trim)
        ids.append((await seconds(served, "AddReference", pb.AddReferenceRequest, config, (0, RECORDING)))[2])
    assert ids[0] != ids[1] == ids[2]


async def test_a_recording_inside_a_request_can_be_cleaned(served):
    for trim, patches in ((False, 125), (True, 38)):
        audio = pb.EncodedAudio(data=RECORDING, trim_silence_vad=trim)
        voice = pb.Conditioning(inline_reference=pb.InlineReference(audio=audio))
        await served.generate(pb.GenerateConfig(conditioning=voice), "Hello.")
        found = served.pool.requests[-1].conditioning.reference.steps
        assert found == pytest.approx(patches * 640 / served.pool.info.input_samples_per_step, rel=0.2)
