"""Attention over a paged KV cache and inside short sequences, with one module for each backend."""

from voxcpm_grpc.attention.base import Attention, HeadNorms, PagedKV, PagedRows, Rotation, RowNorm

__all__ = ["Attention", "HeadNorms", "PagedKV", "PagedRows", "Rotation", "RowNorm"]
