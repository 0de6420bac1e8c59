import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from voxcpm_client.cli.operate.serve import import_or_explain
from voxcpm_grpc.imports import importing


def test_what_is_imported_stays_out_of_collections():
    before = gc.get_freeze_count()
    with importing("a.module.that.is.not.there"):
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() - before >= len(made)


def test_a_module_that_is_there_changes_nothing():
    before = gc.get_freeze_count()
    with importing("gc"):
        assert gc.isenabled()
    assert gc.get_freeze_count() <= before  # frozen objects may end


def test_collections_go_on_after_an_import_that_fails():
    with pytest.raises(ImportError), importing("a.module.that.is.not.there"):
        raise ImportError
    assert gc.isenabled()


def test_an_import_that_cannot_be_repeated_fails_with_its_first_error():
    """PyTorch complains of its own first import otherwise, and hides the cause."""
    name = "a.module.that.breaks.when.it.is.imported.twice"
    with pytest.raises(RuntimeError, match="the cause"), importing(name, once=True):
        raise RuntimeError("the cause")
    with pytest.raises(RuntimeError, match="the cause"), importing(name):
        pytest.fail("the block runs again")


def test_a_block_waits_for_the_one_of_another_thread():
    inside, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with importing("a.module.that.is.not.there"):
            inside.set()
            may_end.wait()

    def second() -> None:
        with importing("a.module.that.is.not.there"):
            pass

    with ThreadPoolExecutor(2) as threads:
        try:
            threads.submit(first)
            inside.wait()
            waiting = threads.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
        finally:
            may_end.set()
        waiting.result()


def test_a_command_imports_its_packages_without_collections(monkeypatch):
    name = "xml.dom.pulldom"
    monkeypatch.delitem(sys.modules, name, raising=False)
    before = gc.get_freeze_count()
    assert import_or_explain(name, "").__name__ == name
    assert gc.isenabled() and gc.get_freeze_count() > before
    gc.disable()
    try:
        monkeypatch.delitem(sys.modules, name)
        import_or_explain(name, "")
        assert not gc.isenabled(), "they were off before"
    finally:
        gc.enable()


def test_a_server_leaves_the_readings_of_languages_to_the_process_that_normalises_text():
    """They compile hundreds of patterns."""
    names = ("voxcpm_server.text.chinese", "voxcpm_server.text.english")
    script = f"import sys, voxcpm_server.app; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr
