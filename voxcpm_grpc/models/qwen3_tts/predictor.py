"""The code predictor: a small decoder that makes the other codes of a step, one after another, from its first.

Dimensions: b sequences, h width of the talker, e width of the predictor, v codes of a codebook, q codes of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxcpm_grpc.attention import HeadNorms, Rotation
from voxcpm_grpc.kernels.attention import reference
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import Ops, ResidualStream
from voxcpm_grpc.layers.rope import build_rope
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.qwen3_tts.config.config import Qwen3Config
from voxcpm_grpc.models.qwen3_tts.sampling import Choose
from voxcpm_grpc.models.qwen3_tts.talker import CodeEmbedding, CodeRows, ProjectedCodes, head_norms


class StepAttention(Protocol):
    """Attention over the tokens of a step."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, kv: Tensor, start: int, wanted: range | None = None
    ) -> Tensor:
        """Attention of new tokens q [n, b, h, d] with k and v [n, b, g, d], at positions from `start` on.

        kv [layers, 2, q, b, g, d] has the keys and values of the tokens before, and gets theirs. Heads are normalized
        and rotated here. Returns [n, b, h, d], or the `wanted` ones of the new tokens.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """`StepAttention` by separate operations."""

    norms: list[HeadNorms]  # of each layer
    rope: Rotation  # of all positions of a step

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, kv: Tensor, start: int, wanted: range | None = None
    ) -> Tensor:
        stop = start + len(k)
        wanted = range(len(k)) if wanted is None else wanted
        rotate = Rotation(self.rope.cos[start:stop], self.rope.sin[start:stop])
        q, k = self.norms[layer](q, k)
        q, k = rotate(q), rotate(k)
        keys, values = kv[layer].unbind(0)
        keys[start:stop], values[start:stop] = k, v
        place = torch.arange(start + wanted.start, start + wanted.stop, device=q.device)
        seen = place[:, None] >= torch.arange(stop, device=q.device)
        return reference.attention(q[wanted.start : wanted.stop], keys[:stop], values[:stop], seen)


class Predictor:
    """Its keys and values are scratch memory of a step: position 0 is the talker's state, position i the code i - 1."""

    def __init__(
        self, config: Qwen3Config, embedding: CodeEmbedding, ops: Ops, weights: Weights, *, fused: bool = False
    ) -> None:
        """Take the weights, whose names begin with `code_predictor.` in the talker's.

        With `fused`, attention takes one launch. A talker of another width has its rows projected: its states in each
        step, and the rows of codes on a GPU once, into a table.
        """
        shape = config.predictor.shape
        self._shape, self._groups = shape, config.groups
        self._rows: CodeRows = embedding
        self._project = None
        if config.projects:
            self._project = Linear.load(weights, "small_to_mtp_projection", shape.hidden, config.talker.hidden_size)
            codes = ProjectedCodes(embedding, self._project)
            self._rows = codes if weights.device.type == "cpu" else codes.table()
        self._stack, self._ops = Transformer(shape, weights.scope("model"), ops), ops
        self._heads = [
            ops.prepare(
                self._stack.norm, Linear.load(weights, f"lm_head.{group}", config.codes, shape.hidden, bias=False)
            )
            for group in range(config.groups - 1)
        ]
        rope = build_rope(config.groups, shape.head_dim, config.predictor.rope_theta, None, 1.0, weights.dtype)
        norms = head_norms(shape, weights.scope("model"))
        self._attention = _attention(norms, rope.to(weights.device).whole(), fused=fused)

    def __call__(self, hidden: Tensor, first: Tensor, choose: Choose) -> Tensor:
        """The codes [b, q] of a step, from the talker's state [b, h] and the first code [b], which is one of them."""
        codes, c = [first], self._shape
        kv = hidden.new_empty(c.layers, 2, self._groups, len(hidden), c.kv_heads, c.head_dim)
        begin = hidden if self._project is None else self._project(hidden)
        x = torch.stack([begin, self._rows(first, 0)])  # [n, b, e]: tokens come first
        start = 0
        for group in range(1, self._groups):
            state = self._run(x, kv, start)
            codes.append(choose(self._ops.norm_linear(state, *self._heads[group - 1]), group))
            start += len(x)
            if group < self._groups - 1:
                x = self._rows(codes[-1], group)[None]
        return torch.stack(codes, dim=1)

    def _run(self, x: Tensor, kv: Tensor, start: int) -> ResidualStream:
        """The stream of the last of the tokens x [n, b, e] at positions from `start` on, before the final norm.

        The keys and values of all are added.
        """

        def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, wanted: range | None = None) -> Tensor:
            return self._attention(q, k, v, layer, kv, start, wanted)

        stream = ResidualStream(x.reshape(-1, self._shape.hidden))
        return self._stack.run(stream, x.shape[:-1], attend, wanted=range(len(x) - 1, len(x)))


def _attention(norms: list[HeadNorms], rope: Rotation, *, fused: bool) -> StepAttention:
    if not fused:
        return PlainAttention(norms, rope)
    from voxcpm_grpc.models.qwen3_tts.kernels.predictor_attention import FusedAttention

    return FusedAttention(norms, rope)
