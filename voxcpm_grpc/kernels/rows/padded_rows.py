"""Rows beside those that hold values: spare ones behind an output, and more for a product where cuBLAS is faster so."""

from __future__ import annotations

from collections.abc import Mapping

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


# Each (inputs, outputs) has numbers of rows to compute in place of the keys.
_FASTER: Mapping[tuple[int, int], Mapping[int, int]] = {
    (1024, 2560): {1760: 1792, 1936: 2016},
    (2048, 1024): {704: 768, 832: 880, 1056: 1072, 1232: 1264, 1408: 1424, 1584: 1648},
    (4096, 1024): {576: 672, 600: 672, 640: 672, 704: 784, 768: 784, 832: 896, 1232: 1280, 1408: 1520, 1584: 1616},
}


def rows_to_compute(rows: int, outputs: int, inputs: int) -> int:
    """The number of rows, `rows` or more, with which a product of `inputs` by `outputs` takes the least time."""
    return _FASTER.get((inputs, outputs), {}).get(rows, rows)
