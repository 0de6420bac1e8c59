"""The operations of a layer in few launches.

This project's kernels, which load the weights once and fuse the operations around a product, serve where they are
fastest. Elsewhere cuBLAS's products serve, with this project's kernels between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voxcpm_grpc.attention import RowNorm
from voxcpm_grpc.kernels.launch.overlap import multiprocessors
from voxcpm_grpc.kernels.products import gated_cuts, split_cuts
from voxcpm_grpc.kernels.products.gated_product import gated_product, new_packets
from voxcpm_grpc.kernels.products.gemm_tiles import Epilogue, Tile, choose_tile
from voxcpm_grpc.kernels.products.gemv import gemv_linear_add, gemv_norm_gated, gemv_norm_linear
from voxcpm_grpc.kernels.products.skinny_gemm import linear_add, norm_gated, norm_linear
from voxcpm_grpc.kernels.products.split_product import split_linear_add
from voxcpm_grpc.kernels.rows.fused_rowwise import norm_swiglu, rms_norm, swiglu
from voxcpm_grpc.kernels.rows.padded_rows import rows_to_compute, widened
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import ResidualStream, RMSNorm


class TritonOps:
    """Fused kernels, chosen by the shapes of a call alone, so that a captured graph does the same as a call.

    The weight of a norm is multiplied into the linear map that follows it at load, and rounded once. The last bits of a
    row may depend on the number of rows, because another number may select another kernel.
    """

    def __init__(self, device: torch.device, *, tiled: bool, folds: bool = True) -> None:
        """`tiled` enables the kernels for two rows and more that are written for Hopper, where they are fast.

        Otherwise cuBLAS's products serve. Without `folds` norms keep their weights, and rows are rounded where the
        plain operations round them.
        """
        self.packets = new_packets(device)
        self.tiled, self.folds = tiled, folds

    def prepare(self, norm: RMSNorm, linear: Linear) -> tuple[RMSNorm, Linear]:
        if not self.folds or norm.weight is None or linear.bias is not None:
            return norm, linear
        low_rank = linear.low_rank and linear.low_rank.behind(norm.weight)
        return RMSNorm(None, norm.eps), Linear(linear.weight * norm.weight, low_rank=low_rank)

    def prepare_output(self, linear: Linear) -> Linear:
        return linear

    def norm_linear(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> Tensor:
        x, weight, adapter = stream.x, linear.weight, stream.adapter
        folded = norm.weight is None
        if len(x) == 1 and linear.bias is None and (folded or linear.low_rank is None):
            update, gain = linear.row_update(adapter), norm.weight
            out = gemv_norm_linear(x, norm.eps, weight, update, gain=gain, weight_scale=linear.weight_scale)
            if update is not None:
                update.add(out)
            return out
        tile = self._tile(Epilogue.NONE, x, linear)
        if tile is None or not (folded or linear.low_rank is None):
            return linear(rms_norm(x, norm.weight, norm.eps), adapter)
        update = linear.update_beside(x, adapter, eps=norm.eps)
        (x, squares, gain), late = self._counted(stream, norm), update is not None
        scales = linear.weight_scale
        out = norm_linear(x, squares, norm.eps, weight, tile, gain=gain, weight_scale=scales, late=late)
        if update is not None:
            update.add(out)
        return out

    def linear_norm(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> tuple[Tensor, RowNorm | None]:
        x = stream.x
        if len(x) == 1 or norm.weight is not None or linear.bias is not None or self._tile(Epilogue.NONE, x, linear):
            return self.norm_linear(stream, norm, linear), None
        out = self._product(x, linear.dequantized(x.dtype))
        if stream.adapter is not None and linear.low_rank is not None:
            linear.low_rank.add(out, x, stream.adapter)
        return out, RowNorm(x, norm.eps)

    def norm_gated(self, stream: ResidualStream, norm: RMSNorm, gate_up: Linear) -> Tensor:
        x, weight = stream.x, gate_up.weight
        if stream.adapter is not None and gate_up.low_rank is not None:
            return swiglu(self.norm_linear(stream, norm, gate_up))  # the update belongs in front of the activation
        if len(x) == 1 and gate_up.bias is None:
            return gemv_norm_gated(x, norm.eps, weight, gain=norm.weight, weight_scale=gate_up.weight_scale)
        tile = self._tile(Epilogue.GATED, x, gate_up)
        if tile is not None:
            x, squares, gain = self._counted(stream, norm)
            scales = gate_up.weight_scale
            return norm_gated(x, squares, norm.eps, weight, tile, gain=gain, weight_scale=scales)
        if norm.weight is not None or gate_up.bias is not None:
            return swiglu(gate_up(rms_norm(x, norm.weight, norm.eps)))
        cut = self._gated_cut(x, weight)
        if cut is not None:
            return gated_product(x, norm.eps, weight, self.packets, cut)
        return norm_swiglu(self._product(x, gate_up.dequantized(x.dtype)), x, norm.eps)

    def linear_add(self, x: Tensor, linear: Linear, stream: ResidualStream, scale: float) -> ResidualStream:
        weight, adapter = linear.weight, stream.adapter
        if linear.bias is not None:
            return ResidualStream(stream.x + linear(x, adapter) * scale, adapter=adapter)
        if len(x) == 1:
            update = linear.row_update(adapter)
            total = gemv_linear_add(x, weight, stream.x, scale, update, weight_scale=linear.weight_scale)
            if update is not None:
                update.add(total, scale=scale)
            return ResidualStream(total, exclusive=True, adapter=adapter)
        split = self._split_cut(x, weight)
        if split is not None and (adapter is None or linear.low_rank is None):
            total, squares = split_linear_add(x, weight, stream.x, scale, split, in_place=stream.exclusive)
            return ResidualStream(total, squares, exclusive=True, adapter=adapter)
        tile = self._tile(Epilogue.ADD, x, linear)
        if tile is None:
            total = self._add_by_library(x, linear.dequantized(x.dtype), stream, scale)
            if adapter is not None and linear.low_rank is not None:
                linear.low_rank.add(total, x, adapter, scale=scale)
            return ResidualStream(total, exclusive=True, adapter=adapter)
        update = linear.update_beside(x, adapter)
        scales, late = linear.weight_scale, update is not None
        total, squares = linear_add(x, weight, stream.x, scale, tile, weight_scale=scales, late=late)
        if update is not None:
            update.add(total, scale=scale, squares=squares)
        return ResidualStream(total, squares, exclusive=True, adapter=adapter)

    def norm(self, stream: ResidualStream, norm: RMSNorm) -> Tensor:
        return rms_norm(stream.x, norm.weight, norm.eps)

    def _tile(self, epilogue: Epilogue, x: Tensor, linear: Linear) -> Tile | None:
        if not self.tiled or linear.bias is not None:
            return None
        (outputs, inputs), fp8 = linear.weight.shape, linear.weight_scale is not None
        outputs = outputs // 2 if epilogue is Epilogue.GATED else outputs
        return choose_tile(epilogue, len(x), outputs, inputs, fp8)

    def _split_cut(self, x: Tensor, weight: Tensor) -> split_cuts.Cut | None:
        if not self.tiled or not x.dtype == weight.dtype == torch.bfloat16:
            return None
        outputs, inputs = weight.shape
        cut = split_cuts.choose_cut(len(x), outputs, inputs, multiprocessors(x.device))
        return cut if cut is not None and split_cuts.load_cuts(x.device) else None

    def _gated_cut(self, x: Tensor, weight: Tensor) -> gated_cuts.Cut | None:
        if not self.tiled or not x.dtype == weight.dtype == torch.bfloat16:
            return None
        cut = gated_cuts.choose_cut(len(x), len(weight) // 2, x.shape[1], multiprocessors(x.device))
        return cut if cut is not None and gated_cuts.load_cuts(x.device) else None

    def _add_by_library(self, x: Tensor, weight: Tensor, stream: ResidualStream, scale: float) -> Tensor:
        if not stream.exclusive:
            return stream.x.addmm(x, weight.t(), alpha=scale)
        # In place, cuBLAS adds to the stream. Into other memory it would copy the stream first.
        wide = self._widened(x, weight)
        total = stream.x if wide is x else widened(stream.x, len(wide))
        if total is None:
            wide, total = x, stream.x
        total.addmm_(wide, weight.t(), alpha=scale)
        return stream.x

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product of x [t, c] with weight [n, c], [t, n], by cuBLAS."""
        return (self._widened(x, weight) @ weight.t())[: len(x)]

    def _widened(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [t, c] with as many more rows as make its product with weight [n, c] faster, if its memory has them."""
        rows = rows_to_compute(len(x), *weight.shape) if self.tiled else len(x)
        if rows == len(x):
            return x
        wide = widened(x, rows)
        return x if wide is None else wide

    def _counted(self, stream: ResidualStream, norm: RMSNorm) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The stream, its squares and the weight of the norm, with which the kernel normalizes.

        Without squares the stream is normalized here, and the others are None.
        """
        if stream.squares is None:
            return rms_norm(stream.x, norm.weight, norm.eps), None, None
        return stream.x, stream.squares, norm.weight
