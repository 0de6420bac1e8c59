"""One function, `attend`, over a paged KV cache; which kernel serves it is decided once, at start."""

from voxcpm_grpc.attention.base import Attention, PagedKV, PagedRows, Rotation, RowNorm, select_attention

__all__ = ["Attention", "PagedKV", "PagedRows", "Rotation", "RowNorm", "select_attention"]
