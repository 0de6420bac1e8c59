"""The code predictor: a small decoder that makes the other codes of a step, one after another, from its first.

Dimensions: b sequences, h width of the talker, e width of the predictor, v codes of a codebook, q codes of a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voxcpm_grpc.attention import Rotation
from voxcpm_grpc.kernels.attention import reference
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import Ops
from voxcpm_grpc.layers.rope import build_rope
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.qwen3_tts.config.config import Qwen3Config
from voxcpm_grpc.models.qwen3_tts.sampling import Choose
from voxcpm_grpc.models.qwen3_tts.talker import CodeEmbedding, HeadNorms


class Predictor:
    """Its keys and values are scratch memory of a step: position 0 is the talker's state, position i the code i - 1."""

    def __init__(self, config: Qwen3Config, embedding: CodeEmbedding, ops: Ops, weights: Weights) -> None:
        """Take the weights, whose names begin with `code_predictor.` in the talker's."""
        shape = config.predictor.shape
        self._shape, self._groups, self._embedding = shape, config.groups, embedding
        self._project = None
        if config.projects:
            self._project = Linear.load(weights, "small_to_mtp_projection", shape.hidden, config.talker.hidden_size)
        self._stack = Transformer(shape, weights.scope("model"), ops)
        self._norms = HeadNorms.load(shape, weights.scope("model"))
        self._heads = [
            Linear.load(weights, f"lm_head.{group}", config.codes, shape.hidden, bias=False)
            for group in range(config.groups - 1)
        ]
        rope = build_rope(config.groups, shape.head_dim, config.predictor.rope_theta, None, 1.0, weights.dtype)
        self._rope = rope.to(weights.device).whole()
        position = torch.arange(config.groups, device=weights.device)
        self._seen = position[:, None] >= position

    def __call__(self, hidden: Tensor, first: Tensor, choose: Choose) -> Tensor:
        """The codes [b, q] of a step, from the talker's state [b, h] and the first code [b], which is one of them."""
        codes, c = [first], self._shape
        kv = hidden.new_empty(c.layers, 2, self._groups, len(hidden), c.kv_heads, c.head_dim)
        x = torch.stack([hidden, self._embedding(first, 0)])  # [n, b, h]: tokens come first
        start = 0
        for group in range(1, self._groups):
            stop = start + len(x)
            state = self._run(x if self._project is None else self._project(x), kv, start, stop)
            codes.append(choose(self._heads[group - 1](state), group))
            if group < self._groups - 1:
                x, start = self._embedding(codes[-1], group)[None], stop
        return torch.stack(codes, dim=1)

    def _run(self, x: Tensor, kv: Tensor, start: int, stop: int) -> Tensor:
        """The last state [b, e] of tokens x [n, b, e] at positions start..stop, whose keys and values are added."""
        rotate = Rotation(self._rope.cos[start:stop], self._rope.sin[start:stop])

        def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, wanted: range | None = None) -> Tensor:
            first = start if wanted is None else start + wanted.start
            q, k = rotate(self._norms.q[layer](q)), rotate(self._norms.k[layer](k))
            keys, values = kv[layer].unbind(0)
            keys[start:stop], values[start:stop] = k, v
            return reference.attention(q[first - start :], keys[:stop], values[:stop], self._seen[first:stop, :stop])

        return self._stack(x, attend, wanted=range(len(x) - 1, len(x)))[0]
