"""Compiles kernels in CUDA C++ while the weights of a model are read."""

from __future__ import annotations

from voxcpm_grpc.kernels import gated_cuts, split_cuts
from voxcpm_grpc.kernels.cuda import decode_layers, decode_rows
from voxcpm_grpc.kernels.cuda.compiler import compile_cuda
from voxcpm_grpc.kernels.cuda.persistent import ENCODER, FLOW
from voxcpm_grpc.kernels.gated_product import compile_gated_product
from voxcpm_grpc.kernels.split_product import compile_split_product
from voxcpm_grpc.models.voxcpm import few_rows, persistent
from voxcpm_grpc.models.voxcpm.config import VoxCPMConfig


def compile_ahead(config: VoxCPMConfig, *, single_launches: bool) -> None:
    """Start to compile the kernels that a model of these sizes loads, in the order in which it does so.

    `single_launches` includes those that are a whole network. The other kernels take little time, or their constants
    depend on calls: they are compiled when they are needed.
    """
    if single_launches and config.base.layer == few_rows.LAYER:
        compile_cuda(decode_layers.SOURCE)
        for rows in decode_rows.SLOTS:
            decode_rows.compile_rows(rows)
    if single_launches and config.dit.layer == persistent.LAYER:
        for source, _ in (FLOW, ENCODER):
            compile_cuda(source)
    if (config.dit.hidden, config.dit.ffn) in gated_cuts.SIZES:
        for inputs, cut in split_cuts.CUTS:
            compile_split_product(inputs, cut)
        for cut in gated_cuts.CUTS:
            compile_gated_product(config.dit.hidden, cut)
