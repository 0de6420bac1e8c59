"""The optimizer Muon: orthogonalized momentum for matrices. Other parameters are trained with AdamW.

The weight [rows, columns, taps] of a convolution is one matrix for each tap.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
STEP = 0.4  # root mean square of an update, per unit of learning rate
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the polynomial that moves singular values towards 1


def orthogonal(g: Tensor) -> Tensor:
    """Approximately the nearest semi-orthogonal matrix to each matrix of g: [n, rows, columns]."""
    tall = g.shape[1] > g.shape[2]
    x = (g.mT if tall else g).to(torch.bfloat16 if g.is_cuda else g.dtype)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


def stacked(weight: Tensor) -> Tensor:
    """A weight as matrices: [matrices, rows, columns]."""
    return weight[None] if weight.ndim == 2 else weight.movedim(2, 0)


def unstacked(matrices: Tensor, like: Tensor) -> Tensor:
    """The reverse of `stacked`."""
    return matrices[0] if like.ndim == 2 else matrices.movedim(0, 2)


class Muon:
    """The optimizer. Its steps can be captured in a CUDA graph: the learning rate is on the device.

    An update of a matrix has about the root mean square of an update by AdamW at the same rate.
    """

    def __init__(self, matrices: list[nn.Parameter], rate: Tensor, decay: float) -> None:
        self.rate, self.decay = rate, decay
        shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            shapes[matrix.shape].append(matrix)
        self.groups = list(shapes.values())
        self.momenta = [torch.zeros_like(self.gathered(group)) for group in self.groups]

    @staticmethod
    def gathered(weights: list[Tensor]) -> Tensor:
        return torch.cat([stacked(weight) for weight in weights]).float()

    @torch.no_grad()
    def step(self) -> None:
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            grad = self.gathered([p.grad for p in group if p.grad is not None])
            momentum.lerp_(grad, 1 - MOMENTUM)
            move = orthogonal(grad.lerp(momentum, MOMENTUM)).float()
            move *= -self.rate * STEP * max(move.shape[1:]) ** 0.5
            torch._foreach_mul_(group, 1 - self.rate * self.decay)  # pyright: ignore[reportPrivateImportUsage]
            moves = [unstacked(one, group[0]) for one in move.chunk(len(group))]
            torch._foreach_add_(group, moves)  # pyright: ignore[reportPrivateImportUsage]

    def state_dict(self) -> dict[str, Any]:
        return {"momenta": self.momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, theirs in zip(self.momenta, state["momenta"], strict=True):
            mine.copy_(theirs)
