"""The released sizes in bfloat16 on a GPU are near the reference, float32 arithmetic over the same rounded weights.

Every module gets the input of the reference, so that errors do not add up along the sequence.
"""

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from support.engines.full_size import full_size, full_sizes  # noqa: F401
from support.engines.traces import traced

from voxcpm_grpc.attention import PagedKV, PagedRows
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.engine.device.graphs import StepGraph, generate_buckets
from voxcpm_grpc.engine.device.kv_cache import allocate_kv
from voxcpm_grpc.engine.device.rows import step_rows
from voxcpm_grpc.engine.device.slots import NUMBERS, Slots, number_columns
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.engine.runner import LIBRARY_BYTES, Runner, working_memory
from voxcpm_grpc.kernels.launch.graph import GraphPool, Priority
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.voxcpm.model import VoxCPM
from voxcpm_grpc.settings.engine import EngineSettings

pytestmark = pytest.mark.gpu
ROWS, STREAMS, COSINE = 70, 4, 0.999


@dataclass
class Pair:
    fast: VoxCPM
    truth: VoxCPM

    @property
    def frames(self) -> int:
        """Latent frames of a patch."""
        return self.truth.config.patch_size

    def kv(self, model: VoxCPM) -> PagedKV:
        return allocate_kv(model.layout, 32, 16, torch.device("cuda"))


@pytest.fixture(
    scope="module",
    params=[("VoxCPM2", "triton"), ("VoxCPM2", "auto"), ("VoxCPM1.5", "triton"), ("VoxCPM-0.5B", "triton")],
    ids="-".join,
)
def pair(request, full_sizes):  # noqa: F811
    device = torch.device("cuda")
    name, chosen = request.param

    def load(dtype, attention):
        options = LoadOptions(device=device, dtype=dtype, attention=attention, max_slots=STREAMS)
        model = load_model(full_sizes(name), options)
        assert isinstance(model, VoxCPM)
        return model

    yield Pair(load(torch.bfloat16, chosen), load(torch.float32, "reference"))
    torch.cuda.empty_cache()


def cosine(fast, truth) -> float:
    assert fast.isfinite().all() and truth.isfinite().all()
    return torch.nn.functional.cosine_similarity(fast.float().flatten(1), truth.float().flatten(1)).min().item()


def random(*shape):
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").bfloat16().float()


def rows(count: int, context: int) -> PagedRows:
    device = torch.device("cuda")
    first = context - count
    return PagedRows(
        cu_seqlens=torch.tensor([0, count], dtype=torch.int32, device=device),
        context=torch.tensor([context], dtype=torch.int32, device=device),
        block_table=torch.arange(1, 9, dtype=torch.int32, device=device)[None],
        write=torch.arange(16 + first, 16 + context, device=device),
        max_rows=count,
        max_context=context,
        fresh=first == 0,
    )


@torch.inference_mode()
def test_patch_encoder(pair):
    patches = random(16, pair.frames, 64)
    assert (
        cosine(pair.fast.networks.encode_patch(patches.bfloat16()), pair.truth.networks.encode_patch(patches)) > COSINE
    )


@torch.inference_mode()
@pytest.mark.parametrize("stack", ["base", "residual"])
def test_language_models_over_a_prompt_and_a_step(pair, stack):
    size = pair.truth.config.lm_config.hidden_size
    x = random(ROWS + 1, size)
    position = torch.arange(ROWS + 1, device="cuda")
    results = []
    for model in (pair.fast, pair.truth):
        kv, mine = pair.kv(model), x.to(model.layout.dtype)
        outputs = []
        for part, paged in ((slice(0, ROWS), rows(ROWS, ROWS)), (slice(ROWS, ROWS + 1), rows(1, ROWS + 1))):
            rotate = model.rope.at(position[part])
            if stack == "base":
                outputs.append(model._base(mine[part], rotate, kv, paged, None))
            else:
                outputs.append(model._residual(mine[part], mine[part].flip(0), rotate, kv, paged, None))
        results.append(outputs)
    for fast, truth in zip(*results, strict=True):
        assert cosine(fast, truth) > COSINE


