"""The order in which kernels are found, and a compilation for later starts, whose failure is a line in the log."""

import logging
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.engines.checkpoints import TINY

from voxcpm_grpc.engine import runner
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.engine.start.compilation import Compilation, cache_folder, compile_later, compile_now
from voxcpm_grpc.settings.engine import EngineSettings


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def finish(command, folder):
    thread = compile_later(Compilation(command, folder), delay=0.0)
    assert thread
    thread.join(60)
    assert not thread.is_alive()


def test_a_command_runs_and_its_folder_is_private(compiler, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder, found = tmp_path / "compiled", tmp_path / "found"
    finish(("-c", f"open({str(found)!r}, 'w').close()"), folder)
    assert found.exists()
    assert folder.stat().st_mode & 0o077 == 0
    assert "compiled for later starts" in caplog.text


def test_a_command_for_later_gets_the_lowest_priority(compiler, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    finish(("-c", "import os, time\nwhile os.nice(0) < 19:\n    time.sleep(0.01)"), tmp_path / "compiled")
    assert "compiled for later starts" in caplog.text


def test_a_command_that_is_waited_for_keeps_the_priority(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    compile_now(Compilation(("-c", f"import os, time; time.sleep(0.1); assert os.nice(0) == {os.nice(0)}"), tmp_path))
    assert "compiled for later starts" in caplog.text


def test_a_failure_is_one_line(compiler, tmp_path, caplog):
    finish(("-c", "raise SystemExit('no header')"), tmp_path / "compiled")
    assert [record.getMessage() for record in caplog.records] == [
        "the compilation for later starts failed; this costs speed alone: no header"
    ]


def test_a_folder_that_cannot_be_made_is_one_line(compiler, tmp_path, caplog):
    (tmp_path / "file").touch()
    finish(("-c", ""), tmp_path / "file" / "compiled")
    assert len(caplog.records) == 1


def test_nothing_runs_without_a_compiler(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compile_later(Compilation(("-c", "1 / 0"), tmp_path), delay=0.0) is None
    assert [record.getMessage() for record in caplog.records] == [
        "nothing is compiled for later starts: there is no C++ compiler (g++)"
    ]


def test_the_process_ends_with_the_one_that_started_it(tmp_path):
    started = tmp_path / "started"
    child = f"import sys; open({str(started)!r}, 'w').close(); sys.stdin.buffer.read(); print('ended')"
    code = (
        "import os, sys, time; from pathlib import Path; from voxcpm_grpc.engine.start import compilation;"
        "compilation.has_compiler = lambda: True;"
        f"work = compilation.Compilation(('-c', {child!r}), Path({str(tmp_path / 'compiled')!r}));"
        "thread = compilation.compile_later(work, delay=0.0);\n"
        f"while not os.path.exists({str(started)!r}): time.sleep(0.01)\n"
        "os._exit(0)"
    )
    # Its errors and output are closed when both processes have ended.
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize(("setting", "asked"), [("auto", False), ("off", False), ("on", True)])
def test_a_tiny_model_is_compiled_only_if_the_setting_says_so(monkeypatch, tmp_path, setting, asked):
    monkeypatch.setenv("HOME", str(tmp_path))
    engine = load_engine(TINY, "tiny", EngineSettings(device="cpu", max_slots=2, compile=setting))
    assert bool(engine.compilation) == asked
    if engine.compilation:
        assert engine.compilation.command[-4:] == ("flow-1", "decoder-1", "flow-2", "decoder-n")
        assert engine.compilation.folder == cache_folder()


def test_rows_are_located_before_launches_are_recorded(monkeypatch):
    """While they are recorded, a kernel that is not compiled does nothing, and others use what it would write."""
    order = []
    monkeypatch.setattr(runner, "step_rows", lambda slot, *_: order.append(slot.tolist()))
    monkeypatch.setattr(runner, "precompile", lambda _, key: order.append(key))
    slots = SimpleNamespace(state=None, device=torch.device("cpu"), scratch=3)
    runner.compile_all(cast(Any, None), cast(Any, slots), page_size=16, prefill_tokens=64, key="key")
    assert order == [[3, 3, 3], "key"]
