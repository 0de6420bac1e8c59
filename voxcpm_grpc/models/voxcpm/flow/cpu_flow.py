"""The diffusion on a CPU in float32, with few operations and without products of the same rows again and again.

In the first layer, the rows of the tokens in front of the new patch do not depend on the patch. Their projections are
computed once for all evaluations, and those of the patch once for both halves of the guidance. The last layer computes
no queries of other tokens.

Dimensions: b sequences, P latent frames of a patch, D latent channels, e hidden size, n tokens, m mu tokens, s
evaluations, h heads, g KV heads, d head size, o the outputs of a projection to queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import ResidualStream, RMSNorm
from voxcpm_grpc.layers.packed import PackedLinear, PackedOps
from voxcpm_grpc.layers.transformer import Layer
from voxcpm_grpc.models.voxcpm.flow.flow import FlowSchedule, PlainFlow
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT, first_tokens
from voxcpm_grpc.models.voxcpm.flow.matching import guided

# An Evaluation takes x [b, P, D], the rows [n - P, 2b, e] in front of the patch and their projections [n - P, 2b, o] in
# the first layer, cfg [b] and the step size [], and gives x after the step.
Evaluation = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def prefixes(dit: LocDiT, mu: Tensor, condition: Tensor, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows in front of the patch, and their projections, for each evaluation.

    mu [b, m, e], the previous patch [b, P, D] and the time tokens [s, 1, e]. The next evaluation overwrites the result.
    """
    both, before = dit.context(mu, condition)  # [m, 2b, e] and [P, 2b, e]
    streams = len(mu)
    if dit.mu_tokens == 1:
        fixed, times = both[:0], both + tokens
    else:
        fixed, times = both, tokens
    parts = fixed, before[:, :streams], times
    layer = dit.stack.layers[0]
    rows = ResidualStream(torch.cat([part.flatten(0, 1) for part in parts]))
    made = layer.ops.norm_linear(rows, layer.norm, layer.qkv).split([part.shape[0] * part.shape[1] for part in parts])
    made = [values.unflatten(0, part.shape[:2]) for values, part in zip(made, parts, strict=True)]
    kept, projected = (
        torch.cat([first, time[:1].expand(1, 2 * streams, -1), *last])
        for first, time, last in ((fixed, times, [before]), (made[0], made[2], [made[1].repeat(1, 2, 1)]))
    )
    for row, projection in zip(times, made[2], strict=True):
        kept[len(fixed)], projected[len(fixed)] = row, projection
        yield kept, projected


@dataclass(frozen=True, slots=True)
class CpuLayer:
    """The maps of a layer, which include the weights of the norms in front and the factor of the branches."""

    projections: tuple[Linear, ...]  # one to queries, keys and values, or one to queries and one to the others
    out: Linear
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, layer: Layer, convert: Callable[[Tensor], Linear], *, split: bool) -> CpuLayer:
        qkv, queries, scale = _behind(layer.norm, layer.qkv), layer.sizes[0], layer.shape.residual_scale
        return cls(
            projections=tuple(convert(part.clone()) for part in ((qkv[:queries], qkv[queries:]) if split else (qkv,))),
            out=convert(layer.out.weight * scale),
            gate_up=convert(_behind(layer.mlp_norm, layer.gate_up)),
            down=convert(layer.down.weight * scale),
        )


