"""Kernels run on a GPU, and where there is none in Triton's interpreter, which must be asked for before the import."""

import atexit
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    # Imported for interpretation, Triton's bindings print a screen of what they think they leak, after everything
    # else. atexit runs its functions last in, first out: this one after those of whatever is imported later.
    atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2))

PLACES = [
    pytest.param(("cpu", torch.float32), id="interpreter"),  # its bfloat16 is wrong, so that counts on a GPU only
    pytest.param(("cuda", torch.float32), id="cuda-float32", marks=pytest.mark.gpu),
    pytest.param(("cuda", torch.bfloat16), id="cuda-bfloat16", marks=pytest.mark.gpu),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> tuple[str, torch.dtype]:
    """A device and a type that the kernels run with there."""
    device, dtype = request.param
    if (device == "cuda") != torch.cuda.is_available():
        pytest.skip("needs a CUDA device" if device == "cuda" else "with a GPU the kernels run there, not interpreted")
    return device, dtype


@pytest.fixture(autouse=True)
def poisoned_outputs():
    """Memory that nobody wrote is NaN, so that an output left out or a part read too early shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def agree(place: tuple[str, torch.dtype]):
    """Asserts ||out - truth|| / ||truth|| below what the type allows; NaN never passes."""
    limit = 1e-2 if place[1] == torch.bfloat16 else 1e-5

    def check(out: torch.Tensor, truth: torch.Tensor) -> None:
        error = (out.double() - truth.double()).norm() / truth.double().norm()
        assert error < limit, f"relative error {error:.2e}, limit {limit}"

    return check
