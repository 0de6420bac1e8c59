"""Measure the kernels that run the whole flow-matching loop and the patch encoder of one stream in one launch each.

    python -m benchmarks.persistent [--repeats 30]

The weights are random and of the released size. The reference is the model's own modules in float32 with the same
bfloat16 weights. The error of the loop is relative to the distance from the noise to the patch, that of the encoder to
its output. Each row is one captured launch. With one layer most weights stay in the cache, so that row shows the cost
of exchange and arithmetic alone.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.measuring.flags import command_parser
from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.layers.ops import TorchOps
from voxcpm_grpc.layers.rope import Rope, build_rope
from voxcpm_grpc.layers.transformer import StackShape
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT, LocEnc
from voxcpm_grpc.models.voxcpm.flow.matching import Schedule, euler
from voxcpm_grpc.models.voxcpm.flow.persistent import encoder_weights, flow_weights
from voxcpm_grpc.models.voxcpm.kernels.packed_stack import HEAD, HIDDEN, packed_bytes
from voxcpm_grpc.models.voxcpm.kernels.persistent import (
    ENCODER_TOKENS,
    FLOW_TOKENS,
    LATENT,
    PATCH,
    VELOCITY,
    PersistentEncoder,
    PersistentFlow,
)


class RandomTensors(dict[str, Tensor]):
    """Random tensors by name, scaled so that activations stay near one. A seed always gives the same tensors."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        for name, shape in shapes.items():
            x = torch.randn(shape, generator=generator, device="cuda")
            self[name] = 1 + 0.1 * x if "norm" in name else x / math.sqrt(shape[-1])


def random_dit(layers: int, dtype: torch.dtype, seed: int = 0) -> LocDiT:
    """The diffusion transformer of the released size, or its first layers, with bfloat16 weights stored as `dtype`."""
    shapes = _stack_shapes("decoder", layers)
    for name, (out, into) in {"in_proj": (HIDDEN, LATENT), "cond_proj": (HIDDEN, LATENT)}.items():
        shapes |= {f"{name}.weight": (out, into), f"{name}.bias": (out,)}
    shapes |= {"out_proj.weight": (LATENT, HIDDEN), "out_proj.bias": (LATENT,)}
    for name in ("time_mlp", "delta_time_mlp"):
        for i in (1, 2):
            shapes |= {f"{name}.linear_{i}.weight": (HIDDEN, HIDDEN), f"{name}.linear_{i}.bias": (HIDDEN,)}
    parts = _stack(layers), LATENT, _rope(FLOW_TOKENS), ReferenceAttention(), TorchOps(), _weights(shapes, dtype, seed)
    return LocDiT(*parts, mu_tokens=2)


def random_encoder(layers: int, dtype: torch.dtype, seed: int = 0) -> LocEnc:
    """The patch encoder of the released size, or its first layers, with bfloat16 weights stored as `dtype`."""
    shapes = _stack_shapes("encoder", layers)
    shapes |= {"special_token": (1, 1, 1, HIDDEN), "in_proj.weight": (HIDDEN, LATENT), "in_proj.bias": (HIDDEN,)}
    weights = _weights(shapes, dtype, seed)
    return LocEnc(_stack(layers), LATENT, _rope(ENCODER_TOKENS), ReferenceAttention(), TorchOps(), weights)


def _stack(layers: int) -> StackShape:
    return StackShape(hidden=HIDDEN, ffn=4096, heads=16, kv_heads=2, head_dim=HEAD, layers=layers, eps=1e-5)


def _rope(tokens: int) -> Rope:
    return build_rope(tokens, HEAD, 10000, None, 1.0, torch.bfloat16).to(torch.device("cuda"))


def _stack_shapes(name: str, layers: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.norm.weight": (HIDDEN,)}
    for i in range(layers):
        at = f"{name}.layers.{i}"
        shapes |= {f"{at}.input_layernorm.weight": (HIDDEN,), f"{at}.post_attention_layernorm.weight": (HIDDEN,)}
        shapes |= {f"{at}.self_attn.{n}_proj.weight": (h * HEAD, HIDDEN) for n, h in (("q", 16), ("k", 2), ("v", 2))}
        shapes |= {f"{at}.self_attn.o_proj.weight": (HIDDEN, 16 * HEAD)}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (4096, HIDDEN) for name in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (HIDDEN, 4096)}
    return shapes


def _weights(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, seed: int) -> Weights:
    return Weights("random", RandomTensors(shapes, seed), torch.device("cuda"), dtype, torch.bfloat16)


def persistent(dit: LocDiT) -> PersistentFlow:
    return PersistentFlow(flow_weights(dit))


def persistent_encoder(encoder: LocEnc) -> PersistentEncoder:
    return PersistentEncoder(encoder_weights(encoder))


