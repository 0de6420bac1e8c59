"""The sizes that are captured."""

from __future__ import annotations

import pytest

from voxcpm_grpc.engine.device.graphs import advance_buckets, generate_buckets
from voxcpm_grpc.models.voxcpm.kernels.decode_rows import SLOTS


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 8, 9, 16, 20, 64, 128])
def test_every_number_of_streams_has_a_bucket_and_the_largest_is_its_own(most):
    for sizes in (generate_buckets(most), advance_buckets(most)):
        assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == most


@pytest.mark.parametrize("most", [1, 3, 7, 8, 20, 128])
def test_language_models_advance_no_more_rows_than_the_slots_in_static_memory(most):
    assert set(advance_buckets(most)) <= set(generate_buckets(most))


def test_up_to_8_streams_language_models_advance_numbers_of_rows_that_one_kernel_serves():
    assert [size for size in advance_buckets(128) if size <= 8] == [1, *SLOTS]
