"""The decoder gives the official audio, however its frames are grouped, and streams do not touch each other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.engines.qwen3_codec import (
    CPU,
    DEEP,
    MANIFEST,
    SHALLOW,
    checkpoint,
    codec,
    codec_config,
    golden,
    stream,
    whole,
)
from torch import Tensor

from tools.qwen3_codec_inputs import codes
from voxcpm_grpc.layers.weights import Weights, read_tensors
from voxcpm_grpc.models.qwen3_tts.codec.decoder import AudioDecoder, Decoder, DecoderState
from voxcpm_grpc.models.qwen3_tts.codec.load import WEIGHTS

HOP = 1920
OFFICIAL, SAME = 1e-4, 2e-5  # to the official package, and between groupings of frames


def difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return (one - other).abs().max().item()


def frames(count: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(codes(count, seed))


def slots(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


@pytest.fixture(scope="module")
def deep() -> AudioDecoder:
    return codec(DEEP).decoder


@pytest.mark.parametrize("variant", [SHALLOW, DEEP])
def test_one_pass_gives_the_official_audio(variant):
    audio = whole(variant)
    assert len(audio) == MANIFEST["frames"] * HOP
    official = golden(variant)["audio"]
    assert np.abs(official).max() < 0.9, "the clamp must hide nothing"
    np.testing.assert_allclose(audio[:: MANIFEST["sample_stride"]], official, atol=OFFICIAL, rtol=0)


@pytest.mark.parametrize("variant", [SHALLOW, DEEP])
@pytest.mark.parametrize(("size", "count"), [(1, 90), (4, 200), (25, 300)])
def test_frames_in_several_calls_give_the_audio_of_one_pass(variant, size, count):
    audio = stream(codec(variant).decoder, frames(count), size)
    assert difference(audio, whole(variant)[: count * HOP]) < SAME


def test_calls_of_any_size_may_follow_each_other(deep):
    state, parts, start = deep.allocate(1), [], 0
    for size in (1, 71, 72, 2, 143, 10):
        parts.append(deep.decode(frames(400)[None, start : start + size], slots(0), state)[0])
        start += size
    assert difference(torch.cat(parts), whole(DEEP)[: start * HOP]) < SAME


@pytest.mark.parametrize(("variant", "count"), [(SHALLOW, 40), (SHALLOW, 300), (DEEP, 1), (DEEP, 300), (DEEP, 690)])
def test_a_stream_goes_on_behind_the_frames_of_a_voice(variant, count):
    decoder = codec(variant).decoder
    state = decoder.allocate(2)
    stream(decoder, frames(20, seed=2), 20, 1, state)  # of an earlier stream
    decoder.prime(1, frames(count), state)
    audio = stream(decoder, frames(700)[count : count + 10], 1, 1, state)
    assert difference(audio, whole(variant)[count * HOP : (count + 10) * HOP]) < SAME


def test_a_stream_that_follows_the_last_72_frames_of_a_voice_alone_is_wrong(deep):
    state = deep.allocate(1)
    deep.prime(0, frames(300)[-72:], state)
    audio = stream(deep, frames(310)[300:], 10, 0, state)
    assert difference(audio, whole(DEEP)[300 * HOP : 310 * HOP]) > 1e-3


def test_no_frames_prime_nothing(deep):
    state = deep.allocate(1)
    stream(deep, frames(20, seed=2), 20, 0, state)
    deep.prime(0, frames(0), state)
    assert difference(stream(deep, frames(10), 10, 0, state), whole(DEEP)[: 10 * HOP]) < SAME


def test_the_released_codec_reaches_580_frames_back(deep):
    assert (deep.config.num_hidden_layers, deep.config.sliding_window) == (8, 72)
    assert (deep.config.context, deep.config.reach) == (10, 580)


def test_priming_takes_all_frames_that_audio_depends_on_and_no_more():
    """With a short window, so that the oldest of these frames count for more than rounding."""
    config = dataclasses.replace(codec_config(checkpoint(SHALLOW)).decoder, sliding_window=2, num_hidden_layers=2)
    _, tensors = read_tensors(checkpoint(SHALLOW), (WEIGHTS,))
    weights = Weights("", tensors, CPU, torch.float32, torch.float32)
    decoder = Decoder(config, weights.scope("decoder"))
    assert config.reach == 10 + 2 * 1 + 2
    known = frames(60)
    expected = stream(decoder, known, 60)[-HOP:]

    def last(changed: int) -> Tensor:
        others = known.clone()
        others[59 - changed] = (others[59 - changed] + 7) % config.codebook_size
        return stream(decoder, others, 60)[-HOP:]

    assert torch.equal(last(config.reach + 1), expected)
    assert not torch.equal(last(config.reach), expected)
    state = decoder.allocate(1)
    decoder.prime(0, known[:59], state)
    assert difference(stream(decoder, known[59:], 1, 0, state), expected) < SAME


def test_streams_in_a_batch_sound_as_alone(deep):
    state = deep.allocate(5)
    for slot, done in ((3, 0), (0, 100), (2, 7)):
        deep.prime(slot, frames(done), state)
    starts, parts = {3: 0, 0: 100, 2: 7}, []
    for step in range(12):
        batch = torch.stack([frames(200)[start + step] for start in starts.values()])
        parts.append(deep.step(batch, slots(*starts), state))
    for row, start in zip(torch.stack(parts, dim=1), starts.values(), strict=True):
        assert difference(row.flatten(), whole(DEEP)[start * HOP : (start + 12) * HOP]) < SAME


def test_a_slot_that_is_used_again_has_forgotten_its_stream(deep):
    state = deep.allocate(2)
    stream(deep, frames(150, seed=2), 75, 1, state)
    state.kv[1, 2], state.rings[1, 100:200] = float("nan"), float("inf")  # it was broken, too
    state.reset(slots(1))
    assert difference(stream(deep, frames(20), 5, 1, state), whole(DEEP)[: 20 * HOP]) < SAME


def test_a_stream_whose_rows_were_copied_to_another_slot_goes_on_there(deep):
    state = deep.allocate(3)
    stream(deep, frames(85), 85, 0, state)
    saved = [getattr(state, field.name)[0].clone() for field in dataclasses.fields(DecoderState)]
    stream(deep, frames(30, seed=2), 30, 0, state)
    for field, row in zip(dataclasses.fields(DecoderState), saved, strict=True):
        getattr(state, field.name)[2] = row
    audio = stream(deep, frames(95)[85:], 1, 2, state)
    assert difference(audio, whole(DEEP)[85 * HOP : 95 * HOP]) < SAME


def test_a_step_without_audio_leaves_a_stream_as_it_is(deep):
    state = deep.allocate(4)
    for slot in (0, 1):
        stream(deep, frames(80), 80, slot, state)
    before = [getattr(state, field.name)[0].clone() for field in dataclasses.fields(DecoderState)]
    spoken = torch.tensor([False, True])
    audio = deep.step(frames(81)[[80, 80]], slots(0, 1), state, spoken)
    for field, row in zip(dataclasses.fields(DecoderState), before, strict=True):
        assert torch.equal(getattr(state, field.name)[0], row)
    assert difference(audio[1], whole(DEEP)[80 * HOP : 81 * HOP]) < SAME
    assert difference(stream(deep, frames(90)[80:], 5, 0, state), whole(DEEP)[80 * HOP : 90 * HOP]) < SAME


def test_codes_that_are_none_become_the_nearest_ones(deep):
    last = deep.config.codebook_size - 1
    odd, clamped = frames(2), frames(2)
    odd[0, 0], odd[1, 3] = last + 103, -1
    clamped[0, 0], clamped[1, 3] = last, 0
    assert torch.equal(stream(deep, odd, 1), stream(deep, clamped, 1))
    small = odd.to(torch.int16)
    assert torch.equal(stream(deep, small, 1), stream(deep, clamped, 1))


def test_a_stream_has_no_last_position():
    """Positions stay below twice the window, so that no angle grows."""
    decoder = codec(SHALLOW).decoder
    state, parts = decoder.allocate(1), []
    for _ in range(8):
        parts.append(stream(decoder, frames(60), 30, 0, state))
        assert 0 < int(state.position[0]) < 2 * decoder.config.past
    assert difference(parts[3], parts[7]) < SAME, "the same frames are within the reach of both"


def test_16_bits_are_near(deep):
    audio = stream(codec(DEEP, dtype=torch.float16).decoder, frames(12), 3)
    expected = whole(DEEP)[: 12 * HOP]
    assert audio.dtype == torch.float32
    assert 30 < 10 * torch.log10(expected.square().sum() / (audio - expected).square().sum()) < 60
