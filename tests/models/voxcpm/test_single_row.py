"""A single stream uses one launch for each language model where it is available, with the same results."""

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.full_size import full_size  # noqa: F401

from voxcpm_grpc.attention import PagedRows
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.models.voxcpm.single_row import SingleRow, decode_weights, single_row
from voxcpm_grpc.request import Request, Sampling

LIMIT = 2e-2  # bfloat16 activations against float32


def paged_rows(rows: int, sequences: int, max_context: int = 100) -> PagedRows:
    """Rows of which only the sizes are used."""
    empty = torch.zeros(0)
    return PagedRows(
        cu_seqlens=empty,
        context=torch.zeros(sequences),
        block_table=empty,
        write=torch.zeros(rows),
        max_rows=1,
        max_context=max_context,
        fresh=False,
    )


def test_another_shape_than_the_released_one_is_refused(load):
    with pytest.raises(KernelUnavailable, match=r"\(2048, 6144, 16, 2, 128\), not \("):
        decode_weights(load().networks.base)


def test_a_model_that_the_kernel_does_not_serve_is_logged(load, caplog):
    with caplog.at_level(logging.INFO):
        assert single_row(load().networks.base) is None
    assert len(caplog.records) == 1
    assert "2048, 6144, 16, 2, 128" in caplog.text


@pytest.mark.parametrize(
    ("rows", "adapter", "served"),
    [
        (paged_rows(1, 1), None, True),
        (paged_rows(1, 1), torch.zeros(1), False),
        (paged_rows(2, 2), None, False),
        (paged_rows(2, 1), None, False),
        (paged_rows(1, 1, max_context=40000), None, False),
    ],
    ids=["one row", "an adapter", "two streams", "a prompt", "a long context"],
)
def test_only_one_row_without_an_adapter_is_served(rows, adapter, served):
    kernel: Any = None
    assert SingleRow(kernel).serves(rows, adapter) is served


class PlainRow(SingleRow):
    """Runs the layers of a model in place of the kernel and lists its calls."""

    def __init__(self, model, stack, calls):
        self._model, self._stack, self._calls = model, stack, calls

    def __call__(self, x, kv, rows, rotate):
        self._calls.append("base" if self._stack is self._model.networks.base else "residual")
        return self._stack(x, partial(self._model.backend.attention.attend, kv=kv, rows=rows, rotate=rotate))


@pytest.mark.parametrize(("streams", "expected"), [(1, ["wait", "base", "residual"]), (2, [])])
def test_only_a_step_of_one_stream_uses_the_kernels_after_its_audio(load, driver, monkeypatch, streams, expected):
    model, calls, outputs = load(), [], []
    for kernels in (False, True):
        run = driver(model)
        for slot in range(streams):
            run.start(slot, model.prompt(Request(id="a", text="Hello there.")), Sampling())
        if kernels:
            monkeypatch.setattr(model, "_single_base", PlainRow(model, model.networks.base, calls))
            monkeypatch.setattr(model, "_single_residual", PlainRow(model, model.networks.residual, calls))
        decoded = SimpleNamespace(wait=lambda: calls.append("wait"))
        slots = range(streams)
        model.advance(run.rows(*slots), run.state, run.kv, decoded=decoded)
        outputs.append((run.state.model.semantic, run.state.model.acoustic, run.kv.k, run.kv.v))
    assert calls == expected
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.gpu
@torch.inference_mode()
def test_a_single_stream_agrees_with_and_without_the_kernels(load, driver, full_size):  # noqa: F811
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is written for compute capability 9.0")
    device, narrow = torch.device("cuda", 0), torch.bfloat16
    fast = load(full_size, device=device, dtype=narrow)
    plain = load(full_size, device=device, dtype=narrow, persistent=False)
    truth = load(full_size, device=device)
    assert isinstance(fast._single_base, SingleRow) and isinstance(fast._single_residual, SingleRow)
    assert plain._single_base is plain._single_residual is None
    states = []
    for model in (fast, plain, truth):
        run = driver(model)
        run.start(1, model.prompt(Request(id="a", text="Hello there, how are you?")), Sampling())
        run.state.model.condition[1] = (
            torch.linspace(-1, 1, run.state.model.condition[1].numel()).view(4, -1).bfloat16()
        )
        for _ in range(3):
            model.advance(run.rows(1), run.state, run.kv)
        states.append([getattr(run.state.model, name)[1].float() for name in ("semantic", "acoustic")])
    for quick, slow, true in zip(*states, strict=True):
        error, allowed = ((x - true).norm() / true.norm() for x in (quick, slow))
        assert error <= max(LIMIT, float(allowed)), f"relative error {error:.2e}, without the kernels {allowed:.2e}"