@torch.inference_mode()
@pytest.mark.parametrize("timesteps", [4, 10])
def test_flow_evaluation_and_whole_pass(pair, timesteps):
    noise, condition = random(STREAMS, pair.frames, 64), random(STREAMS, pair.frames, 64)
    mu = random(STREAMS, pair.truth.networks.dit.mu_tokens, pair.truth.config.dit.hidden)
    cfg = torch.tensor([1.0, 1.5, 2.0, 3.0], device="cuda")
    velocities, latents = [], []
    for model in (pair.fast, pair.truth):
        dtype = model.layout.dtype
        tokens = model.flow.schedules[timesteps].tokens
        context = model.networks.dit.context(mu.to(dtype), condition.to(dtype))
        velocities.append([model.networks.dit(noise.to(dtype), token, *context) for token in tokens])
        latents.append(model.flow(noise, mu.to(dtype), condition.to(dtype), cfg, timesteps))
    for fast, truth in zip(*velocities, strict=True):
        assert cosine(fast, truth) > COSINE
    assert cosine(*latents) > COSINE


def test_only_graphs_and_host_copies_run_on_other_streams(full_size, tmp_path):  # noqa: F811
    """A kernel on another stream can slow down every graph of the process: see kernels.graph.stream."""
    settings = EngineSettings(device="cuda", max_slots=STREAMS, timesteps=(10,), kv_positions=4096)
    ran = traced(lambda: load_engine(resolve(str(full_size)), str(full_size), settings).warm_up(), tmp_path)
    default = {one.stream for one in traced(lambda: torch.zeros(1, device="cuda"), tmp_path)}
    single = [one for one in ran if not one.in_graph and not one.name.startswith(("Memcpy HtoD", "Memcpy DtoH"))]
    assert {one.stream for one in single} == default, Counter((one.stream, one.name) for one in single)


@torch.inference_mode()
def test_codec_and_stop_head(pair):
    patches = random(STREAMS, 1, pair.frames, 64)
    slot = torch.arange(STREAMS, device="cuda")
    fast, truth = (
        model.codec.decoder.decode(patches.to(model.layout.dtype), model.codec.allocate(STREAMS), slot)
        for model in (pair.fast, pair.truth)
    )
    assert pair.fast.codec.decoder.dtype == torch.float16
    assert (fast - truth).abs().max() < 0.03 * truth.square().mean().sqrt()
    hidden, everyone = random(16, pair.truth.config.lm_config.hidden_size), torch.arange(16, device="cuda")
    logits = []
    for model in (pair.fast, pair.truth):
        state = hidden.to(model.layout.dtype)
        logits.append(model.networks.stop_head(model.projections.conditioning(everyone, state, state)[1]))
    assert cosine(*logits) > COSINE


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 8, 64, ROWS])
def test_maps_between_the_networks(pair, rows):
    c = pair.truth.config.lm_config.hidden_size
    slot, semantic, acoustic = torch.randperm(ROWS, device="cuda")[:rows], random(ROWS, c), random(ROWS, c)

    def run(model):
        states = [x.to(model.layout.dtype) for x in (semantic, acoustic)]
        return *model.projections.conditioning(slot, *states), model.projections.quantize(states[0][slot])

    for fast, truth in zip(run(pair.fast), run(pair.truth), strict=True):
        assert cosine(fast, truth) > COSINE


def clone_state(state, model):
    """The same stream state for a model of another dtype."""
    own, device = state.model, state.seed.device
    numbers = torch.zeros(len(state.seed), len(NUMBERS) + model.numbers, dtype=torch.int64, device=device)
    moved = model.allocate(len(state.seed), numbers[:, len(NUMBERS) :])
    for name in ("semantic", "acoustic", "condition", "patches", "cfg", "temperature", "history"):
        getattr(moved, name).copy_(getattr(own, name))
    cloned = type(state)(**number_columns(numbers), block_table=state.block_table.clone(), model=moved)
    for name in NUMBERS:
        getattr(cloned, name).copy_(getattr(state, name))
    return cloned


