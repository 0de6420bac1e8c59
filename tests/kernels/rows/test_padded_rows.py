"""Matrices with spare rows."""

import pytest
import torch

from voxcpm_grpc.kernels.rows.padded_rows import SPARE_ROWS, empty_rows, widened


def test_a_matrix_has_the_rows_asked_for_and_spare_rows_behind_them():
    x = empty_rows(torch.zeros(1, dtype=torch.float16), 5, 3)
    assert (x.shape, x.dtype) == ((5, 3), torch.float16)
    wide = widened(x, 5 + SPARE_ROWS)
    assert wide is not None
    assert wide.shape == (5 + SPARE_ROWS, 3)
    wide[:5] = 7
    assert (x == 7).all()


@pytest.mark.parametrize("first", [0, 2])
def test_no_matrix_is_wider_than_its_memory(first):
    x = empty_rows(torch.zeros(1), 5, 3)[first:]
    assert widened(x, len(x) + SPARE_ROWS) is not None
    assert widened(x, len(x) + SPARE_ROWS + 1) is None


def test_columns_of_a_matrix_are_not_widened():
    assert widened(empty_rows(torch.zeros(1), 5, 4)[:, :2], 6) is None
