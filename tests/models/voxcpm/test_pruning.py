"""The last layer computes only the rows that are needed, with the same results as for all rows."""

import pytest
import torch
from support.engines.full_size import full_size  # noqa: F401
from torch.utils.flop_counter import FlopCounterMode

from voxcpm_grpc.models.voxcpm.flow.flow import PlainFlow

STREAMS = [1, 3, 8]
TIMESTEPS = 4
COSINE = 0.999


def whole_stack(stack, rope, x: torch.Tensor) -> torch.Tensor:
    """All rows of sequences x [b, n, e] after every layer and the final norm, in x's dtype."""
    shape, b, n = stack.shape, *x.shape[:2]
    cos, sin = (table[:n].to(x) for table in (rope.cos, rope.sin))  # [n, 1, d / 2]

    def norm(x, weights):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + weights.eps) * weights.weight.to(x)

    def product(x, linear):
        return x @ linear.weight.to(x).T

    def rotated(x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    for layer in stack.layers:
        mapped = product(norm(x, layer.norm), layer.qkv).view(b, n, -1, shape.head_dim)
        q, k, v = mapped.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=2)
        k, v = (part.repeat_interleave(shape.heads // shape.kv_heads, dim=2) for part in (rotated(k), v))
        scores = torch.einsum("bnhd,bmhd->bhnm", rotated(q), k) * shape.head_dim**-0.5
        mixed = torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v).flatten(2)
        x = x + product(mixed, layer.out) * shape.residual_scale
        gate, up = product(norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        x = x + product(torch.nn.functional.silu(gate) * up, layer.down) * shape.residual_scale
    return norm(x, stack.norm)


def affine(x: torch.Tensor, linear) -> torch.Tensor:
    return x @ linear.weight.to(x).T + linear.bias.to(x)


def whole_velocity(dit, x, time_token, mu, condition) -> torch.Tensor:
    """Velocities [2, b, P, D] from all rows of both halves; x and condition are [b, P, D], mu is [b, 2, e]."""
    time = time_token.to(x).expand(len(x), 1, -1)
    halves = [
        torch.cat([half, time, affine(condition, dit.cond_proj), affine(x, dit.in_proj)], dim=1)
        for half in (mu, torch.zeros_like(mu))
    ]
    rows = whole_stack(dit.stack, dit.rope, torch.cat(halves))
    return affine(rows, dit.out_proj)[:, -x.shape[1] :].unflatten(0, (2, -1))


def whole_flow(model, noise, mu, condition, cfg) -> torch.Tensor:
    x, schedule = noise, model.flow.schedules[TIMESTEPS]
    for token, size in zip(schedule.tokens, schedule.schedule.size, strict=True):
        c, u = whole_velocity(model.networks.dit, x, token, mu, condition)
        u = u * ((c * u).sum((1, 2), keepdim=True) / (u.square().sum((1, 2), keepdim=True) + 1e-8))
        x = x - size * (u + cfg[:, None, None] * (c - u))
    return x


def inputs(model, streams: int, cfg: float) -> list[torch.Tensor]:
    """Noise, mu, the previous patch and cfg, with values that bfloat16 represents exactly."""
    generator, patch = torch.Generator().manual_seed(streams), (model.info.latents.frames, model.info.latents.dim)
    shapes = patch, (2, model.networks.dit.hidden), patch
    drawn = [torch.randn(streams, *shape, generator=generator).bfloat16().float() for shape in shapes]
    return [part.to(model.backend.device) for part in (*drawn, torch.full((streams,), cfg))]


every_batch = pytest.mark.parametrize("streams", STREAMS)
every_guidance = pytest.mark.parametrize("cfg", [2.0, 1.0])


@pytest.fixture
def interpreter():
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels run there, not interpreted")


@every_batch
def test_an_evaluation_equals_that_of_all_rows(tiny, streams):
    dit, (noise, mu, condition, _) = tiny.networks.dit, inputs(tiny, streams, 2.0)
    for token in tiny.flow.schedules[TIMESTEPS].tokens:
        out = dit(noise, token, *dit.context(mu, condition))
        whole = whole_velocity(dit, noise.double(), token, mu.double(), condition.double()).flatten(0, 1)
        torch.testing.assert_close(out.double(), whole, atol=1e-5, rtol=0)


@every_batch
@every_guidance
def test_patches_equal_those_of_all_rows(tiny, streams, cfg):
    given = inputs(tiny, streams, cfg)
    whole = whole_flow(tiny, *(part.double() for part in given))
    torch.testing.assert_close(tiny.flow(*given, TIMESTEPS).double(), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("streams", [1, 3, pytest.param(8, marks=pytest.mark.thorough)])
@every_guidance
def test_patches_of_the_kernels_equal_those_of_all_rows(interpreter, load, tiny, streams, cfg):
    given = inputs(tiny, streams, cfg)
    whole = whole_flow(tiny, *(part.double() for part in given))
    torch.testing.assert_close(load(fused=True).flow(*given, TIMESTEPS).double(), whole, atol=1e-5, rtol=0)


def whole_encoder(encoder, rope, patches: torch.Tensor) -> torch.Tensor:
    token = encoder.token.to(patches).expand(len(patches), -1, -1)
    return whole_stack(encoder.stack, rope, torch.cat([token, affine(patches, encoder.in_proj)], dim=1))[:, 0]


@every_batch
@pytest.mark.parametrize("fused", [False, True])
def test_an_encoded_patch_equals_that_of_all_rows(request, load, tiny, streams, fused):
    if fused:
        request.getfixturevalue("interpreter")
    patches = inputs(tiny, streams, 1.0)[0]
    whole = whole_encoder(
        tiny.networks.encode_patch, tiny.networks.dit.rope, patches.double()
    )  # a longer table with the same start
    out = load(fused=fused).networks.encode_patch(patches)
    torch.testing.assert_close(out.double(), whole, atol=1e-5, rtol=0)


@every_batch
def test_the_last_layer_computes_no_other_rows(load, streams):
    """All layers map all rows to q, k and v. After attention the last one computes only the needed rows."""
    plain = load(fused=False)  # the counter does not know oneDNN's products
    dit, (noise, mu, condition, _) = plain.networks.dit, inputs(plain, streams, 2.0)
    context, token = dit.context(mu, condition), plain.flow.schedules[TIMESTEPS].tokens[0]
    frames, latents = noise.shape[1:]
    layer, tokens = dit.stack.layers[-1], 3 + 2 * frames
    behind = sum(linear.weight.numel() for linear in (layer.out, layer.gate_up, layer.down))
    each = behind + layer.qkv.weight.numel()
    full = 2 * streams * tokens * (each * (len(dit.stack.layers) - 1) + layer.qkv.weight.numel())
    read = 2 * streams * frames * behind
    around = 3 * streams * frames * latents * dit.hidden  # in_proj once for both halves, out_proj for each
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        dit(noise, token, *context)
    counts = counter.get_flop_counts()["Global"]
    assert sum(counts[op] for op in (torch.ops.aten.mm, torch.ops.aten.addmm)) == 2 * (full + read + around)


@pytest.fixture(scope="module")
def pair(load, full_size):  # noqa: F811
    """The released sizes in bfloat16 with kernels, and the same weights in float32 with plain operations."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device("cuda", 0)
    options = {"device": device, "timesteps": (TIMESTEPS,), "persistent": False}
    fast = load(full_size, dtype=torch.bfloat16, attention="triton", **options)
    yield fast, load(full_size, attention="reference", **options)
    torch.cuda.empty_cache()


def least_cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.isfinite().all() and b.isfinite().all()
    return torch.cosine_similarity(a.float().flatten(1), b.float().flatten(1)).min().item()


@pytest.mark.gpu
@pytest.mark.parametrize("streams", [1, 2, 3, 5, 8, 16, 24, 32, 64])
@every_guidance
@torch.inference_mode()
def test_patches_in_bfloat16_are_near_those_of_all_rows(pair, streams, cfg):
    """The numbers of streams at which the kernels of the last layer, of the others, or of both change."""
    fast, truth = pair
    noise, mu, condition, strength = inputs(truth, streams, cfg)
    whole = whole_flow(truth, noise, mu, condition, strength)
    assert not isinstance(fast.flow.batch, PlainFlow)
    out = fast.flow(noise, mu.bfloat16(), condition.bfloat16(), strength, TIMESTEPS)
    assert least_cosine(out, whole) > COSINE


@pytest.mark.gpu
@pytest.mark.parametrize("patches", [1, 2, 8, 64, 300])
@torch.inference_mode()
def test_patches_encoded_in_bfloat16_are_near_those_of_all_rows(pair, patches):
    fast, truth = pair
    given = inputs(truth, patches, 1.0)[0]
    whole = whole_encoder(truth.networks.encode_patch, truth.networks.dit.rope, given)
    assert least_cosine(fast.networks.encode_patch(given.bfloat16()), whole) > COSINE
