"""Compiled evaluations are used for their numbers of sequences only, and a cache that cannot be used costs nothing.

No test here compiles; tests/system/compile does.
"""

import logging
import os
import time

import pytest
import torch

from voxcpm_grpc.models.voxcpm.compiled_flow import (
    UNUSED_SECONDS,
    CompiledFiles,
    CompiledFlow,
    delete_unused,
    plain_evaluation,
)
from voxcpm_grpc.models.voxcpm.flow import PlainFlow


def inputs(model, streams):
    patch, hidden = (model.config.patch_size, model.config.feat_dim), model.networks.dit.hidden
    mu = torch.randn(streams, model.networks.dit.mu_tokens, hidden)
    return torch.randn(streams, *patch), mu, torch.randn(streams, *patch), torch.linspace(1, 3, streams)


def counted(evaluate, calls):
    def call(*arguments):
        calls.append(len(arguments[0]))
        return evaluate(*arguments)

    return call


def test_a_batch_of_a_compiled_size_uses_its_evaluation_and_equals_the_plain_loop(tiny):
    dit, calls, schedule = tiny.networks.dit, [], tiny.flow.schedules[10]
    flow = CompiledFlow(PlainFlow(dit), {2: counted(plain_evaluation(dit), calls)})
    for streams in (1, 2, 3):
        arguments = inputs(tiny, streams)
        torch.testing.assert_close(flow(*arguments, schedule), PlainFlow(dit)(*arguments, schedule), atol=1e-5, rtol=0)
    assert calls == [2] * len(schedule.sizes)


def test_a_batch_with_adapters_takes_the_plain_loop(tiny):
    dit, calls = tiny.networks.dit, []
    flow = CompiledFlow(PlainFlow(dit), {2: counted(plain_evaluation(dit), calls)})
    flow(*inputs(tiny, 2), tiny.flow.schedules[10], torch.tensor([-1, -1]))
    assert not calls


def patch(model):
    return model.config.patch_size, model.config.feat_dim


def test_a_broken_file_is_deleted_and_missing(tiny, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    files = CompiledFiles.of(tmp_path, tiny.info.fingerprint, None)
    files.path(2).write_bytes(b"no library")
    assert files.missing(4) == [1, 3, 4]
    assert files.load(tiny.networks.dit, patch(tiny)) == {}
    assert files.missing(4) == [1, 2, 3, 4]
    assert "loaded=0 unusable=1" in caplog.text


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs the permissions of POSIX")
def test_files_that_other_users_can_write_are_not_loaded(tiny, tmp_path, caplog):
    tmp_path.chmod(0o777)
    files = CompiledFiles.of(tmp_path, tiny.info.fingerprint, None)
    files.path(1).write_bytes(b"code of another user")
    assert files.load(tiny.networks.dit, patch(tiny)) == {}
    assert files.path(1).exists()
    assert "other users may write" in caplog.text


def test_another_checkpoint_and_another_thread_count_have_other_files(tmp_path):
    before = torch.get_num_threads()
    first = CompiledFiles.of(tmp_path, "a", None)
    assert first == CompiledFiles.of(tmp_path, "a", None)
    try:
        torch.set_num_threads(before + 1)
        keys = {first.key, CompiledFiles.of(tmp_path, "b", None).key, CompiledFiles.of(tmp_path, "a", None).key}
    finally:
        torch.set_num_threads(before)
    assert len(keys) == 3


def test_files_that_were_not_loaded_for_a_month_are_deleted(tmp_path):
    fresh, old = tmp_path / "fresh.so", tmp_path / "old.so"
    for path in (fresh, old):
        path.touch()
    past = time.time() - UNUSED_SECONDS - 60
    os.utime(old, (past, past))
    delete_unused(tmp_path)
    assert fresh.exists() and not old.exists()
