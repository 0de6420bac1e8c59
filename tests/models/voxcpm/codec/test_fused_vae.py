"""The decoder in few launches equals the reference in float32, and is within a tolerance in float16."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.codec.vae import StreamingDecoder, build_decoder
from voxcpm_grpc.models.voxcpm.config.config import VAE2Config, VAEConfig

pytestmark = pytest.mark.thorough

TOOL = Path(__file__).parents[4] / "tools" / "make_checkpoint.py"
SMALL: dict[str, Any] = {"decoder_dim": 24, "latent_dim": 6, "decoder_rates": [3, 2]}
LONG: dict[str, Any] = SMALL | {"decoder_rates": [27, 2]}  # many samples of a frame
NOISE_DB, PEAK = 45, 0.03  # float16 against float32: signal over error, and the largest error over the signal's rms
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]),
]


@pytest.fixture(scope="module")
def fused():
    pytest.importorskip("triton")
    from voxcpm_grpc.models.voxcpm.codec.fused_vae import FusedDecoder

    return FusedDecoder


def truth(device: str, full: bool = False, model: str = "VoxCPM2", **changes) -> StreamingDecoder:
    """A decoder with random weights."""
    tool = runpy.run_path(str(TOOL))
    config = tool["config"](full, "float32", model)["audio_vae_config"] | changes
    tensors = tool["vae_tensors"](config, tool["Random"](1, device))
    shape = {name: config[name] for name in SMALL}
    shape["decoder_rates"] = tuple(shape["decoder_rates"])
    weights = Weights("random", tensors, torch.device(device), torch.float32, torch.float32)
    return build_decoder((VAE2Config if model == "VoxCPM2" else VAEConfig)(**shape), weights)


def latents(streams: int, patches: int, size: int, device: str) -> torch.Tensor:
    return torch.randn(streams, patches, 4, size, generator=torch.Generator().manual_seed(streams)).to(device)


def memory(decoder, slots: int, device: str) -> torch.Tensor:
    return torch.zeros(slots, decoder.memory, dtype=decoder.dtype, device=device)


def whole(net: StreamingDecoder, patches: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(len(patches), device=patches.device)
    return net.decode(patches, memory(net, len(patches), patches.device.type), rows)


def assert_near(ours: torch.Tensor, exact: torch.Tensor) -> None:
    error, level = ours - exact, exact.square().mean().sqrt()
    assert 20 * torch.log10(level / error.square().mean().sqrt()) > NOISE_DB
    assert error.abs().max() < PEAK * level


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("changes", [SMALL, SMALL | {"decoder_dim": 48, "decoder_rates": [2, 5]}], ids=["3x2", "2x5"])
def test_chunks_of_any_length_equal_the_reference_in_any_slot(fused, device, changes):
    net = truth(device, **changes)
    decoder = fused(net, torch.float32)
    assert decoder.memory == net.memory
    patches, slot = latents(2, 6, 6, device), torch.tensor([3, 1], device=device)
    state = memory(decoder, 5, device)
    state[[0, 2, 4]] = 7
    pieces = [decoder.decode(x, state, slot) for x in patches.split([1, 3, 2], dim=1)]
    exact = whole(net, patches)
    assert (torch.cat(pieces, 1) - exact).abs().max() < 1e-5 * exact.abs().max()
    assert (state[[0, 2, 4]] == 7).all()


def test_a_decoder_without_conditioning_equals_the_reference(fused):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    changes: dict[str, Any] = SMALL | {"decoder_rates": [7, 3]}
    net = truth(device, model="VoxCPM1.5", **changes)
    assert net.has_kernels
    patches = latents(2, 2, 6, device)
    audio = whole(fused(net, torch.float32), patches)
    exact = whole(net, patches)
    assert (audio - exact).abs().max() < 1e-5 * exact.abs().max()


def test_more_streams_than_one_group_of_windows(fused, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.models.voxcpm.codec.fused_vae.GROUP", 2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = truth(device, **SMALL)
    decoder, patches = fused(net, torch.float32), latents(3, 1, 6, device)
    audio = decoder.decode(patches, memory(decoder, 3, device), torch.arange(3, device=device))
    exact = whole(net, patches)
    assert (audio - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.fixture(params=[False, True], ids=["sums", "pairs"])
def units_of_two_streams(request, monkeypatch):
    """In place of the kernel: the units of a block of stride 2 by their definition, for two streams and more."""
    from voxcpm_grpc.kernels.conv import reference
    from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable

    calls = []

    class Units:
        def __init__(self, upsample, units):
            if len(upsample.bias) != 2 * len(units[0][0].bias):
                raise KernelUnavailable("the first block")
            self.modules, self.pairs = (upsample, units), request.param

        def serves(self, streams, samples):
            return streams >= 2 and samples >= 54

        def __call__(self, x, before, after, out):
            calls.append(len(x))
            reference.residual_units(x, before, after, out, *self.modules, self.pairs)

    monkeypatch.setattr("voxcpm_grpc.models.voxcpm.codec.fused_vae.ResidualUnits", Units)
    return calls


def test_units_in_one_launch_replace_their_past_inputs(fused, units_of_two_streams):
    net = truth("cpu", **LONG)
    decoder = fused(net, torch.float32)
    patches, slot = latents(2, 4, 6, "cpu"), torch.tensor([3, 1])
    state = memory(decoder, 5, "cpu")
    state[[0, 2, 4]] = 7
    pieces = [decoder.decode(x, state, slot) for x in patches.split([1, 2, 1], dim=1)]
    exact = whole(net, patches)
    assert units_of_two_streams == [2, 2, 2]
    assert (torch.cat(pieces, 1) - exact).abs().max() < 1e-5 * exact.abs().max()
    assert (state[[0, 2, 4]] == 7).all()


def alternated(decoder, patches: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """The audio of streams that are decoded in groups of another size at each step."""
    streams, device = len(patches), patches.device.type
    state, order = memory(decoder, streams, device), torch.arange(streams, device=device)
    steps = [
        torch.cat([decoder.decode(patches[rows, i : i + 1], state, rows) for rows in order.split(count)])
        for i, count in enumerate(counts)
    ]
    return torch.cat(steps, 1)


def test_streams_move_between_numbers_of_streams(fused, units_of_two_streams):
    net = truth("cpu", **LONG)
    patches = latents(3, 4, 6, "cpu")
    audio, exact = alternated(fused(net, torch.float32), patches, [3, 1, 2, 3]), whole(net, patches)
    assert units_of_two_streams == [3, 2, 3]
    assert (audio - exact).abs().max() < 1e-5 * exact.abs().max()


def test_modules_of_another_design_are_refused(fused):
    net = truth("cpu", **SMALL)
    with pytest.raises(ValueError, match="fused decoder"):
        fused(StreamingDecoder(net.modules[:-1], net.tails), torch.float32)


released = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(scope="module", params=["VoxCPM2", "VoxCPM1.5", "VoxCPM-0.5B"])
def net(request) -> StreamingDecoder:
    return truth("cuda", full=True, model=request.param)


@pytest.fixture(scope="module")
def decoder(net, fused):
    return fused(net, torch.float16)


class TestReleasedSize:
    pytestmark = released

    @pytest.mark.parametrize("streams", [1, 2, 7, 8, 33, 64])
    def test_a_captured_step_is_near_the_reference(self, net, decoder, streams):
        """The rows after the streams share the scratch slot, as padding rows do."""
        padding, steps = streams % 8, 5
        patches = latents(streams, steps, 64, "cuda")
        order = torch.randperm(80, generator=torch.Generator().manual_seed(1))[:streams].cuda()
        slot = torch.cat([order, torch.full((padding,), 80, device="cuda")])
        state, rows = memory(decoder, 81, "cuda"), torch.zeros(streams + padding, 1, 4, 64, device="cuda")
        decoder.decode(rows, state, slot)  # compiles; the state is cleared below
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            audio = decoder.decode(rows, state, slot)
        state.zero_()
        pieces = []
        for i in range(steps):
            rows[:streams] = patches[:, i : i + 1]
            graph.replay()
            pieces.append(audio[:streams].clone())
        assert_near(torch.cat(pieces, 1), whole(net, patches))
        unused = torch.ones(80, dtype=torch.bool, device="cuda")
        unused[order] = False
        assert not state[:80][unused].any()

    def test_streams_move_between_numbers_of_streams(self, net, decoder):
        patches = latents(33, 7, 64, "cuda")
        audio = alternated(decoder, patches, [33, 1, 16, 8, 33, 12, 16])
        assert_near(audio, whole(net, patches))

    def test_streaming_is_near_the_whole_result(self, net, decoder):
        patches = latents(1, 12, 64, "cuda")
        state, slot = memory(decoder, 1, "cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
        pieces = [decoder.decode(x, state, slot) for x in patches.split(1, dim=1)]
        at_once = decoder.decode(patches, memory(decoder, 1, "cuda"), slot)
        assert_near(torch.cat(pieces, 1), at_once)
        assert_near(at_once, whole(net, patches))

    def test_a_broken_stream_does_not_affect_others(self, decoder):
        patches = latents(4, 1, 64, "cuda")
        slot = torch.arange(4, device="cuda")
        expected = decoder.decode(patches, memory(decoder, 4, "cuda"), slot)
        patches[2, 0, 1, 5] = float("nan")
        audio = decoder.decode(patches, memory(decoder, 4, "cuda"), slot)
        assert audio[2].isnan().any()
        assert torch.equal(audio[[0, 1, 3]], expected[[0, 1, 3]])
