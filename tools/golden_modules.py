"""Inputs and outputs of every official module, for make_goldens.py."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Official = Any

POSITIONS = [*range(32), 100, 777, 2047]  # rows of the rotary tables that are kept
TIMESTEPS = (4, 10)
CFG_VALUES = (1.0, 2.0, 3.0)


def modules(model: Official, bf16: Official, bf16_in_float32: Official) -> Tensors:
    """The tensors by their keys.

    `<module>.<tensor>` is float32. The prefix `bfloat16.` stands for the same model, cast as a released one is, and the
    prefix `mixed.` for the result of `mixed`.
    """
    draws = torch.Generator().manual_seed(2025)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws)

    c = model.config
    h, e = c.lm_config.hidden_size, c.encoder_config.hidden_dim
    latent, patch = c.feat_dim, c.patch_size
    out = {
        **language_model("base_lm", model.base_lm, normal(13, h)),
        **language_model("residual_lm", model.residual_lm, normal(13, h)),
        **call("fsq", model.fsq_layer, normal(6, h)),
        **(call("fusion", model.fusion_concat_proj, normal(4, 2 * h)) if hasattr(model, "fusion_concat_proj") else {}),
        **call("enc_to_lm", model.enc_to_lm_proj, normal(4, e)),
        **call("lm_to_dit", model.lm_to_dit_proj, normal(4, h)),
        **call("res_to_dit", model.res_to_dit_proj, normal(4, h)),
        **call("stop", lambda x: model.stop_head(model.stop_actn(model.stop_proj(x))), normal(4, h)),
        **vae(model, 0.1 * normal(20800), normal(latent, 12)),  # 1.3 s: 32 and a half frames
    }
    levels = torch.tanh(model.fsq_layer.in_proj(out["fsq.input"])) * c.scalar_quantization_scale
    assert (levels - levels.floor() - 0.5).abs().min() > 1e-4, "an FSQ input is near a rounding boundary"

    patches = normal(3, patch, latent)
    x, cond, mu, t = (
        normal(2, latent, patch),
        normal(2, latent, patch),
        normal(2, mu_width(model)),
        torch.tensor([0.9565, 0.375]),
    )
    for prefix, m in (("", model), ("bfloat16.", bf16)):
        dtype = getattr(torch, m.config.dtype)
        out |= {prefix + k: v for k, v in locenc(m, patches.to(dtype)).items()}
        out |= {prefix + k: v for k, v in locdit(m, *(v.to(dtype) for v in (x, mu, t, cond))).items()}
        out |= {prefix + k: v for k, v in euler(m, *(v[:1].to(dtype) for v in (x, mu, cond))).items()}
        for n in TIMESTEPS:
            out |= {prefix + k: v for k, v in schedule(m, n).items()}
        rope = m.base_lm.rope_emb
        out |= {f"{prefix}rope.cos": rope.cos_cached[POSITIONS], f"{prefix}rope.sin": rope.sin_cached[POSITIONS]}
    return out | {"rope.positions": torch.tensor(POSITIONS)} | mixed(bf16_in_float32, patches, x, mu, t, cond)


def mu_width(model: Official) -> int:
    """Channels of the input of the diffusion: the outputs of both language models, or in older models their sum."""
    return (2 if hasattr(model, "fusion_concat_proj") else 1) * model.config.dit_config.hidden_dim


def call(name: str, module: Any, x: Tensor) -> Tensors:
    return {f"{name}.input": x, f"{name}.output": module(x)}


def language_model(name: str, lm: Any, x: Tensor) -> Tensors:
    """A prefill of all rows but the last, and a cached decode step of the last row."""
    output, cache = lm(inputs_embeds=x[None, :-1], is_causal=True)
    lm.kv_cache.fill_caches(cache)
    position = torch.tensor([lm.kv_cache.step()])
    assert position.item() == len(x) - 1
    step = lm.forward_step(x[-1:], position)
    return {f"{name}.input": x, f"{name}.output": output[0], f"{name}.step_output": step[0]}


def vae(model: Official, wave: Tensor, latents: Tensor) -> Tensors:
    vae = model.audio_vae
    return {
        "vae_encode.input": wave,
        "vae_encode.output": vae.encode(wave[None], vae.sample_rate)[0],
        "vae_decode.input": latents,
        "vae_decode.output": vae.decode(latents[None])[0, 0],
    }


def locenc(model: Official, patches: Tensor) -> Tensors:
    return {"locenc.input": patches, "locenc.output": model.feat_encoder(patches[None])[0]}


def locdit(model: Official, x: Tensor, mu: Tensor, t: Tensor, cond: Tensor) -> Tensors:
    output = model.feat_decoder.estimator(x, mu, t, cond, torch.zeros_like(t))
    return {"locdit.x": x, "locdit.mu": mu, "locdit.t": t, "locdit.cond": cond, "locdit.output": output}


def euler(model: Official, x: Tensor, mu: Tensor, cond: Tensor) -> Tensors:
    out = {"euler.x": x[0], "euler.mu": mu[0], "euler.cond": cond[0]}
    for n in TIMESTEPS:
        for cfg in CFG_VALUES:
            result = model.feat_decoder.solve_euler(x, t_span(n, x.dtype), mu, cond, cfg_value=cfg)
            out[f"euler.cfg{cfg:.0f}_n{n}"] = result[0]
    return out


def t_span(n: int, dtype: torch.dtype) -> Tensor:
    """The schedule that the official package passes to its solver."""
    span = torch.linspace(1, 0, n + 1, dtype=dtype)
    return span + 1.0 * (torch.cos(torch.pi / 2 * span) - 1 + span)


def schedule(model: Official, n: int) -> Tensors:
    """The time and size of each Euler step, with the drift by the solver's rounding, and the time embedding."""
    dtype = getattr(torch, model.config.dtype)
    span, estimator = t_span(n, dtype), model.feat_decoder.estimator
    t, dt, times, steps = span[0], span[0] - span[1], [], []
    for k in range(1, n + 1):
        times.append(t)
        steps.append(dt)
        t = t - dt
        if k < n:
            dt = t - span[k + 1]
    t = torch.stack(times)
    check_schedule(model, n, t, span)
    embedding = estimator.time_embeddings(t)
    zero = estimator.time_embeddings(torch.zeros_like(t))
    vector = estimator.time_mlp(embedding) + estimator.delta_time_mlp(zero)
    values = {"span": span, "t": t, "dt": torch.stack(steps), "time_embedding": embedding, "time_vector": vector}
    return {f"schedule_n{n}.{name}": value for name, value in values.items()}