@torch.inference_mode()
def test_a_captured_step_of_every_size(pair):
    """Captured steps, full and padded, against eager steps of the reference from the same state."""
    device, most, context = torch.device("cuda", 0), 128, 50
    scratch = most
    slots = Slots.allocate(pair.fast, most, 8, device)
    state = slots.state
    state.model.semantic.copy_(random(most + 1, pair.truth.config.lm_config.hidden_size))
    state.model.acoustic.copy_(random(most + 1, pair.truth.config.lm_config.hidden_size))
    state.model.condition.copy_(random(most + 1, pair.frames, 64))
    state.seed.copy_(torch.arange(most + 1))
    state.model.cfg.fill_(2.0)
    state.model.temperature.fill_(1.0)
    state.position.fill_(context)
    state.block_table[:most] = torch.arange(1, 4 * most + 1, device=device).view(most, 4).repeat(1, 2)
    caches = [allocate_kv(model.layout, 4 * most, 16, device) for model in (pair.fast, pair.truth)]
    for fast, truth in ((caches[0].k, caches[1].k), (caches[0].v, caches[1].v)):
        fast.copy_(random(*fast.shape[1:])[None])
        truth.copy_(fast)
    expected = clone_state(state, pair.truth)
    everyone = torch.arange(most, device=device)
    frame = pair.truth.step(step_rows(everyone, expected, 16, 128), 4, expected, caches[1])

    fresh = clone_state(state, pair.fast)
    slot = torch.full((most,), scratch, device=device)

    def step(count):
        return pair.fast.step(step_rows(slot[:count], state, 16, 128), 4, state, caches[0])

    step(most)  # makes tables that cannot be copied to the device during a capture
    graph = StepGraph(step, generate_buckets(most), GraphPool(Priority.STEP, torch.device("cuda")))
    for count in (*graph.sizes, 9, 33, 63, 65, 127):
        copy_state(fresh, state)
        slot.fill_(scratch)
        slot[:count] = everyone[:count]
        made = graph.replay(count)
        assert made.finite[:count].all()
        at = state.model.patches[:count] + state.step[:count] - 1
        latents, truth = (s.model.history[everyone[:count], at] for s in (state, expected))
        assert cosine(latents, truth) > COSINE, count
        assert cosine(made.audio[:count], frame.audio[:count]) > COSINE, count
        assert cosine(state.model.acoustic[:count], expected.model.acoustic[:count]) > 0.98, (
            count
        )  # computed from quantized values


@torch.inference_mode()
@pytest.mark.parametrize("most", [64, 128])
def test_graphs_use_no_more_memory_than_is_reserved_for_them(pair, most):
    device = torch.device("cuda", 0)
    slots = Slots.allocate(pair.fast, most, 8, device)
    kv = allocate_kv(pair.fast.layout, 256, 16, device)
    allowed = working_memory(pair.fast, slots, 16, 2048, graphs=True) - LIBRARY_BYTES
    before = torch.cuda.memory_reserved(device)
    runner = Runner(pair.fast, slots, kv, graph_tokens=2048)
    torch.cuda.empty_cache()
    taken = torch.cuda.memory_reserved(device) - before
    del runner  # its graphs must live until here
    assert taken <= allowed, f"{taken / 2**20:.0f} MiB taken, {allowed / 2**20:.0f} allowed"


def copy_state(source, target):
    for name in source.__dataclass_fields__:
        if name != "model":
            getattr(target, name).copy_(getattr(source, name))
    for name in source.model.__dataclass_fields__:
        getattr(target.model, name).copy_(getattr(source.model, name))
