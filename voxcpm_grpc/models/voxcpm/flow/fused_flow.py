"""The flow loop in few launches for a batch of any size, with the weights of the plain loop."""

from __future__ import annotations

from torch import Tensor

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import ResidualStream
from voxcpm_grpc.models.voxcpm.flow.flow import FlowSchedule
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT
from voxcpm_grpc.models.voxcpm.kernels.flow_advance import FlowWeights, flow_advance, serves
from voxcpm_grpc.models.voxcpm.kernels.flow_step import flow_rows, flow_step


class FusedFlow:
    """A `flow.FlowLoop`: the layers as they are, with one launch between evaluations, or two without its kernel."""

    def __init__(self, dit: LocDiT) -> None:
        norm = dit.stack.norm
        assert norm.weight is not None
        self.dit, self.stack = dit, dit.stack
        self.weights = FlowWeights(norm.weight, norm.eps, out=_with_bias(dit.out_proj), into=_with_bias(dit.in_proj))

    def __call__(
        self,
        noise: Tensor,
        mu: Tensor,
        condition: Tensor,
        cfg: Tensor,
        schedule: FlowSchedule,
        adapter: Tensor | None = None,
    ) -> Tensor:
        both, weights = None if adapter is None else adapter.repeat(2), self.weights
        x, before = noise.contiguous(), self.dit.cond_proj(condition)
        wanted, (first, *others) = self.dit.patch_tokens(x.shape[1]), schedule.tokens[:, 0]
        in_one_launch = serves(weights, x, mu)

        def evaluate(rows: Tensor, squares: Tensor) -> Tensor:
            stream = ResidualStream(rows.flatten(0, 1), squares, exclusive=True, adapter=both)
            return self.stack.run(stream, rows.shape[:2], self.dit.attend, wanted).x

        made = evaluate(*flow_rows(x, *weights.into, mu, first, before))
        for i, time in enumerate(others):
            if in_one_launch:
                x, rows, squares = flow_advance(made, weights, x, schedule.sizes, i, cfg, mu, time, before)
            else:
                x = flow_step(made, weights.norm, weights.eps, *weights.out, x, schedule.sizes, i, cfg)
                rows, squares = flow_rows(x, *weights.into, mu, time, before)
            made = evaluate(rows, squares)
        return flow_step(made, weights.norm, weights.eps, *weights.out, x, schedule.sizes, len(others), cfg)


def _with_bias(linear: Linear) -> tuple[Tensor, Tensor]:
    assert linear.bias is not None
    return linear.weight, linear.bias
