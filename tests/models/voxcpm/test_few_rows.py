"""A few streams use one launch for each language model where it is available, with the same results."""

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engines.full_size import full_size  # noqa: F401
from support.engines.plans import plan_of

from voxcpm_grpc.attention import PagedRows
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.models.voxcpm import few_rows as few_rows_module
from voxcpm_grpc.models.voxcpm.few_rows import FewRows, decode_weights, few_rows
from voxcpm_grpc.models.voxcpm.kernels.decode_rows import SLOTS
from voxcpm_grpc.request import Request, Sampling

LIMIT = 2e-2  # bfloat16 activations against float32


def paged_rows(rows: int, sequences: int, max_context: int = 100, max_rows: int = 1) -> PagedRows:
    """Rows of which only the sizes are used."""
    empty = torch.zeros(0)
    return PagedRows(
        cu_seqlens=empty,
        context=torch.zeros(sequences),
        block_table=empty,
        write=torch.zeros(rows),
        max_rows=max_rows,
        max_context=max_context,
        fresh=False,
    )


def no_kernels() -> dict[int, Any]:
    """In place of the kernels, which are not called."""
    return dict.fromkeys((1, *SLOTS))


def test_another_shape_than_the_released_one_is_refused(load):
    with pytest.raises(KernelUnavailable, match=r"\(2048, 6144, 16, 2, 128\), not \("):
        decode_weights(load().networks.base)


def test_a_model_that_only_the_kernel_of_one_row_serves_is_logged(monkeypatch, caplog):
    def unavailable(weights):
        raise KernelUnavailable("too few clusters")

    monkeypatch.setattr(few_rows_module, "decode_weights", lambda stack: stack)
    monkeypatch.setattr(few_rows_module, "DecodeLayers", lambda weights: "kernel")
    monkeypatch.setattr(few_rows_module, "DecodeRows", unavailable)
    stack: Any = None
    with caplog.at_level(logging.INFO):
        kernels = few_rows(stack)
    assert kernels is not None
    assert kernels.serves(paged_rows(1, 1), None) and not kernels.serves(paged_rows(2, 2), None)
    assert "steps of 2 to 8 streams" in caplog.text and "too few clusters" in caplog.text


def test_a_model_that_the_kernel_does_not_serve_is_logged(load, caplog):
    with caplog.at_level(logging.INFO):
        assert few_rows(load().networks.base) is None
    assert len(caplog.records) == 1
    assert "2048, 6144, 16, 2, 128" in caplog.text


@pytest.mark.parametrize(
    ("rows", "adapter", "served"),
    [
        (paged_rows(1, 1), None, True),
        (paged_rows(1, 1), torch.zeros(1), False),
        (paged_rows(8, 8), None, True),
        (paged_rows(8, 8), torch.zeros(8), False),
        (paged_rows(8, 8, max_rows=2), None, False),
        (paged_rows(16, 16), None, False),
        (paged_rows(2, 1), None, False),
        (paged_rows(1, 1, max_context=40000), None, False),
    ],
    ids=["one row", "an adapter", "eight", "adapters", "prompts", "sixteen", "a prompt", "a long context"],
)
def test_only_a_few_rows_without_adapters_are_served(rows, adapter, served):
    assert FewRows(no_kernels()).serves(rows, adapter) is served


class PlainRows(FewRows):
    """Runs the layers of a model in place of the kernel and lists its calls."""

    def __init__(self, model, stack, calls):
        super().__init__(no_kernels())
        self._model, self._stack, self._calls = model, stack, calls

    def __call__(self, x, kv, rows, rotate):
        self._calls.append("base" if self._stack is self._model.networks.base else "residual")
        return self._stack(x, partial(self._model.backend.attention.attend, kv=kv, rows=rows, rotate=rotate))


KERNELS = ["wait", "base", "residual"]


@pytest.mark.parametrize(("streams", "expected"), [(1, KERNELS), (2, KERNELS), (3, [])])
def test_only_steps_of_certain_sizes_use_the_kernels_after_their_audio(load, driver, monkeypatch, streams, expected):
    model, calls, outputs = load(), [], []
    for kernels in (False, True):
        run = driver(model)
        for slot in range(streams):
            run.start(slot, plan_of(model, Request(id="a", text="Hello there.")), Sampling())
        if kernels:
            monkeypatch.setattr(model, "_few_base", PlainRows(model, model.networks.base, calls))
            monkeypatch.setattr(model, "_few_residual", PlainRows(model, model.networks.residual, calls))
        decoded = SimpleNamespace(wait=lambda: calls.append("wait"))
        slots = range(streams)
        model.advance(run.rows(*slots), run.state, run.kv, decoded=decoded)
        outputs.append((run.state.model.semantic, run.state.model.acoustic, run.kv.k, run.kv.v))
    assert calls == expected
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.gpu
@torch.inference_mode()
@pytest.mark.parametrize("streams", [1, 4])
def test_streams_agree_with_and_without_the_kernels(load, driver, full_size, streams):  # noqa: F811
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is written for compute capability 9.0")
    device, narrow = torch.device("cuda", 0), torch.bfloat16
    fast = load(full_size, device=device, dtype=narrow)
    plain = load(full_size, device=device, dtype=narrow, persistent=False)
    truth = load(full_size, device=device)
    assert isinstance(fast._few_base, FewRows) and isinstance(fast._few_residual, FewRows)
    assert plain._few_base is plain._few_residual is None
    states = []
    for model in (fast, plain, truth):
        run = driver(model, streams)
        for slot in range(streams):
            run.start(slot, plan_of(model, Request(id="a", text="Hello there, how are you?"[slot:])), Sampling())
            condition = run.state.model.condition[slot]
            condition.copy_(torch.linspace(slot - 1, 1, condition.numel()).view(4, -1))
        for _ in range(3):
            model.advance(run.rows(*range(streams)), run.state, run.kv)
        states.append([getattr(run.state.model, name).float() for name in ("semantic", "acoustic")])
    for quick, slow, true in zip(*states, strict=True):
        error, allowed = ((x - true).norm() / true.norm() for x in (quick, slow))
        assert error <= max(LIMIT, float(allowed)), f"relative error {error:.2e}, without the kernels {allowed:.2e}"
