"""The page of the WebSocket names every field of every message, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from voxcpm_gateway.speech.websocket_messages import CONFIG, MESSAGES, TURN

PAGE = (Path(__file__).parents[3] / "docs" / "websocket.md").read_text("utf-8")


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


@pytest.mark.parametrize("kind", [kind for kind in MESSAGES if kind != "config"])
def test_the_row_of_a_message_names_its_fields(kind: str):
    (row,) = re.findall(rf"^\| `{kind}` \|([^|]*)\|", PAGE, re.MULTILINE)
    assert names(row) == {field.name for field in MESSAGES[kind]}


def test_the_table_of_the_config_names_its_fields():
    table = PAGE.partition("The fields of `config`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    assert "the fields of `turn`" in rows
    found = {name for row in rows if row != "the fields of `turn`" for name in names(row)}
    assert found == {field.name for field in CONFIG} - {field.name for field in TURN}
