"""Matrices with spare rows behind them in memory, for products that are faster with more rows."""

from __future__ import annotations

from torch import Tensor

SPARE_ROWS = 128


def empty_rows(like: Tensor, rows: int, columns: int) -> Tensor:
    """An uninitialized matrix [rows, columns] with the dtype and on the device of `like`, and spare rows behind it."""
    return like.new_empty(rows + SPARE_ROWS, columns)[:rows]


def widened(x: Tensor, rows: int) -> Tensor | None:
    """The matrix x [t, c] with the rows that follow it in memory, [rows, c]; None if its memory ends earlier.

    The content of the other rows is arbitrary.
    """
    end = (x.storage_offset() + rows * x.shape[1]) * x.element_size()
    if not x.is_contiguous() or end > x.untyped_storage().nbytes():
        return None
    return x.as_strided((rows, x.shape[1]), x.stride())
