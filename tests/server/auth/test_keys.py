"""API keys: the file that holds their hashes, and the commands that write it."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from voxcpm_client.cli import main
from voxcpm_grpc.errors import StartupError
from voxcpm_server.auth.keys import Keys, create
from voxcpm_server.auth.principal import Principal
from voxcpm_server.auth.watched_file import WatchedFiles


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def keys(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["keys", *map(str, words)])


def test_a_new_key_is_printed_once_and_only_its_hash_is_stored(file):
    key = keys("new", "billing", "--file", file).output.strip()
    assert key.startswith("voxcpm_") and len(key) == 63
    assert key[20:] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Keys.read(file).principal(key) == Principal("key:billing")


def test_an_admin_key_is_marked(file):
    key = keys("new", "operator", "--file", file, "--admin").output.strip()
    assert Keys.read(file).principal(key) == Principal("key:operator", admin=True)


def test_other_keys_are_unknown(file):
    key = create("billing", file)
    id = key.split("_")[1]
    wrong = [key[:-1], key + "A", key[:-1] + ("B" if key[-1] == "A" else "A"), f"voxcpm_{id}_", f"voxcpm_{id}", ""]
    wrong += [key.upper(), f" {key}", f"{key}\n", "voxcpm_" + "0" * 12 + key[19:], "é" * 63, key.replace("voxcpm_", "")]
    assert [Keys.read(file).principal(one) for one in wrong] == [None] * len(wrong)


def test_keys_are_appended_and_comments_stay(file):
    file.write_text("# keys of production\n[[keys]]\nname = 'old'\nid = '0123456789ab'\nhash = '" + "0" * 64 + "'")
    made = [create(name, file) for name in ("a", "b", "a")]
    assert file.read_text().startswith("# keys of production\n")
    assert [Keys.read(file).principal(key) for key in made] == [Principal(f"key:{name}") for name in ("a", "b", "a")]
    lines = keys("list", "--file", file).output.splitlines()
    assert [line.split("\t")[1] for line in lines] == ["old", "a", "b", "a"]


def test_a_name_or_an_id_is_revoked(file):
    first, second, third = (create(name, file) for name in ("a", "a", "b"))
    assert keys("revoke", third.split("_")[1], "--file", file).output == f"revoked 1 key of {third.split('_')[1]}\n"
    assert keys("revoke", "a", "--file", file).output == "revoked 2 keys of a\n"
    assert not any(Keys.read(file).principal(key) for key in (first, second, third))
    again = keys("revoke", "a", "--file", file)
    assert again.exit_code == 1 and "has no key with the name or id a" in again.output


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, 'a"', "ä", "a\n"])
def test_other_names_are_refused(file, name):
    result = keys("new", name, "--file", file)
    assert result.exit_code == 1 and "must have 1 to 64" in result.output
    assert not file.exists()


ENTRY = f"[[keys]]\nname = 'a'\nid = '0123456789ab'\nhash = '{'0' * 64}'\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[keys", "is not valid TOML"),
        ("keys = 3", "may have only"),
        ("other = 3", "may have only"),
        (ENTRY.replace("name = 'a'\n", ""), "entry 1 .* has no name"),
        (ENTRY + ENTRY, "entry 2 .* repeats the id"),
        (ENTRY + "secret = 'x'", "entry 1 .* has the unknown field secret"),
        (ENTRY + "admin = 'yes'", "entry 1 .* has a wrong admin"),
        (ENTRY.replace("0000'", "'"), "entry 1 .* has an id or a hash"),
        (ENTRY.replace("'a'", "'a b'"), "entry 1 .* has a name with other characters"),
    ],
)
def test_a_broken_file_is_refused_and_stays_as_it_is(file, text, fault):
    file.write_text(text)
    with pytest.raises(StartupError, match=fault):
        Keys.read(file)
    result = keys("new", "b", "--file", file)
    assert result.exit_code == 1 and str(file) in result.output
    assert file.read_text() == text


def test_a_running_server_takes_new_keys_and_forgets_revoked_ones(file, monkeypatch, caplog):
    monkeypatch.setattr("voxcpm_server.auth.watched_file.CHECK_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    first = create("a", file)
    watched = WatchedFiles((file,), lambda: Keys.read(file))
    second = create("b", file)
    assert watched.value().principal(second)
    keys("revoke", "a", "--file", file)
    assert not watched.value().principal(first)
    good = file.read_text()
    file.write_text("[[keys")
    for _ in range(3):
        assert watched.value().principal(second), "the last good version"
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "ERROR"]
    file.unlink()
    assert watched.value().principal(second)
    file.write_text(good)
    assert watched.value().principal(second)
