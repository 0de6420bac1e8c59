"""The diffusion for a CPU computes what the plain loop does, for the number of sequences that it serves."""

import json

import pytest
import torch
from support.engines.checkpoints import OLDER, TINY

from voxcpm_grpc.layers.packed import packing_serves
from voxcpm_grpc.models.voxcpm.flow.cpu_flow import CpuFlow, CpuNetwork, cpu_network
from voxcpm_grpc.models.voxcpm.flow.flow import PlainFlow

needs_onednn = pytest.mark.skipif(not packing_serves(), reason="needs oneDNN's products")


def inputs(model, streams):
    patch, dit = (model.config.patch_size, model.config.feat_dim), model.networks.dit
    mu = torch.randn(streams, dit.mu_tokens, dit.hidden)
    return torch.randn(streams, *patch), mu, torch.randn(streams, *patch), torch.linspace(1, 3, streams)


def counted(evaluate, calls):
    def call(*arguments):
        calls.append(len(arguments[0]))
        return evaluate(*arguments)

    return call


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=needs_onednn)])
@pytest.mark.parametrize("layers", [1, None])
@pytest.mark.parametrize("path", [TINY, *OLDER], ids=lambda path: path.name)
@torch.inference_mode()
def test_every_generation_computes_what_the_plain_loop_does(load, path, layers, packed):
    model = load(path)
    dit, schedule = model.networks.dit, model.flow.schedules[10]
    dit.stack.layers = dit.stack.layers[:layers]
    flow = CpuFlow(PlainFlow(dit), CpuNetwork(dit, packed=packed))
    for streams in (1, 2, 5):
        arguments = inputs(model, streams)
        noise = arguments[0].clone()
        torch.testing.assert_close(flow(*arguments, schedule), PlainFlow(dit)(*arguments, schedule), atol=2e-5, rtol=0)
        assert torch.equal(arguments[0], noise)


def test_a_scale_of_the_branches_is_part_of_their_maps(load, checkpoint):
    path = checkpoint / "config.json"
    content = json.loads(path.read_text())
    content["lm_config"]["use_mup"] = True
    path.write_text(json.dumps(content))
    model = load(checkpoint)
    assert model.networks.dit.stack.shape.residual_scale != 1
    arguments, schedule = inputs(model, 2), model.flow.schedules[10]
    flow = CpuFlow(PlainFlow(model.networks.dit), CpuNetwork(model.networks.dit, packed=False))
    torch.testing.assert_close(flow(*arguments, schedule), flow.plain(*arguments, schedule), atol=2e-5, rtol=0)


def test_a_batch_of_a_compiled_size_uses_its_evaluation(tiny):
    dit, calls, schedule = tiny.networks.dit, [], tiny.flow.schedules[10]
    flow = CpuFlow(PlainFlow(dit), None, {2: counted(CpuNetwork(dit, packed=False), calls)})
    for streams in (1, 2, 3):
        arguments = inputs(tiny, streams)
        torch.testing.assert_close(flow(*arguments, schedule), PlainFlow(dit)(*arguments, schedule), atol=1e-5, rtol=0)
    assert calls == [2] * len(schedule.sizes)


def test_a_batch_with_adapters_takes_the_plain_loop(tiny):
    dit, calls = tiny.networks.dit, []
    flow = CpuFlow(PlainFlow(dit), None, {2: counted(CpuNetwork(dit, packed=False), calls)})
    flow(*inputs(tiny, 2), tiny.flow.schedules[10], torch.tensor([-1, -1]))
    assert not calls


@needs_onednn
def test_a_model_whose_large_weights_are_packed_alone_keeps_the_plain_loop(load, monkeypatch):
    assert cpu_network(load().networks.dit)
    monkeypatch.setattr("voxcpm_grpc.layers.packed.PLAIN_BYTES", 1)
    model = load()
    assert cpu_network(model.networks.dit) is None
    assert isinstance(model.flow.batch, PlainFlow)
