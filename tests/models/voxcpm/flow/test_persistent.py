"""A single stream uses the loop and the patch encoder in one launch each where they serve, with the same results."""

import logging
from dataclasses import replace

import pytest
import torch
from support.engines.full_size import full_size  # noqa: F401
from support.engines.plans import plan_of

from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority
from voxcpm_grpc.models.base import Frame
from voxcpm_grpc.models.voxcpm.flow.local import PatchEncoder
from voxcpm_grpc.models.voxcpm.flow.persistent import (
    PersistentLoop,
    encoder_weights,
    flow_weights,
    persistent_encoder,
    persistent_flow,
)
from voxcpm_grpc.models.voxcpm.kernels.persistent import PersistentEncoder
from voxcpm_grpc.request import Request, Sampling

TIMESTEPS = (1, 4, 6, 10)  # the first has no evaluation
LIMIT = 1e-2  # bfloat16 activations against float32


def test_another_shape_than_the_released_one_is_refused(load):
    with pytest.raises(KernelUnavailable, match=r"1024, 4096, 16, 2, 128, 64, 1.*not \(20, 52"):
        flow_weights(load().networks.dit)
    with pytest.raises(KernelUnavailable, match=r"1024, 4096, 16, 2, 128, 64, 1.*not \("):
        encoder_weights(load().networks.encode_patch)


def test_a_model_that_the_kernel_does_not_serve_is_logged(load, caplog):
    with caplog.at_level(logging.INFO):
        assert persistent_flow(load().networks.dit) is None
        assert persistent_encoder(load().networks.encode_patch) is None
    assert len(caplog.records) == 2
    assert all("1024, 4096, 16, 2, 128, 64" in record.message for record in caplog.records)


def test_a_cpu_logs_nothing_about_the_kernel(load, caplog):
    with caplog.at_level(logging.INFO):
        model = load()
    assert model.flow.single is model.flow.batch
    assert model.encode_patch.single is model.encode_patch.batch
    assert not caplog.records


@pytest.mark.parametrize(("streams", "timesteps", "used"), [(1, 4, True), (1, 10, True), (2, 4, False), (1, 1, False)])
def test_only_a_batch_of_one_uses_the_kernel(load, streams, timesteps, used):
    model = load(timesteps=TIMESTEPS)
    flow, hidden = model.flow, model.networks.dit.hidden
    inputs = [torch.randn(streams, *shape) for shape in ((8, 4), (2, hidden), (4, 8))] + [torch.full((streams,), 2.0)]
    inputs[0] = inputs[0].transpose(1, 2)  # noise is drawn channel by channel
    calls = []

    def kernel(noise, mu, condition, cfg, tokens, sizes):
        calls.append((tokens.shape, sizes.shape))
        assert noise.is_contiguous()
        assert sizes.dtype == torch.float32
        return flow.batch(noise, mu, condition, cfg, flow.schedules[timesteps])

    out = replace(flow, single=PersistentLoop(kernel))(*inputs, timesteps)
    assert torch.allclose(out, flow(*inputs, timesteps), atol=1e-5)  # a CPU may round noise of another layout otherwise
    evaluations = len(flow.schedules[timesteps].schedule.size)
    assert calls == [((evaluations, hidden), (evaluations,))] * used


def test_only_one_patch_uses_the_encoder_of_one_patch():
    encode = PatchEncoder(single=lambda patches: -patches, batch=lambda patches: patches)
    for count, sign in ((1, -1), (2, 1)):
        patches = torch.randn(count, 4, 8)
        assert torch.equal(encode(patches), sign * patches)


