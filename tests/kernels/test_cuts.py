"""The table of measured cuts can be read, and every cut in it can be made."""

import json

import pytest

pytest.importorskip("triton")
from voxcpm_grpc.kernels import cuts, product
from voxcpm_grpc.kernels.product import Cut, Role


def test_every_cut_of_the_table_is_possible():
    for (role, outputs, inputs), known in cuts.read_cuts().items():
        assert [rows for rows, _ in known] == sorted(rows for rows, _ in known)
        for _, cut in known:
            if cut is not None:
                assert cut.shared(role) + product.OWN_BYTES <= product.SHARED_BYTES // cut.resident
                assert outputs % (cut.outputs * cut.share) == 0
                assert inputs % (product.DEPTH * cut.splits) == 0


def test_the_next_larger_count_of_rows_decides(tmp_path, monkeypatch):
    small, large = Cut(rows=24, outputs=64, stages=4), Cut(rows=176, outputs=128, stages=4)
    entries = [(352, vars_of(large)), (22, vars_of(small)), (176, None)]
    table = [{"role": "ADD", "outputs": 1024, "inputs": 2048, "rows": rows, "cut": cut} for rows, cut in entries]
    (tmp_path / "cuts.json").write_text(json.dumps({"cuts": table}))
    monkeypatch.setattr(cuts, "TABLE", tmp_path / "cuts.json")
    cuts.read_cuts.cache_clear()
    try:
        chosen = [cuts.choose_cut(Role.ADD, rows, 1024, 2048) for rows in (1, 22, 23, 176, 177, 352, 353)]
        assert chosen == [small, small, None, None, large, large, None]
        assert cuts.choose_cut(Role.LINEAR, 22, 1024, 2048) is None
    finally:
        cuts.read_cuts.cache_clear()


def vars_of(cut: Cut) -> dict[str, int]:
    return {name: getattr(cut, name) for name in cut.__dataclass_fields__}
