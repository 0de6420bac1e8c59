import torch

from voxcpm_grpc.layers.noise import GaussianNoise


def test_one_launch_equals_the_plain_operations(target):
    from voxcpm_grpc.kernels.noise import gaussian

    device, _ = target
    rows = torch.tensor([(0, 0, 0, 0), (2**63 - 1, 3, 2, 1), (5 + 2**32, 0, 7, 2**31), (123456789, 2**32 - 1, 0, 99)])
    seed, turn, segment, step = rows.T.contiguous().to(device)
    for size in (32, 256):
        truth = GaussianNoise(size, torch.device(device))(seed, turn, segment, step)
        torch.testing.assert_close(gaussian(seed, turn, segment, step, size), truth, atol=2e-5, rtol=1e-4)
