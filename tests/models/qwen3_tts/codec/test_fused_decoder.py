"""The decoder in few launches equals the plain one, with the definitions of its kernels and with the kernels."""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType

import pytest
import torch
from support.engines.kernels import TARGETS as TARGETS  # it selects the interpreter
from support.engines.qwen3_codec import CPU, DEEP, SHALLOW, checkpoint, codec_config, stream, whole
from torch import Tensor

from tools.qwen3_codec_inputs import codes
from voxcpm_grpc.layers.ops import TorchOps
from voxcpm_grpc.layers.weights import Weights, check, read_tensors
from voxcpm_grpc.models.qwen3_tts.codec.decoder import Decoder, DecoderState
from voxcpm_grpc.models.qwen3_tts.codec.fused_decoder import FusedDecoder
from voxcpm_grpc.models.qwen3_tts.codec.layout import lay_out, step_bytes, windows_of
from voxcpm_grpc.models.qwen3_tts.codec.load import WEIGHTS
from voxcpm_grpc.models.qwen3_tts.footprint import RELEASED_CODEC
from voxcpm_grpc.models.qwen3_tts.kernels import codec_reference as reference

HOP = 1920
SAME = 2e-5


def made(variant: str, dtype: torch.dtype = torch.float32, kernels: ModuleType = reference, **changes) -> FusedDecoder:
    config = dataclasses.replace(codec_config(checkpoint(variant)).decoder, **changes)
    return FusedDecoder(config, weights(variant).scope("decoder"), dtype, kernels, TorchOps())


def weights(variant: str) -> Weights:
    _, tensors = read_tensors(checkpoint(variant), (WEIGHTS,))
    own = {name: tensor for name, tensor in tensors.items() if name.startswith("decoder.")}
    return Weights("", own, CPU, torch.float32, torch.float32)


@functools.cache
def fused(variant: str, dtype: torch.dtype = torch.float32) -> FusedDecoder:
    return made(variant, dtype)


