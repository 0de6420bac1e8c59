import pytest
import torch

from voxcpm_grpc.models.voxcpm.flow.matching import build_schedule, embed_time, euler


@pytest.mark.parametrize(
    ("timesteps", "evaluations"), [(1, 0), (2, 1), (10, 9), (48, 47), (49, 47), (73, 71), (74, 71)]
)
def test_the_first_steps_are_not_evaluated(timesteps, evaluations):
    schedule = build_schedule(timesteps, torch.float32)
    assert len(schedule.time) == len(schedule.size) == evaluations


def test_a_schedule_falls_to_zero():
    schedule = build_schedule(10, torch.float32)
    assert torch.all(schedule.time.diff() < 0)
    assert float(schedule.time[-1]) - schedule.size[-1] == pytest.approx(0, abs=1e-6)


def test_euler_uses_the_conditional_velocity_at_strength_one():
    noise, c, u = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(0)).unbind()
    schedule = build_schedule(6, torch.float32)
    out = euler(noise, schedule, lambda x, i: (c, u), torch.ones(2))
    assert torch.allclose(out, noise - sum(schedule.size) * c, atol=1e-5)


def test_guidance_is_scaled_sequence_by_sequence():
    noise, c, u = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(1)).unbind()
    schedule, cfg = build_schedule(4, torch.float32), torch.tensor([2.0, 3.0])
    together = euler(noise, schedule, lambda x, i: (c, u), cfg)
    for i in range(2):
        row = slice(i, i + 1)
        alone = euler(noise[row], schedule, lambda x, _, row=row: (c[row], u[row]), cfg[row])
        assert torch.allclose(together[row], alone, atol=1e-6)


def test_a_zero_velocity_gives_finite_latents():
    noise = torch.ones(1, 4, 8)
    out = euler(noise, build_schedule(4, torch.float32), lambda x, i: (noise, torch.zeros_like(x)), torch.ones(1))
    assert out.isfinite().all()


def test_guidance_is_computed_in_float32():
    c, u = (torch.full((1, 4, 64), value, dtype=torch.bfloat16) for value in (1.0, 0.5))
    assert euler(torch.zeros(1, 4, 64), build_schedule(4, torch.float32), lambda x, i: (c, u), torch.ones(1)).dtype == (
        torch.float32
    )


def test_times_are_embedded_in_their_own_dtype():
    exact, rounded = (embed_time(torch.tensor([0.7], dtype=dtype), 64) for dtype in (torch.float32, torch.bfloat16))
    assert rounded.dtype == torch.bfloat16
    assert (exact - rounded.float()).abs().max() > 0.5  # the error that a model was trained with