def check_schedule(model: Official, n: int, t: Tensor, span: Tensor) -> None:
    """Check that the official solver has the same schedule, and evaluates the network at all times but the first."""
    seen, spans, decoder = [], [], model.feat_decoder
    handle = decoder.estimator.register_forward_pre_hook(lambda _, args: seen.append(args[2][0]))
    solve = decoder.solve_euler

    def record(self: Any, **kwargs: Any) -> Tensor:
        spans.append(kwargs["t_span"])
        return solve(**kwargs)

    decoder.solve_euler = MethodType(record, decoder)
    c = model.config
    decoder(
        mu=torch.zeros(1, mu_width(model), dtype=t.dtype),
        n_timesteps=n,
        patch_size=c.patch_size,
        cond=torch.zeros(1, c.feat_dim, c.patch_size, dtype=t.dtype),
    )
    del decoder.solve_euler
    handle.remove()
    assert torch.equal(spans[0], span) and torch.equal(torch.stack(seen), t[1:])


def mixed(model: Official, *inputs: Tensor) -> Tensors:
    """The reference for a bfloat16 checkpoint: its rounded weights, tables and time embedding, in float32 arithmetic.

    model: the bfloat16 model cast to float32, with the rounded weights and rotary tables.
    """
    embed = model.feat_decoder.estimator.time_embeddings
    embed.forward = lambda t: type(embed).forward(embed, t.bfloat16()).float()
    patches, *rest = (v.bfloat16().float() for v in inputs)
    values = locenc(model, patches) | locdit(model, *rest)
    return {f"mixed.{name}": value for name, value in values.items()}
