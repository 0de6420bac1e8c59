"""A cache of compiled parts that cannot be used costs nothing.

No test here compiles; tests/system/compile does.
"""

import logging
import os
import time

import pytest
import torch

from voxcpm_grpc.models.voxcpm.compiled.files import (
    UNUSED_SECONDS,
    CompiledFiles,
    delete_unused,
)
from voxcpm_grpc.models.voxcpm.compiled.parts import loaders, parts


def found(files, model):
    """The names of the parts that are loaded from the files of a cache."""
    patch = model.config.patch_size, model.config.feat_dim
    return set(files.load(loaders(model.networks.dit, model.codec.decoder, patch)))


def test_parts_are_those_that_so_many_streams_need():
    assert parts(1) == ["flow-1", "decoder-1"]
    assert parts(3) == ["flow-1", "decoder-1", "flow-2", "decoder-n", "flow-3"]
    assert len(parts(100)) == 10


def test_a_broken_file_is_deleted_and_missing(tiny, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    files = CompiledFiles.of(tmp_path, tiny.info.fingerprint, None)
    for part in ("flow-2", "decoder-1"):
        files.path(part).write_bytes(b"no library")
    assert files.missing(parts(2)) == ["flow-1", "decoder-n"]
    assert not found(files, tiny)
    assert files.missing(parts(2)) == parts(2)
    assert "loaded=0 unusable=2" in caplog.text


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs the permissions of POSIX")
def test_files_that_other_users_can_write_are_not_loaded(tiny, tmp_path, caplog):
    tmp_path.chmod(0o777)
    files = CompiledFiles.of(tmp_path, tiny.info.fingerprint, None)
    files.path("flow-1").write_bytes(b"code of another user")
    assert not found(files, tiny)
    assert files.path("flow-1").exists()
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
