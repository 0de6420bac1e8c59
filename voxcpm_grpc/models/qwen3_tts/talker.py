"""The talker: the language model over positions that sum text and codes, with the embeddings of both.

Dimensions as in models/base.py, and h the width of the talker, v its vocabulary, q the codes of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.attention import Attention, HeadNorms, PagedKV, PagedRows
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import Ops
from voxcpm_grpc.layers.rope import Rope, build_rope
from voxcpm_grpc.layers.transformer import StackShape, Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.qwen3_tts.config.config import Qwen3Config

TABLE_ROWS = 8192  # rows of the table of text that are computed at once


def head_norms(shape: StackShape, weights: Weights) -> list[HeadNorms]:
    """The norms of heads of each layer."""

    def gain(layer: int, name: str) -> Tensor:
        return weights.take(f"layers.{layer}.self_attn.{name}_norm.weight", shape.head_dim)

    return [HeadNorms(gain(i, "q"), gain(i, "k"), shape.eps) for i in range(shape.layers)]


class TextProjection:
    """The rows of the text, [t, h], for ids [t], computed from an embedding of another width."""

    def __init__(self, config: Qwen3Config, weights: Weights) -> None:
        sizes, hidden = config.text, config.talker.hidden_size
        width = sizes.text_hidden_size
        self.embedding = weights.take("model.text_embedding.weight", sizes.text_vocab_size, width)
        self._first = Linear.load(weights, "text_projection.linear_fc1", width, width)
        self._second = Linear.load(weights, "text_projection.linear_fc2", hidden, width)

    def __call__(self, ids: Tensor) -> Tensor:
        return self._project(F.embedding(ids, self.embedding))

    def _project(self, rows: Tensor) -> Tensor:
        return self._second(F.silu(self._first(rows)))

    def table(self) -> TextTable:
        """The rows of all ids."""
        return TextTable(torch.cat([self._project(part) for part in self.embedding.split(TABLE_ROWS)]))


@dataclass(frozen=True, slots=True)
class TextTable:
    """The rows of the text, [t, h], for ids [t], in a table: on a GPU a lookup costs less than the projection."""

    rows: Tensor  # [text vocabulary, h]

    def __call__(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.rows)


TextRows = Callable[[Tensor], Tensor]


class CodeEmbedding:
    """The embeddings of all codes of a step, in one table. That of the first code has the other ids, too."""

    def __init__(self, config: Qwen3Config, weights: Weights) -> None:
        size, hidden = config.codes, config.talker.hidden_size
        tables = [weights.take("model.codec_embedding.weight", config.talker.vocab_size, hidden)]
        for group in range(config.groups - 1):
            tables.append(weights.take(f"code_predictor.model.codec_embedding.{group}.weight", size, hidden))
        self.table = torch.cat(tables)
        starts = [0, *(config.talker.vocab_size + group * size for group in range(config.groups - 1))]
        self.starts = torch.tensor(starts, device=weights.device)
        self.tables = self.table.split([len(table) for table in tables])

    @staticmethod
    def look_up(ids: Tensor, table: Tensor) -> Tensor:
        """The rows [t, e] of ids [t] in a table [r, e]."""
        return F.embedding(ids, table)

    def __call__(self, ids: Tensor, group: int) -> Tensor:
        """The rows [t, h] of ids [t] of a code of the step."""
        return self.look_up(ids, self.tables[group])

    def summed(self, codes: Tensor) -> Tensor:
        """The sums [t, h] over the codes [t, q] of steps."""
        return F.embedding_bag(codes.long() + self.starts, self.table, mode="sum")


class FusedCodeEmbedding(CodeEmbedding):
    """The embeddings by a kernel of this project.

    Kernels are compiled ahead from calls that launch none of them, so what these calls draw is no id yet, and an
    operation of PyTorch would refuse it.
    """

    @staticmethod
    def look_up(ids: Tensor, table: Tensor) -> Tensor:
        from voxcpm_grpc.models.qwen3_tts.kernels.embeddings import lookup

        return lookup(ids, table)


class CodeRows(Protocol):
    """Rows for the codes of a step."""

    def __call__(self, ids: Tensor, group: int) -> Tensor:
        """The rows [t, e] of ids [t] of a code of the step."""
        ...


@dataclass(frozen=True, slots=True)
class ProjectedCodes:
    """The embeddings of codes, through a projection to another width."""

    codes: CodeEmbedding
    project: Linear

    def __call__(self, ids: Tensor, group: int) -> Tensor:
        return self.project(self.codes(ids, group))

    def table(self) -> CodeTable:
        """The rows of all codes."""
        return CodeTable([self.project(table) for table in self.codes.tables], self.codes.look_up)


@dataclass(frozen=True, slots=True)
class CodeTable:
    """The rows of codes in tables [ids, e]: on a GPU a look-up costs less than a projection."""

    tables: list[Tensor]
    look_up: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, ids: Tensor, group: int) -> Tensor:
        return self.look_up(ids, self.tables[group])


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of a step: the sums of the embeddings of its codes and of the next id of the text, or of padding."""

    codes: CodeEmbedding
    text: TextRows
    pad: int

    def __call__(self, slot: Tensor, step: Tensor, read: Tensor, text: Tensor, current: Tensor) -> Tensor:
        """Rows [b, h] of slots [b].

        All slots have a step and a number of ids to read, int64 [n], these ids, int32 [n, m], and codes int64 [n, q].
        """
        at = step[slot]
        id = torch.where(at < read[slot], text[slot, at.clamp(max=text.shape[1] - 1)].long(), self.pad)
        return self.codes.summed(current[slot]) + self.text(id)


class Talker:
    """The decoder over the KV cache, and its head."""

    def __init__(
        self,
        config: Qwen3Config,
        positions: int,
        attention: Attention,
        ops: Ops,
        weights: Weights,
    ) -> None:
        """positions: those of the longest sequence."""
        shape, size = config.talker.shape, config.talker.vocab_size
        self.shape, self._attention = shape, attention
        self._stack = Transformer(shape, weights.scope("model"), ops)
        self._norms = head_norms(shape, weights.scope("model"))
        self.head = Linear.load(weights, "codec_head", size, shape.hidden, bias=False)
        rope = build_rope(positions, shape.head_dim, config.talker.rope_theta, None, 1.0, weights.dtype)
        self.rope: Rope = rope.to(weights.device)

    def __call__(self, x: Tensor, position: Tensor, kv: PagedKV, rows: PagedRows) -> Tensor:
        """The hidden states [t, h] of rows x [t, h] at positions [t], after the final norm."""
        rotate = self.rope.at(position)

        def attend(q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
            norms = self._norms[layer]
            return self._attention.attend(q, k, v, layer, kv=kv, rows=rows, rotate=rotate, norms=norms)

        return self._stack(x, attend)
