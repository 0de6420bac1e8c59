"""The Euler loop in few launches for any batch: `PatchFlow` holds the truth, this the same weights for kernels."""

from __future__ import annotations

from torch import Tensor

from voxcpm_grpc.kernels.flow_step import flow_rows, flow_step
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import Residual
from voxcpm_grpc.models.voxcpm2.local import LocDiT, patch_tokens


class FusedFlow:
    """A `local.Loop`: the layers as they are, one launch before them and one behind."""

    def __init__(self, dit: LocDiT) -> None:
        self.dit, self.stack, self.norm = dit, dit.stack, dit.stack.norm
        self.into, self.out = _with_bias(dit.in_proj), _with_bias(dit.out_proj)

    def __call__(
        self, noise: Tensor, mu: Tensor, condition: Tensor, cfg: Tensor, tokens: Tensor, sizes: Tensor
    ) -> Tensor:
        x, before = noise, self.dit.cond_proj(condition)
        wanted = patch_tokens(x.shape[1])
        for i, time in enumerate(tokens):
            rows, squares = flow_rows(x, *self.into, mu, time, before)
            stream = Residual(rows.flatten(0, 1), squares, own=True)
            made = self.stack.run(stream, rows.shape[:2], self.dit.attend, wanted).x
            assert self.norm.weight is not None
            x = flow_step(made, self.norm.weight, self.norm.eps, *self.out, x, sizes, i, cfg)
        return x


def _with_bias(linear: Linear) -> tuple[Tensor, Tensor]:
    assert linear.bias is not None
    return linear.weight, linear.bias
