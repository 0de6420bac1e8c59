"""The flow loop in few launches for a batch of any size, with the weights of the plain loop."""

from __future__ import annotations

from torch import Tensor

from voxcpm_grpc.kernels.flow_step import flow_rows, flow_step
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import ResidualStream
from voxcpm_grpc.models.voxcpm.flow import FlowSchedule
from voxcpm_grpc.models.voxcpm.local import LocDiT


class FusedFlow:
    """A `flow.FlowLoop`: the layers as they are, with one launch before and one after them."""

    def __init__(self, dit: LocDiT) -> None:
        self.dit, self.stack, self.norm = dit, dit.stack, dit.stack.norm
        self.into, self.out = _with_bias(dit.in_proj), _with_bias(dit.out_proj)

    def __call__(
        self,
        noise: Tensor,
        mu: Tensor,
        condition: Tensor,
        cfg: Tensor,
        schedule: FlowSchedule,
        adapter: Tensor | None = None,
    ) -> Tensor:
        both = None if adapter is None else adapter.repeat(2)
        x, before = noise.contiguous(), self.dit.cond_proj(condition)
        wanted = self.dit.patch_tokens(x.shape[1])
        for i, time in enumerate(schedule.tokens[:, 0]):
            rows, squares = flow_rows(x, *self.into, mu, time, before)
            stream = ResidualStream(rows.flatten(0, 1), squares, exclusive=True, adapter=both)
            made = self.stack.run(stream, rows.shape[:2], self.dit.attend, wanted).x
            assert self.norm.weight is not None
            x = flow_step(made, self.norm.weight, self.norm.eps, *self.out, x, schedule.sizes, i, cfg)
        return x


def _with_bias(linear: Linear) -> tuple[Tensor, Tensor]:
    assert linear.bias is not None
    return linear.weight, linear.bias
