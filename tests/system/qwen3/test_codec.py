"""The codec over all frames of the goldens: each grouping of frames, and voices of each length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines.qwen3_codec import DEEP, MANIFEST, SHALLOW, codec, golden, stream, whole

from tools.qwen3_codec_inputs import codes, recording
from voxcpm_grpc.request import Role

HOP, FRAMES, MORE = 1920, 700, 20
OFFICIAL, SAME = 1e-4, 2e-5


@pytest.mark.parametrize(("variant", "size"), [(SHALLOW, 1), (DEEP, 4), (DEEP, 25)])
def test_700_frames_in_calls_of_any_size_give_the_official_audio_and_that_of_one_pass(variant, size):
    audio = stream(codec(variant).decoder, torch.from_numpy(codes()), size)
    np.testing.assert_allclose(audio, whole(variant), atol=SAME, rtol=0)
    official = golden(variant)["audio"]
    np.testing.assert_allclose(audio[:: MANIFEST["sample_stride"]], official, atol=OFFICIAL, rtol=0)


@pytest.mark.parametrize("variant", [SHALLOW, DEEP])
@pytest.mark.parametrize("voice", [40, 300, 700])
def test_a_stream_behind_a_voice_sounds_as_one_pass(variant, voice):
    decoder = codec(variant).decoder
    frames = torch.from_numpy(codes(FRAMES + MORE))
    state = decoder.allocate(1)
    decoder.prime(0, frames[:voice], state)
    audio = stream(decoder, frames[voice : voice + MORE], 1, 0, state)
    one_pass = stream(decoder, frames[: voice + MORE], FRAMES + MORE)[voice * HOP :]
    np.testing.assert_allclose(audio, one_pass, atol=SAME, rtol=0)


def test_a_stream_of_ten_minutes_sounds_as_its_last_minute_alone():
    decoder, frames = codec(SHALLOW).decoder, torch.from_numpy(codes(7500))
    audio = stream(decoder, frames, 25)[-10 * HOP :]
    alone = stream(decoder, frames[-decoder.config.reach - 10 :], 25)[-10 * HOP :]
    np.testing.assert_allclose(audio, alone, atol=SAME, rtol=0)


def test_a_recording_of_two_minutes_becomes_codes_in_chunks():
    chunks = list(codec(SHALLOW).encode(recording(120.0), Role.PROMPT))
    assert sum(len(chunk) for name, chunk in chunks if name == "codes") == 1501
