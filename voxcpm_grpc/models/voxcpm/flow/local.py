"""The two small bidirectional transformers of a patch: its encoder, and the diffusion transformer that generates it.

Dimensions: b sequences (or patches), P latent frames of a patch, D latent channels, e hidden size.

Inside, sequences are side by side, with the tokens first: [tokens, b, e]. The rows of the tokens whose output is needed
are then contiguous, and the last layer computes only these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.attention import Attention, Rotation, RowNorm
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import Ops
from voxcpm_grpc.layers.rope import Rope
from voxcpm_grpc.layers.transformer import StackShape, Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.flow.matching import embed_time


class LocEnc:
    """Encodes patches [b, P, D] to vectors [b, e], the output of a special token in front of the frames."""

    def __init__(
        self, shape: StackShape, latent_dim: int, rope: Rope, attention: Attention, ops: Ops, weights: Weights
    ) -> None:
        self.rope = rope
        self.attend = partial(attend_local, attention, rope.whole())
        self.token = weights.take("special_token", 1, 1, 1, shape.hidden)[0]  # [1, 1, e]
        self.in_proj = Linear.load(weights, "in_proj", shape.hidden, latent_dim)
        self.stack = Transformer(shape, weights.scope("encoder"), ops, late_norm=True)

    def __call__(self, patches: Tensor) -> Tensor:
        frames = self.in_proj(patches).transpose(0, 1)
        x = torch.cat([self.token.expand(-1, len(patches), -1), frames])  # [1 + P, b, e]
        return self.stack(x, self.attend, wanted=range(1))[0]


@dataclass(frozen=True, slots=True)
class PatchEncoder:
    """Encodes patches [b, P, D] to vectors [b, e]. `single` serves one patch, `batch` every other number of them."""

    single: Callable[[Tensor], Tensor]
    batch: Callable[[Tensor], Tensor]

    def __call__(self, patches: Tensor) -> Tensor:
        return self.single(patches) if len(patches) == 1 else self.batch(patches)


class LocDiT:
    """The velocity of a patch at a time, given the outputs of the language models and the previous patch.

    In front of the patches stand the mu tokens, the outputs of the language models. VoxCPM2 has two of them, and a time
    token behind them. The first generation has one, to which the time token is added.
    """

    def __init__(
        self,
        shape: StackShape,
        latent_dim: int,
        rope: Rope,
        attention: Attention,
        ops: Ops,
        weights: Weights,
        *,
        mu_tokens: int,
    ) -> None:
        self.rope, self.hidden, self.mu_tokens = rope, shape.hidden, mu_tokens
        self.attend = partial(attend_local, attention, rope.whole())
        self.in_proj = Linear.load(weights, "in_proj", shape.hidden, latent_dim)
        self.cond_proj = Linear.load(weights, "cond_proj", shape.hidden, latent_dim)
        self.out_proj = Linear.load(weights, "out_proj", latent_dim, shape.hidden)
        self.time_mlp, self.delta_mlp = (
            tuple(Linear.load(weights, f"{name}.linear_{i}", shape.hidden, shape.hidden) for i in (1, 2))
            for name in ("time_mlp", "delta_time_mlp")
        )
        self.stack = Transformer(shape, weights.scope("decoder"), ops, late_norm=True)

    def time_tokens(self, time: Tensor, delta: Tensor) -> Tensor:
        """Tokens [t, 1, e] of times [t] and of the deltas beside them, [t].

        The embedding is computed in the dtype and on the device of `time`.
        """
        weight = self.in_proj.weight
        tokens = []
        for mlp, at in ((self.time_mlp, time), (self.delta_mlp, delta)):
            embedded = embed_time(at, self.hidden).to(weight.device, weight.dtype)
            tokens.append(mlp[1](F.silu(mlp[0](embedded))))
        return (tokens[0] + tokens[1])[:, None]

    def context(self, mu: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs that are the same in all evaluations, for a conditional and an unconditional half.

        mu [b, m, e] and the previous patch [b, P, D] -> [m, 2b, e] and [P, 2b, e]. Only mu differs between the halves.
        """
        both = torch.cat([mu, torch.zeros_like(mu)]), self.cond_proj(condition).repeat(2, 1, 1)
        return both[0].transpose(0, 1), both[1].transpose(0, 1)

    def __call__(
        self, x: Tensor, time_token: Tensor, mu: Tensor, condition: Tensor, adapter: Tensor | None = None
    ) -> Tensor:
        """Velocities [2b, P, D] at x [b, P, D] and a time token [1, e].

        mu and condition are results of `context`. adapter int64 [2b] has the banks of both halves.
        """
        time = time_token.expand(1, mu.shape[1], -1)
        patch = self.in_proj(x).transpose(0, 1).repeat(1, 2, 1)
        first = (mu + time,) if self.mu_tokens == 1 else (mu, time)
        rows = torch.cat([*first, condition, patch])  # [first tokens + P + P, 2b, e]
        made = self.stack(rows, self.attend, self.patch_tokens(len(patch)), adapter)
        return self.out_proj(made).transpose(0, 1)

    def patch_tokens(self, frames: int) -> range:
        """The tokens of the new patch, the last ones of a sequence."""
        before = first_tokens(self.mu_tokens) + frames
        return range(before, before + frames)


def first_tokens(mu_tokens: int) -> int:
    """The tokens in front of the patches: mu and time."""
    return 1 if mu_tokens == 1 else mu_tokens + 1


def attend_local(
    attention: Attention,
    rotate: Rotation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: int,
    norm: RowNorm | None,
    wanted: range | None = None,
) -> Tensor:
    """With `attention` and `rotate` bound, this is an `Attend` over whole sequences with a late norm."""
    return attention.attend_full(q, k, v, rotate, norm, wanted)
