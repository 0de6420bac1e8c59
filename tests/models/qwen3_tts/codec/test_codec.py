"""The codec as an engine uses it: named arrays of a voice in bounded chunks, and their audio."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.engines.qwen3_codec import CPU, DEEP, SHALLOW, checkpoint, codec, codec_config, content, golden, whole

from tools.qwen3_codec_inputs import codes, recording
from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.models.qwen3_tts.codec.decoder import Decoder
from voxcpm_grpc.models.qwen3_tts.codec.load import load_codec
from voxcpm_grpc.request import Role

HOP = 1920


def test_a_prompt_has_codes_and_the_vector_of_its_speaker():
    found = content(codec(SHALLOW), recording(3.0), Role.PROMPT)
    assert {name: array.dtype for name, array in found.items()} == {"codes": np.int16, "speaker": np.float32}
    assert np.array_equal(found["codes"], golden(SHALLOW)["codes_3"])
    np.testing.assert_allclose(found["speaker"], golden(SHALLOW)["speaker_3"], atol=1e-4, rtol=0)


def test_a_reference_has_the_vector_of_its_speaker_alone():
    found = content(codec(DEEP), recording(3.0), Role.REFERENCE)
    assert found.keys() == {"speaker"}
    np.testing.assert_allclose(found["speaker"], golden(DEEP)["speaker_3"], atol=1e-4, rtol=0)


def test_silence_follows_a_prompt_before_it_is_encoded():
    waveform = recording(3.0)
    found = content(codec(SHALLOW, silence=0.5), waveform, Role.PROMPT)
    followed = content(codec(SHALLOW), np.concatenate([waveform, np.zeros(12000, np.float32)]), Role.PROMPT)
    assert len(found["codes"]) == -(-(len(waveform) + 12000) // HOP)
    assert np.array_equal(found["codes"], followed["codes"])
    np.testing.assert_allclose(found["speaker"], golden(SHALLOW)["speaker_3"], atol=1e-4, rtol=0)


def test_chunks_of_a_recording_are_bounded():
    chunks = list(codec(SHALLOW).encode(recording(12.0), Role.PROMPT))
    lengths = [len(chunk) for name, chunk in chunks if name == "codes"]
    assert max(lengths) <= 8 and sum(lengths) == len(golden(SHALLOW)["codes_12"])
    speaker = [len(chunk) for name, chunk in chunks if name == "speaker"]
    assert len(speaker) > 20 and speaker[-1] == 64 and not any(speaker[:-1]), "work that has no result yet"


def test_the_audio_of_codes_comes_in_bounded_chunks():
    chunks = list(codec(DEEP).decode({"codes": codes(60).astype(np.int16), "speaker": np.zeros(64, np.float32)}))
    assert [len(chunk) for chunk in chunks] == [8 * HOP] * 7 + [4 * HOP]
    assert all(chunk.is_contiguous() and chunk.dtype == torch.float32 for chunk in chunks)
    np.testing.assert_allclose(torch.cat(chunks), whole(DEEP)[: 60 * HOP], atol=2e-5, rtol=0)


def test_waveforms_that_are_decoded_side_by_side_do_not_touch_each_other():
    first, second = codes(24), codes(24, seed=2)
    alone = [list(codec(SHALLOW).decode({"codes": one})) for one in (first, second)]
    turns = zip(*(codec(SHALLOW).decode({"codes": one}) for one in (first, second)), strict=True)
    for together, apart in zip(turns, zip(*alone, strict=True), strict=True):
        assert all(torch.equal(*pair) for pair in zip(together, apart, strict=True))


def test_empty_input_gives_no_chunks():
    assert list(codec(SHALLOW).encode(np.zeros(0, np.float32), Role.PROMPT)) == []
    assert list(codec(SHALLOW).decode({"codes": np.zeros((0, 16), np.int16)})) == []
    assert list(codec(SHALLOW).decode({"speaker": np.zeros(64, np.float32)})) == []


@pytest.mark.parametrize("role", Role)
def test_a_recording_that_is_too_short_is_refused_at_once(role):
    chunks = codec(SHALLOW).encode(np.zeros(1000, np.float32), role)
    with pytest.raises(InvalidRequest, match=r"1000 samples \(42 ms\).*1280"):
        next(chunks)


def test_a_codec_without_encoders_only_decodes():
    directory = checkpoint(SHALLOW)
    decoding = load_codec(directory, codec_config(directory), device=CPU, dtype=torch.float32)
    assert [*decoding.encode(recording(3.0), Role.REFERENCE)] == []
    assert len(next(decoding.decode({"codes": codes(3)}))) == 3 * HOP


def test_tensors_that_a_captured_decoding_reads_live_as_long_as_it(monkeypatch):
    """A graph keeps their addresses alone. Freed memory was read as the index of a slot."""
    read = []

    def decode(decoder, codes, slot, memory):
        read.append(weakref.ref(slot))
        return torch.zeros(1, codes.shape[1] * HOP)

    module = "voxcpm_grpc.models.qwen3_tts.codec.codec"
    monkeypatch.setattr(Decoder, "decode", decode)
    monkeypatch.setattr(f"{module}.GraphPool", lambda priority, device: None)
    monkeypatch.setattr(f"{module}.Graph", lambda call, pool: SimpleNamespace(output=call()))
    captured = codec(SHALLOW).capture()
    gc.collect()
    assert [slot().tolist() for slot in read] == [[0]], captured
