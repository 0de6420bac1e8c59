"""The plain maps between the networks of a step, as the fast ones use them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from voxcpm_grpc.layers.linear import Linear


class Quantizer(Protocol):
    scale: int
    in_proj: Linear
    out_proj: Linear

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainMaps(Protocol):
    """Members of `Networks`, which describes them."""

    @property
    def fusion(self) -> Linear | None: ...

    @property
    def quantize(self) -> Quantizer: ...

    @property
    def lm_to_dit(self) -> Linear: ...

    @property
    def res_to_dit(self) -> Linear: ...

    @property
    def stop_proj(self) -> Linear: ...

    def conditioning(
        self, slot: Tensor, semantic: Tensor, acoustic: Tensor, adapter: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...