@pytest.fixture(scope="module")
def trio(load, full_size):  # noqa: F811
    """The model with the kernel, without it, and the reference in float32 with the same weights."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is written for compute capability 9.0")
    device = torch.device("cuda", 0)
    fast = load(full_size, device=device, dtype=torch.bfloat16, timesteps=TIMESTEPS)
    plain = load(full_size, device=device, dtype=torch.bfloat16, timesteps=TIMESTEPS, persistent=False)
    truth = load(full_size, device=device, timesteps=TIMESTEPS)
    assert isinstance(fast.flow.single, PersistentLoop)
    assert not isinstance(plain.flow.single, PersistentLoop)
    assert isinstance(fast.encode_patch.single, PersistentEncoder)
    assert not isinstance(plain.encode_patch.single, PersistentEncoder)
    yield fast, plain, truth
    torch.cuda.empty_cache()


def begin(run, cfg: float, temperature: float) -> None:
    """Set slot 1 to a state in the middle of speech, the same in every model except for its dtype."""
    generator = torch.Generator("cuda").manual_seed(int(10 * cfg + temperature))
    state = run.state
    for name in ("semantic", "acoustic", "condition"):
        part = getattr(state.model, name)
        part[1] = torch.randn(part[1].shape, generator=generator, device="cuda").bfloat16()
    state.model.codec.zero_()
    for column, value in ((state.model.cfg, cfg), (state.model.temperature, temperature), (state.seed, 7)):
        column[1] = value
    for column in (state.step, state.model.patches, state.position):
        column.zero_()


def make_frame(model, run, timesteps: int) -> Frame:
    """The next frame of slot 1."""
    slot = torch.ones(1, dtype=torch.int64, device="cuda")
    model.generate(slot, timesteps, run.state)
    return model.decode(slot, run.state)


@pytest.mark.gpu
@pytest.mark.parametrize("timesteps", TIMESTEPS)
@pytest.mark.parametrize(("cfg", "temperature"), [(2.0, 1.0), (1.0, 0.7), (3.5, 0.0)])
@torch.inference_mode()
def test_a_single_stream_agrees_with_and_without_the_kernel(trio, driver, timesteps, cfg, temperature):
    patches, audio = [], []
    for model in trio:
        run = driver(model)
        begin(run, cfg, temperature)
        frame = make_frame(model, run, timesteps)
        assert frame.finite.all()
        patches.append(run.state.model.history[1, 0].float())
        audio.append(frame.audio)
    fast, plain, truth = patches
    scale = truth.norm() or 1.0
    error, allowed = (fast - truth).norm() / scale, max(LIMIT, float((plain - truth).norm() / scale))
    assert error <= allowed, f"relative error {error:.2e}, without the kernel {allowed:.2e}"
    assert torch.cosine_similarity(*(a.float() for a in audio[:2])) > 0.99


@pytest.mark.gpu
@torch.inference_mode()
def test_one_patch_is_encoded_alike_with_and_without_the_kernel(trio):
    patch = torch.randn(1, 4, 64, device="cuda").bfloat16()
    fast, plain, truth = (model.encode_patch(patch.to(model.networks.embedding.dtype)).float() for model in trio)
    error, allowed = ((out - truth).norm() / truth.norm() for out in (fast, plain))
    assert error <= max(LIMIT, allowed), f"relative error {error:.2e}, without the kernel {allowed:.2e}"


@pytest.mark.gpu
@pytest.mark.parametrize("timesteps", [4, 10])
@torch.inference_mode()
def test_a_captured_stream_equals_a_call(trio, driver, timesteps):
    fast = trio[0]
    run = driver(fast)
    begin(run, 2.0, 1.0)
    expected = make_frame(fast, run, timesteps).audio.clone()
    graph = Graph(lambda: make_frame(fast, run, timesteps), GraphPool(Priority.STEP, torch.device("cuda")))
    for _ in range(3):
        begin(run, 2.0, 1.0)
        assert torch.equal(graph.replay().audio, expected)


@pytest.mark.gpu
def test_the_kernels_are_used_by_a_step_of_one_stream_only(trio, driver, monkeypatch):
    fast, calls = trio[0], []
    run = driver(fast)
    for slot in (0, 1):
        run.start(slot, plan_of(fast, Request(id="a", text="Hello there.")), Sampling())
    for name in ("flow", "encode_patch"):
        part = getattr(fast, name)

        def single(*inputs, name=name, call=part.single):
            calls.append((name, len(inputs[0])))
            return call(*inputs)

        monkeypatch.setattr(fast, name, replace(part, single=single))
    run.step(1, timesteps=4)
    run.step(0, 1, timesteps=4)
    assert calls == [("flow", 1), ("encode_patch", 1)]
