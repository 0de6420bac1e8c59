import pytest

from voxcpm_grpc.kernels.persistent import KernelUnavailable
from voxcpm_grpc.models.voxcpm2.persistent import flow_weights


def test_another_shape_than_the_released_one_is_refused_in_words(load):
    with pytest.raises(KernelUnavailable, match=r"1024, 4096, 16, 2, 128, 64, 1.*not \(20, 52"):
        flow_weights(load().flow.dit)
