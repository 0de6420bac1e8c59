import pytest
import torch

from voxcpm_grpc.layers.noise import GaussianNoise, SlotNoise


@pytest.mark.parametrize(("frames", "channels"), [(4, 8), (4, 64), (3, 12)])
def test_one_launch_equals_the_plain_operations(target, frames, channels):
    from voxcpm_grpc.kernels.rows.noise import gaussian

    device, _ = target
    rows = torch.tensor([(0, 0, 0, 0), (2**63 - 1, 3, 2, 1), (5 + 2**32, 0, 7, 2**31), (123456789, 2**32 - 1, 0, 99)])
    seed, turn, segment, step = rows.to(device).unbind(1)
    temperature = torch.tensor([[1, 9], [0.5, 9], [0, 9], [2, 9]], device=device)[:, 0]
    slot = torch.tensor([3, 1, 0, 2, 1], device=device)
    plain = SlotNoise(GaussianNoise(frames * channels, torch.device(device)), frames, channels)
    out = gaussian(slot, seed, turn, segment, step, temperature, frames=frames, channels=channels)
    truth = plain(slot, seed, turn, segment, step, temperature)
    torch.testing.assert_close(out, truth, atol=2e-5, rtol=1e-4)