def frames(count: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(codes(count, seed))


def difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return (one - other).abs().max().item()


def rows(state: DecoderState, slot: int) -> list[Tensor]:
    return [getattr(state, field.name)[slot].clone() for field in dataclasses.fields(DecoderState)]


@pytest.mark.parametrize("variant", [SHALLOW, DEEP])
@pytest.mark.parametrize(("size", "count"), [(1, 160), (4, 60), (25, 100)])
def test_frames_in_calls_of_any_size_give_the_audio_of_one_pass(variant, size, count):
    assert difference(stream(fused(variant), frames(count), size), whole(variant)[: count * HOP]) < SAME


def test_calls_of_any_size_may_follow_each_other():
    decoder = fused(DEEP)
    state, parts, start = decoder.allocate(1), [], 0
    for size in (1, 71, 1, 72, 2, 1, 30):
        parts.append(stream(decoder, frames(200)[start : start + size], size, 0, state))
        start += size
    assert difference(torch.cat(parts), whole(DEEP)[: start * HOP]) < SAME


def test_all_weights_are_taken():
    own = weights(DEEP)
    FusedDecoder(codec_config(checkpoint(DEEP)).decoder, own.scope("decoder"), torch.float16, reference, TorchOps())
    check(own)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_a_stream_goes_on_behind_the_frames_of_a_voice(count):
    decoder = fused(DEEP)
    state = decoder.allocate(2)
    stream(decoder, frames(20, seed=2), 20, 1, state)  # of an earlier stream
    decoder.prime(1, frames(count).to(torch.int16), state)
    audio = stream(decoder, frames(count + 5)[count:], 1, 1, state)
    assert difference(audio, whole(DEEP)[count * HOP : (count + 5) * HOP]) < SAME


def test_no_frames_prime_nothing():
    decoder = fused(SHALLOW)
    state = decoder.allocate(1)
    stream(decoder, frames(5, seed=2), 5, 0, state)
    decoder.prime(0, frames(0), state)
    assert difference(stream(decoder, frames(4), 2, 0, state), whole(SHALLOW)[: 4 * HOP]) < SAME


def test_streams_in_a_batch_sound_as_alone():
    decoder = fused(DEEP)
    state, starts, parts = decoder.allocate(5), {3: 0, 0: 100, 2: 7}, []
    for slot, done in starts.items():
        decoder.prime(slot, frames(done), state)
    for step in range(6):
        batch = torch.stack([frames(200)[start + step] for start in starts.values()])
        parts.append(decoder.step(batch, torch.tensor([*starts]), state))
    for row, start in zip(torch.stack(parts, dim=1), starts.values(), strict=True):
        assert difference(row.flatten(), whole(DEEP)[start * HOP : (start + 6) * HOP]) < SAME


@pytest.mark.parametrize("size", [1, 3])
def test_frames_without_audio_leave_a_stream_as_it_is(size):
    decoder = fused(DEEP)
    state = decoder.allocate(4)
    for slot in (0, 1):
        stream(decoder, frames(80), 80, slot, state)
    before = rows(state, 0)
    batch = frames(80 + size)[80:].expand(2, -1, -1)
    audio = decoder.decode(batch, torch.tensor([0, 1]), state, torch.tensor([False, True]))
    assert all(torch.equal(*pair) for pair in zip(rows(state, 0), before, strict=True))
    assert difference(audio[1], whole(DEEP)[80 * HOP : (80 + size) * HOP]) < SAME
    assert difference(stream(decoder, frames(84)[80:], 1, 0, state), whole(DEEP)[80 * HOP : 84 * HOP]) < SAME


def test_a_slot_that_is_used_again_has_forgotten_its_stream():
    decoder = fused(DEEP)
    state = decoder.allocate(2)
    stream(decoder, frames(80, seed=2), 40, 1, state)
    state.kv[1, 2], state.rings[1, 100:200] = float("nan"), float("inf")  # it was broken, too
    state.reset(torch.tensor([1]))
    assert difference(stream(decoder, frames(8), 1, 1, state), whole(DEEP)[: 8 * HOP]) < SAME


def test_a_broken_stream_is_found_by_its_audio():
    decoder = fused(SHALLOW, torch.float16)
    state = decoder.allocate(2)
    stream(decoder, frames(4), 2, 0, state)
    state.rings[0, 50] = float("nan")
    audio = decoder.step(frames(1).expand(2, -1), torch.tensor([0, 1]), state)
    assert not audio[0].isfinite().all() and audio[1].isfinite().all()


@pytest.mark.parametrize(("dtype", "least"), [(torch.float16, 36), (torch.bfloat16, 18)], ids=str)
def test_16_bits_are_near(dtype, least):
    audio, exact = stream(fused(DEEP, dtype), frames(40), 1), whole(DEEP)[: 40 * HOP]
    assert audio.dtype == torch.float32
    assert 10 * torch.log10(exact.square().sum() / (audio - exact).square().sum()) > least


@pytest.mark.thorough
def test_the_kernels_give_the_audio_of_their_definitions():
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("test_cuda.py has the tests of kernels on a GPU")
    from voxcpm_grpc.models.qwen3_tts.kernels import codec

    decoder = made(DEEP, kernels=codec)
    state = decoder.allocate(3)
    decoder.prime(1, frames(2), state)
    assert difference(stream(decoder, frames(4)[2:], 1, 1, state), whole(DEEP)[2 * HOP : 4 * HOP]) < SAME


def test_the_memory_of_a_stream_is_that_of_the_plain_decoder():
    plain = Decoder(fused(DEEP).config, weights(DEEP).scope("decoder")).allocate(3)
    ours = fused(DEEP).allocate(3)
    assert [part.shape for part in rows(ours, 0)] == [part.shape for part in rows(plain, 0)]


def test_windows_do_not_overlap():
    layout = lay_out(windows_of(RELEASED_CODEC.decoder), 3, 2)
    ends = [a + n * w.channels for a, n, w in zip(layout.starts, layout.samples, layout.windows, strict=True)]
    assert all(end <= start for end, start in zip(ends, [*layout.starts[1:], layout.width], strict=True))
    assert layout.samples[0] == 2 + 3 and layout.samples[-1] == 6 + 2 * HOP


def test_a_step_of_the_released_codec_takes_few_megabytes_a_stream():
    assert step_bytes(RELEASED_CODEC.decoder, torch.float16) == pytest.approx(5.3e6, rel=0.01)
    assert step_bytes(RELEASED_CODEC.decoder, torch.float32) == pytest.approx(9.1e6, rel=0.01)
