import gc

import pytest

from voxcpm_grpc.worker.imports import importing


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
