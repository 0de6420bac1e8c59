"""The codec on a GPU: the official results in float32, near them in 16 bits, captured steps and captured decoding.

The decoder runs the kernels of `fused_decoder`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines.qwen3_codec import DEEP, MANIFEST, SHALLOW, codec, content, golden, stream, whole
from torch import Tensor

from tools.qwen3_codec_inputs import codes, recording
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.qwen3_tts.codec.layout import step_bytes
from voxcpm_grpc.models.qwen3_tts.codec.load import read_decoder
from voxcpm_grpc.models.qwen3_tts.footprint import RELEASED_CODEC
from voxcpm_grpc.request import Role

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
GPU = torch.device("cuda")
HOP = 1920
LEAST_DECIBELS = {torch.float16: 33.0, torch.bfloat16: 16.0}
"""On a CPU it is 37 and 20 dB with these weights, which are random, so that rounding errors grow."""


class RandomWeights(Weights):
    """Small random numbers in any shape."""

    def take(self, name: str, *shape: int) -> Tensor:
        return 0.02 * torch.randn(shape, dtype=self.dtype, device=self.device)


def decibels(audio: Tensor, reference: Tensor) -> float:
    """The power of a reference above that of the difference."""
    noise = audio.double() - reference.double()
    return float(10 * torch.log10(reference.double().square().sum() / noise.square().sum()))


@pytest.mark.parametrize("variant", [SHALLOW, DEEP])
def test_float32_gives_the_official_audio(variant):
    frames = torch.from_numpy(codes()).to(GPU)
    audio = stream(codec(variant, device=GPU).decoder, frames, 25).cpu()
    official = golden(variant)["audio"]
    np.testing.assert_allclose(audio[:: MANIFEST["sample_stride"]], official, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", LEAST_DECIBELS, ids=str)
def test_16_bits_are_near(dtype):
    frames = torch.from_numpy(codes(200)).to(GPU)
    audio = stream(codec(DEEP, device=GPU, dtype=dtype).decoder, frames, 1).cpu()
    assert decibels(audio, whole(DEEP)[: len(audio)]) > LEAST_DECIBELS[dtype]


@pytest.mark.parametrize("size", [4, 25])
def test_several_frames_in_a_call_give_the_audio_of_single_ones(size):
    decoder, frames = codec(DEEP, device=GPU).decoder, torch.from_numpy(codes(100)).to(GPU)
    one, several = (stream(decoder, frames, count).cpu() for count in (1, size))
    np.testing.assert_allclose(one, several, atol=1e-4, rtol=0)


@pytest.mark.parametrize("count", [1, 300, 690])
def test_a_stream_goes_on_behind_the_frames_of_a_voice(count):
    decoder = codec(DEEP, device=GPU).decoder
    state, frames = decoder.allocate(3), torch.from_numpy(codes(700))
    decoder.prime(1, frames[:count], state)
    audio = stream(decoder, frames[count : count + 10].to(GPU), 1, 1, state).cpu()
    np.testing.assert_allclose(audio, whole(DEEP)[count * HOP : (count + 10) * HOP], atol=1e-4, rtol=0)


@pytest.mark.parametrize("streams", [2, 9, 40])
def test_streams_in_a_batch_sound_as_alone(streams):
    decoder = codec(DEEP, device=GPU).decoder
    state, frames = decoder.allocate(streams + 1), torch.from_numpy(codes(20 + streams)).to(GPU)
    slots, parts = torch.arange(streams, device=GPU).flip(0), []
    for step in range(5):
        batch = torch.stack([frames[step + number] for number in range(streams)])
        parts.append(decoder.step(batch, slots, state))
    for number, row in enumerate(torch.stack(parts, dim=1)):
        alone = stream(decoder, frames[number : number + 5], 1)
        torch.testing.assert_close(row.flatten(), alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1, 3])
def test_frames_without_audio_leave_a_stream_as_it_is(size):
    decoder = codec(DEEP, device=GPU).decoder
    state, frames = decoder.allocate(4), torch.from_numpy(codes(90)).to(GPU)
    for slot in (0, 1):
        stream(decoder, frames[:80], 40, slot, state)
    before = [part[0].clone() for part in (state.kv, state.rings, state.position)]
    batch, slots = frames[80 : 80 + size].expand(2, -1, -1), torch.arange(2, device=GPU)
    audio = decoder.decode(batch, slots, state, torch.tensor([False, True], device=GPU))
    after = state.kv[0], state.rings[0], state.position[0]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    expected = whole(DEEP)[80 * HOP : (80 + size) * HOP]
    np.testing.assert_allclose(audio[1].cpu(), expected, atol=1e-4, rtol=0)


def test_a_captured_step_takes_the_memory_that_is_computed():
    """At the released sizes. Nothing keeps a workspace for each graph."""
    from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority

    weights = RandomWeights("", {}, GPU, torch.float32, torch.float32)
    decoder = read_decoder(RELEASED_CODEC.decoder, weights, torch.float16)
    pool, graphs, most = GraphPool(Priority.AUDIO, GPU), [], 64
    state = decoder.allocate(most + 1)
    codes, slots = torch.zeros(most, 16, dtype=torch.int64, device=GPU), torch.arange(most, device=GPU)
    for count in (most, 16, 1):
        decoder.step(codes[:count], slots[:count], state)  # kernels are loaded
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for count in (most, 48, 16, 8, 1):
        graphs.append(Graph(lambda count=count: decoder.step(codes[:count], slots[:count], state), pool))
    taken = torch.cuda.memory_reserved() - before
    assert taken < 1.3 * most * step_bytes(RELEASED_CODEC.decoder, torch.float16) + (64 << 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_captured_step_gives_the_audio_of_one_that_is_not(dtype):
    from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority

    decoder = codec(DEEP, device=GPU, dtype=dtype).decoder
    frames = torch.from_numpy(codes(100)).to(GPU)
    state, eager = decoder.allocate(4), decoder.allocate(4)
    slots, batch = torch.tensor([2, 0], device=GPU), torch.zeros(2, 16, dtype=torch.int64, device=GPU)
    spoken = torch.tensor([True, True], device=GPU)
    graph = Graph(lambda: decoder.step(batch, slots, state, spoken), GraphPool(Priority.AUDIO, GPU))
    state.reset(torch.arange(4, device=GPU))
    for frame in range(90):
        batch.copy_(torch.stack([frames[frame], frames[frame + 10]]))
        spoken[1] = frame % 3 != 0
        expected = decoder.step(batch, slots, eager, spoken)
        torch.cuda.synchronize()
        audio = graph.replay()
        torch.testing.assert_close(audio[0], expected[0], atol=1e-5 if dtype == torch.float32 else 5e-2, rtol=0)
    assert torch.equal(state.position[:3], eager.position[:3])


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 70.0), (torch.float16, 33.0)], ids=str)
def test_captured_decoding_gives_the_audio_of_one_pass_for_waveforms_side_by_side(dtype, least):
    captured = codec(DEEP, device=GPU, dtype=dtype).capture()
    first, second = (captured.decode({"codes": codes(60, seed).astype(np.int16)}) for seed in (1, 2))
    parts = []
    for part in first:
        parts.append(part.cpu())  # the next replay overwrites it
        assert next(second).cpu().isfinite().all()
    assert next(second, None) is None
    assert decibels(torch.cat(parts), whole(DEEP)[: 60 * HOP]) > least


@pytest.mark.parametrize("seconds", [3.0, 30.0])
def test_recordings_become_the_official_codes_and_vector(seconds):
    found = content(codec(SHALLOW, device=GPU), recording(seconds), Role.PROMPT)
    official = golden(SHALLOW)[f"codes_{seconds:g}"]
    assert (found["codes"] != official).mean() < 1e-3, "rounding may flip a choice between two near entries"
    np.testing.assert_allclose(found["speaker"], golden(SHALLOW)[f"speaker_{seconds:g}"], atol=1e-4, rtol=0)
