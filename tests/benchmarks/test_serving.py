"""`benchmarks.serving` says why its server failed, and keeps the rows before a load that failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from benchmarks.serving import __main__ as serving
from benchmarks.serving.requests import Call
from benchmarks.serving.rows import Row, row


def test_a_server_that_ends_is_named_with_its_exit_status():
    with serving.servers.Server("nowhere/at/all", 4, []) as server, pytest.raises(SystemExit) as ended:
        server.targets()
    assert str(ended.value) == "the server ended with status 1 before it was ready; its messages are above"


def test_a_server_that_takes_too_long_is_named_with_the_limit(monkeypatch):
    monkeypatch.setattr(serving.servers, "START_SECONDS", 0.05)  # Python alone takes longer
    with serving.servers.Server("demo", 4, []) as server, pytest.raises(SystemExit) as ended:
        server.targets()
    assert str(ended.value) == "the server did not start within 0.05 s; its messages are above"


def test_a_load_that_fails_does_not_lose_the_rows_before_it(tmp_path, monkeypatch):
    def measure(*_: object) -> Iterator[Row]:
        yield row("open", 8.0, [Call(due=0.0, sent=0.0, counts=True, times=[0.01], seconds=[0.16])])
        raise ConnectionError("the server is gone")

    path = tmp_path / "table.json"
    monkeypatch.setattr(serving, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["serving", "--target", "127.0.0.1:1", "--json", str(path)])
    with pytest.raises(ConnectionError):
        serving.main()
    (kept,) = json.loads(path.read_text())["rows"]
    assert kept["level"] == 8.0 and kept["requests"] == 1


def test_uploads_have_times_of_their_own():
    calls = [Call(due=1.0, sent=1.0, counts=True, times=[1.01], seconds=[0.16])]
    calls += [Call(due=1.0, sent=1.0, counts=True, upload=seconds) for seconds in (0.2, 0.4)]
    calls.append(Call(due=1.0, sent=1.0, counts=True, upload=9.0, code="RESOURCE_EXHAUSTED"))
    found = row("open", 8.0, calls)
    assert (found.requests, found.refused, found.failed, found.uploads) == (4, 1, 0, 2)
    assert found.ttfb_p50_ms == pytest.approx(10)
    assert found.upload_p50_ms < found.upload_p99_ms <= 400
