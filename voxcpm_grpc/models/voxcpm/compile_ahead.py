"""Compiles kernels in CUDA C++ while the weights of a model are read."""

from __future__ import annotations

import torch

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import compile_cuda, suppress_unavailable
from voxcpm_grpc.kernels.launch.overlap import multiprocessors
from voxcpm_grpc.kernels.products import gated_cuts, split_cuts
from voxcpm_grpc.kernels.products.gated_product import compile_gated_product
from voxcpm_grpc.kernels.products.split_product import compile_split_product
from voxcpm_grpc.models.voxcpm import few_rows
from voxcpm_grpc.models.voxcpm.config.config import VoxCPMConfig
from voxcpm_grpc.models.voxcpm.flow import persistent
from voxcpm_grpc.models.voxcpm.kernels import decode_layers, decode_rows
from voxcpm_grpc.models.voxcpm.kernels.persistent import ENCODER, FLOW


def compile_ahead(config: VoxCPMConfig, device: torch.device, *, language: bool, local: bool) -> None:
    """Start to compile the kernels that a model of these sizes loads, in the order in which it does so.

    `language` and `local` include those that are a whole language model, and a whole diffusion or encoder. The other
    kernels take little time, or their constants depend on calls: they are compiled when they are needed.
    """
    with suppress_unavailable("kernels in CUDA C++ are not compiled"):
        compiler.require_hopper(device)
        if multiprocessors(device) >= decode_layers.BLOCKS:
            _compile_networks(config, language=language, local=local)
        if (config.dit.hidden, config.dit.ffn) in gated_cuts.SIZES:
            _compile_products(config.dit.hidden, divided=multiprocessors(device) >= split_cuts.MULTIPROCESSORS)


def _compile_networks(config: VoxCPMConfig, *, language: bool, local: bool) -> None:
    if language and config.base.layer == few_rows.LAYER:
        compile_cuda(decode_layers.SOURCE)
        for rows in decode_rows.SLOTS:
            decode_rows.compile_rows(rows)
    if local and config.dit.layer == persistent.LAYER:
        compile_cuda(FLOW[0])
    if local and config.encoder.layer == persistent.LAYER:
        compile_cuda(ENCODER[0])


def _compile_products(hidden: int, *, divided: bool) -> None:
    if divided:
        for inputs, cut in split_cuts.CUTS:
            compile_split_product(inputs, cut)
    for cut in gated_cuts.CUTS:
        compile_gated_product(hidden, cut)