def random_patch() -> Tensor:
    return torch.randn(1, PATCH, LATENT, device="cuda").bfloat16()


def random_inputs(evaluations: int) -> tuple[Tensor, ...]:
    """Random inputs of the kernel: noise, mu, the patch before, cfg, time tokens and step sizes."""
    noise, mu, patch = (torch.randn(1, *s, device="cuda") for s in ((PATCH, LATENT), (2, HIDDEN), (PATCH, LATENT)))
    time = torch.randn(evaluations, HIDDEN, device="cuda").bfloat16()
    size = 2 / evaluations * torch.rand(evaluations, device="cuda")
    return noise, mu.bfloat16(), patch.bfloat16(), torch.full((1,), 2.0, device="cuda"), time, size


@torch.inference_mode()
def modules(dit: LocDiT, noise: Tensor, mu: Tensor, patch: Tensor, cfg: Tensor, time: Tensor, size: Tensor) -> Tensor:
    """The loop by the model's own modules, in the dtype of their weights."""
    dtype = dit.in_proj.weight.dtype
    mu, condition = dit.context(mu.to(dtype), patch.to(dtype))

    def velocity(x: Tensor, i: int) -> tuple[Tensor, Tensor]:
        conditional, unconditional = dit(x.bfloat16().to(dtype), time[i : i + 1].to(dtype), mu, condition).chunk(2)
        return conditional, unconditional

    return euler(noise, Schedule(time[:, 0], tuple(size.tolist())), velocity, cfg)


@torch.inference_mode()
def errors(layers: int, evaluations: int, seed: int = 0) -> tuple[float, float]:
    """The errors of the kernel and of the modules in bfloat16, against the modules in float32."""
    narrow, wide = (random_dit(layers, dtype, seed) for dtype in (torch.bfloat16, torch.float32))
    inputs = random_inputs(evaluations)
    want = modules(wide, *inputs)
    distance = (want - inputs[0]).norm()
    kernel, plain = ((out - want).norm() / distance for out in (persistent(narrow)(*inputs), modules(narrow, *inputs)))
    return float(kernel), float(plain)


@torch.inference_mode()
def encoder_errors(layers: int, seed: int = 0) -> tuple[float, float]:
    """The errors of the encoder's kernel and of its modules in bfloat16, against its modules in float32."""
    narrow, wide = (random_encoder(layers, dtype, seed) for dtype in (torch.bfloat16, torch.float32))
    patch = random_patch()
    want = wide(patch.float())
    kernel, plain = ((out - want).norm() / want.norm() for out in (persistent_encoder(narrow)(patch), narrow(patch)))
    return float(kernel), float(plain)


@torch.inference_mode()
def milliseconds(call: Callable[[], Tensor], repeats: int) -> float:
    """The median time of a captured call in ms."""
    first = call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for event in events:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    if not torch.equal(out, first):
        raise AssertionError("a replay of the graph differs from the first call")
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


def flow_call(layers: int, evaluations: int) -> tuple[Callable[[], Tensor], int]:
    """A call of the loop, and the bytes of weights that it reads."""
    flow, inputs = persistent(random_dit(layers, torch.bfloat16)), random_inputs(evaluations)
    return partial(flow, *inputs), packed_bytes(layers, tail=VELOCITY) * evaluations


def encoder_call(layers: int) -> tuple[Callable[[], Tensor], int]:
    """A call of the encoder, and the bytes of weights that it reads."""
    encoder, patch = persistent_encoder(random_encoder(layers, torch.bfloat16)), random_patch()
    return partial(encoder, patch), packed_bytes(layers)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=30, help="replays, of which the median counts")
    repeats = parser.parse_args().repeats
    for layers, evaluations in ((0, 1), (1, 1), (12, 1), (12, 9), (12, 9)):
        kernel, plain = errors(layers, evaluations)
        print(f"{layers} layers, {evaluations} evaluations: error {kernel:.2e}, modules {plain:.2e}", flush=True)
    for layers in (0, 1, 12):
        kernel, plain = encoder_errors(layers)
        print(f"encoder, {layers} layers: error {kernel:.2e}, modules {plain:.2e}", flush=True)
    print("| part | layers | evaluations | ms | TB/s |\n|---|---:|---:|---:|---:|")
    calls = [("loop", *shape, flow_call(*shape)) for shape in ((12, 9), (12, 9), (12, 1), (1, 100), (0, 100))]
    calls.append(("encoder", 12, 1, encoder_call(12)))
    for part, layers, evaluations, (call, size) in calls:
        took = milliseconds(call, repeats)
        print(f"| {part} | {layers} | {evaluations} | {took:.3f} | {size / took / 1e9:.2f} |", flush=True)


if __name__ == "__main__":
    main()