@dataclass(frozen=True, slots=True)
class _Rotation:
    """A rotation by halves, and the scale of scores for queries."""

    cos: Tensor  # [n, 1, heads, d]
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, 2b, heads, d]"""
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.sin)


@dataclass(frozen=True, slots=True)
class _Rotations:
    both: _Rotation  # queries, then keys, of all tokens
    patch_queries: _Rotation
    keys: _Rotation

    @classmethod
    def of(cls, dit: LocDiT) -> _Rotations:
        shape, frames = dit.stack.shape, (len(dit.rope.cos) - first_tokens(dit.mu_tokens)) // 2
        cos, sin = (table[:, None] for table in (dit.rope.cos, dit.rope.sin))  # [n, 1, 1, d / 2]
        scale = torch.ones(shape.heads + shape.kv_heads, 1)
        scale[: shape.heads] = shape.head_dim**-0.5
        tables = torch.cat([cos, cos], -1) * scale, torch.cat([-sin, sin], -1) * scale
        return cls(
            _Rotation(*tables),
            _Rotation(*(table[-frames:, :, : shape.heads].clone() for table in tables)),
            _Rotation(*(table[:, :, shape.heads :].clone() for table in tables)),
        )


class CpuNetwork:
    """The velocity of `LocDiT` with guidance, and the step along it."""

    def __init__(self, dit: LocDiT, *, packed: bool) -> None:
        """With `packed`, the products are oneDNN's, which PyTorch's compiler cannot read."""
        shape, convert = dit.stack.shape, _packed if packed else Linear
        self.heads, self.groups, self.size = shape.heads, shape.kv_heads, shape.head_dim
        last = len(dit.stack.layers) - 1
        self.layers = [
            CpuLayer.of(layer, convert, split=0 < index == last) for index, layer in enumerate(dit.stack.layers)
        ]
        self.in_proj = dit.in_proj
        self.out_proj = Linear(_behind(dit.stack.norm, dit.out_proj), dit.out_proj.bias)
        self._eps, self._hidden = torch.full((1,), shape.eps), shape.hidden
        self._rotation = _Rotations.of(dit)

    def __call__(self, x: Tensor, rows: Tensor, projected: Tensor, cfg: Tensor, size: Tensor) -> Tensor:
        """An `Evaluation`."""
        patch = self.in_proj(x)
        own = self.layers[0].projections[0].product(self._normalized(patch).flatten(0, 1)).unflatten(0, x.shape[:2])
        stream, projected = (
            torch.cat([before, new.transpose(0, 1).repeat(1, 2, 1)])
            for before, new in ((rows, patch), (projected, own))
        )
        tokens = range(len(rows), len(stream))  # those of the patch
        for index, layer in enumerate(self.layers):
            last = index == len(self.layers) - 1
            wanted = tokens if last else range(len(stream))
            q, k, v = self._projections(layer, stream, wanted, None if index else projected)
            mixed = self._attend(q, k, v)
            branch = layer.out.product(mixed).unflatten(0, (len(wanted), -1))
            stream = branch.add_(stream[wanted.start : wanted.stop])
            gate, up = layer.gate_up.product(self._normalized(stream).flatten(0, 1)).chunk(2, dim=-1)
            stream = layer.down.product(F.silu(gate).mul_(up)).unflatten(0, stream.shape[:2]).add_(stream)
        conditional, unconditional = self.out_proj(self._normalized(stream)).transpose(0, 1).chunk(2)
        return x - size * guided(conditional, unconditional, cfg[:, None, None])

    def _projections(
        self, layer: CpuLayer, stream: Tensor, wanted: range, projected: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries of the wanted tokens [.., 2b, h, d], rotated keys [n, 2b, g, d] and values."""
        heads, rotating = self.heads, self.heads + self.groups
        if projected is None:
            rows = self._normalized(stream)
            projected = layer.projections[-1].product(rows.flatten(0, 1)).unflatten(0, stream.shape[:2])
            if len(layer.projections) == 2:
                q = layer.projections[0].product(rows[wanted.start : wanted.stop].flatten(0, 1))
                q, kv = q.view(len(wanted), -1, heads, self.size), projected.unflatten(-1, (-1, self.size))
                k, v = kv.chunk(2, dim=2)
                return self._rotation.patch_queries(q), self._rotation.keys(k), v
        qk, v = projected.unflatten(-1, (-1, self.size)).split([rotating, self.groups], dim=2)
        q, k = self._rotation.both(qk).split([heads, self.groups], dim=2)
        return q[wanted.start : wanted.stop], k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of each sequence over its tokens, [wanted * 2b, h * d].

        PyTorch's softmax over a last dimension of a few tokens takes ten times as long as one over another dimension.
        """
        wanted, sequences = q.shape[:2]
        k, v = (part.permute(1, 2, 0, 3).flatten(0, 1) for part in (k, v))  # [2b * g, n, d]
        q = q.unflatten(2, (self.groups, -1)).permute(1, 2, 3, 0, 4)  # [2b, g, h / g, wanted, d]
        scores = torch.bmm(k, q.reshape(len(k), -1, self.size).transpose(1, 2))  # [2b * g, n, h / g * wanted]
        mixed = torch.bmm(scores.softmax(1).transpose(1, 2), v)
        mixed = mixed.view(sequences, self.groups, -1, wanted, self.size)
        return mixed.permute(3, 0, 1, 2, 4).reshape(wanted * sequences, -1)

    def _normalized(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self._eps, length, length, value=1 / self._hidden).rsqrt()


def cpu_network(dit: LocDiT) -> CpuNetwork | None:
    """The network with oneDNN's products; None without them, or if they alone have the large weights of `dit`."""
    maps = [linear for layer in dit.stack.layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    serves = isinstance(dit.stack.ops, PackedOps) and all(linear.weight.numel() for linear in maps)
    return CpuNetwork(dit, packed=True) if serves else None


def _behind(norm: RMSNorm, linear: Linear) -> Tensor:
    return linear.weight if norm.weight is None else linear.weight * norm.weight


def _packed(weight: Tensor) -> Linear:
    return PackedLinear.of(Linear(weight), keep=False)


class CpuFlow:
    """A `FlowLoop`. Batches with LoRA adapters, and those that nothing else serves, take the plain loop."""

    def __init__(
        self, plain: PlainFlow, network: CpuNetwork | None, evaluations: Mapping[int, Evaluation] | None = None
    ) -> None:
        """`evaluations`, by number of sequences, are compiled."""
        self.plain, self.network, self.evaluations = plain, network, evaluations or {}

    def __call__(
        self,
        noise: Tensor,
        mu: Tensor,
        condition: Tensor,
        cfg: Tensor,
        schedule: FlowSchedule,
        adapter: Tensor | None = None,
    ) -> Tensor:
        evaluate = self.evaluations.get(len(noise), self.network)
        if evaluate is None or adapter is not None:
            return self.plain(noise, mu, condition, cfg, schedule, adapter)
        x = noise.contiguous()
        steps = prefixes(self.plain.dit, mu, condition, schedule.tokens)
        for prefix, size in zip(steps, schedule.sizes, strict=True):
            x = evaluate(x, *prefix, cfg, size)
        return x
