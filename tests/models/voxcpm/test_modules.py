"""Each module of each generation equals the official one within 1e-5 in float32."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from support.engines.checkpoints import OLDER, TINY
from support.engines.goldens import GOLDENS

from voxcpm_grpc.attention import PagedKV, PagedRows
from voxcpm_grpc.models.voxcpm.flow.matching import build_schedule, embed_time
from voxcpm_grpc.request import Role

TABLES = {"": torch.float32, "bfloat16.": torch.bfloat16}


@pytest.fixture(scope="module", params=[TINY, *OLDER], ids=lambda path: path.name, name="source")
def _source(request):
    return request.param


@pytest.fixture(scope="module")
def modules(source):
    return load_file((GOLDENS if source == TINY else GOLDENS / source.name) / "modules.safetensors")


@pytest.fixture(scope="module")
def tiny(load, source):
    return load(source)


@pytest.fixture(scope="module")
def bfloat16_checkpoint(declared_bfloat16, source):
    return declared_bfloat16(source)


@pytest.fixture(scope="module")
def bfloat16(load, bfloat16_checkpoint):
    return load(bfloat16_checkpoint)


def mu_tokens(model, mu):
    """The mu of a golden [.., m * e] as tokens [.., m, e]."""
    return mu.unflatten(-1, (-1, model.networks.dit.hidden))


def close(a, b, tolerance=1e-5):
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance


@pytest.mark.parametrize("name", ["base_lm", "residual_lm"])
def test_language_models(tiny, modules, name):
    stack = tiny.networks.base if name == "base_lm" else tiny.networks.residual
    x = modules[f"{name}.input"]
    n, layers = len(x) - 1, stack.shape.layers
    kv = PagedKV(*torch.zeros(2, layers, 3, 16, tiny.layout.heads, tiny.layout.head_dim))
    table, position = torch.tensor([[2, 1]], dtype=torch.int32), torch.arange(n + 1)

    def run(start: int, stop: int) -> torch.Tensor:
        rows = PagedRows(
            cu_seqlens=torch.tensor([0, stop - start], dtype=torch.int32),
            context=torch.tensor([stop], dtype=torch.int32),
            block_table=table,
            write=32 + position[start:stop],
            max_rows=stop - start,
            max_context=stop,
            fresh=start == 0,
        )
        rotates = name == "base_lm" or tiny.config.residual_rotates
        rotate = tiny.rope.at(position[start:stop]) if rotates else None
        attend = partial(tiny.backend.attention.attend, kv=kv, rows=rows, rotate=rotate)
        return stack(x[start:stop], attend)

    close(run(0, n), modules[f"{name}.output"])
    close(run(n, n + 1)[0], modules[f"{name}.step_output"])


def test_projections(tiny, modules):
    def stop_logits(semantic: torch.Tensor) -> torch.Tensor:
        everyone = torch.arange(len(semantic))
        return tiny.networks.stop_head(tiny.networks.conditioning(everyone, semantic, semantic)[1])

    assert (tiny.networks.fusion is None) == ("fusion.input" not in modules)
    for name in ("fsq", "stop", "enc_to_lm", "lm_to_dit", "res_to_dit", "fusion"):
        module = {"fsq": tiny.networks.quantize, "stop": stop_logits}.get(name) or getattr(tiny.networks, name)
        if module is not None:
            close(module(modules[f"{name}.input"]), modules[f"{name}.output"])


def test_codec(tiny, modules):
    latents = torch.cat([chunk for _, chunk in tiny.codec.encode(modules["vae_encode.input"].numpy(), Role.REFERENCE)])
    golden = modules["vae_encode.output"].T  # padded to a frame; ours is padded to a patch
    close(latents.flatten(0, 1)[: len(golden)], golden)
    patches = modules["vae_decode.input"].T.unflatten(0, (-1, tiny.info.latents.frames)).numpy()
    close(torch.cat(list(tiny.codec.decode({"latents": patches}))), modules["vae_decode.output"])


@pytest.mark.parametrize("kind", ["", "mixed."])
def test_local_encoder(tiny, bfloat16, modules, kind):
    model = bfloat16 if kind else tiny
    close(model.networks.encode_patch(modules[f"{kind}locenc.input"]), modules[f"{kind}locenc.output"])


@pytest.mark.parametrize("kind", ["", "mixed."])
def test_diffusion_transformer(tiny, bfloat16, modules, kind):
    """One evaluation. A row of the golden batch is the conditional half of one of ours."""
    model, table = (bfloat16, torch.bfloat16) if kind else (tiny, torch.float32)
    dit = model.networks.dit
    x, cond = (modules[f"{kind}locdit.{key}"].transpose(1, 2) for key in ("x", "cond"))
    mu = mu_tokens(model, modules[f"{kind}locdit.mu"])
    time = modules[f"{kind}locdit.t"].to(table)
    tokens = dit.time_tokens(time, torch.zeros_like(time))
    for i in range(len(x)):
        row = slice(i, i + 1)
        velocity = dit(x[row], tokens[i], *dit.context(mu[row], cond[row]))
        close(velocity[:1].transpose(1, 2), modules[f"{kind}locdit.output"][row])


@pytest.mark.parametrize("timesteps", [4, 10])
@pytest.mark.parametrize("cfg", [1, 2, 3])
def test_euler_loop(tiny, modules, cfg, timesteps):
    x, cond = (modules[f"euler.{key}"].T[None] for key in ("x", "cond"))
    mu = mu_tokens(tiny, modules["euler.mu"])[None]
    out = tiny.flow(x, mu, cond, torch.tensor([float(cfg)]), timesteps)
    close(out[0].T, modules[f"euler.cfg{cfg}_n{timesteps}"])


@pytest.mark.parametrize("timesteps", [4, 10])
@pytest.mark.parametrize("kind", TABLES)
def test_schedule_and_time_embedding(modules, kind, timesteps):
    """The tables equal the official ones exactly: one ulp of bfloat16 in a time gives another embedding.

    In float32 the angles reach 1000, and an ulp of a frequency, which depends on the CPU, moves them by up to 6e-5.
    """
    golden = {key: modules[f"{kind}schedule_n{timesteps}.{key}"] for key in ("t", "dt", "time_embedding")}
    schedule = build_schedule(timesteps, TABLES[kind])
    assert torch.equal(schedule.time.float(), golden["t"][1:])
    assert torch.equal(torch.tensor(schedule.size), golden["dt"][1:])
    embedded = embed_time(schedule.time, golden["time_embedding"].shape[1]).float()
    close(embedded, golden["time_embedding"][1:], 0 if kind else 6e-5)


@pytest.mark.parametrize("timesteps", [4, 10])
def test_time_tokens(tiny, modules, timesteps):
    tokens = tiny.flow.schedules[timesteps].tokens
    close(tokens[:, 0], modules[f"schedule_n{timesteps}.time_vector"][1:])


@pytest.mark.parametrize("kind", TABLES)
def test_rotary_tables(tiny, bfloat16, modules, kind):
    rotation = (bfloat16 if kind else tiny).rope.at(modules["rope.positions"])
    for ours, name in ((rotation.cos, "cos"), (rotation.sin, "sin")):
        close(torch.cat([ours, ours], -1)[:, 0], modules[f"{kind}rope.{name}"], 0 if kind else 1e-6)


def test_bfloat16_arithmetic_is_near_the_official_one(load, bfloat16_checkpoint, modules):
    model = load(bfloat16_checkpoint, dtype=torch.bfloat16)
    golden = modules["bfloat16.locenc.output"]
    ours = model.networks.encode_patch(modules["bfloat16.locenc.input"].bfloat16())
    assert ours.dtype == torch.bfloat16
    assert torch.cosine_similarity(ours.float().flatten(), golden.flatten(), dim=0) > 0.999

    x, cond = (modules[f"bfloat16.euler.{key}"].T[None] for key in ("x", "cond"))
    mu = mu_tokens(model, modules["bfloat16.euler.mu"])[None].bfloat16()
    out = model.flow(x, mu, cond.bfloat16(), torch.tensor([2.0]), 10)
    assert out.dtype == torch.float32
    golden = modules["bfloat16.euler.cfg2_n10"]
    assert torch.cosine_similarity(out[0].T.flatten(), golden.flatten(), dim=0) > 0.999
