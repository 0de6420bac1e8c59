"""The voice store alone: what time, crashes and broken files do to it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from voxcpm_grpc.config import VoiceSettings
from voxcpm_grpc.errors import NotFound
from voxcpm_server.voices import SUFFIX, Kind, StoredVoice, Voice, VoiceStore, voice_id

DAY = 86400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock):
    return lambda: VoiceStore(tmp_path, VoiceSettings(ttl_seconds=10 * DAY, max_voices=50), "model", clock)


def voice(name: str = "a", ttl: float = 0.0) -> StoredVoice:
    described = Voice(id=voice_id(Kind.PROMPT, name), kind=Kind.PROMPT, fingerprint="model", transcript=name, ttl=ttl)
    return StoredVoice(voice=described, prompt=np.arange(64, dtype=np.float32).reshape(2, 4, 8))


def test_what_is_stored_is_loaded(open_store):
    ((stored, reused),) = open_store().add(voice())
    loaded = open_store().load(stored.id)
    assert not reused
    assert loaded.voice == stored
    assert np.array_equal(loaded.prompt, voice().prompt)
    assert loaded.reference is None


def test_use_keeps_a_voice_alive(open_store, clock):
    store = open_store()
    ((stored, _),) = store.add(voice())
    for _ in range(5):
        clock.now += 9 * DAY
        assert store.find(stored.id).expires == clock.now + 10 * DAY
    clock.now += 11 * DAY
    with pytest.raises(NotFound):
        store.find(stored.id)


def test_a_use_is_recorded_at_most_once_an_hour(open_store, clock, tmp_path):
    store = open_store()
    ((stored, _),) = store.add(voice())
    path = tmp_path / f"{stored.id}{SUFFIX}"
    before = path.stat().st_mtime
    clock.now += 1800
    store.load(stored.id)
    assert path.stat().st_mtime == before
    clock.now += 1801
    store.load(stored.id)
    assert path.stat().st_mtime == clock.now


def test_the_expired_are_removed_from_the_disk(open_store, clock, tmp_path):
    open_store().add(voice("short", ttl=60.0), voice("long"))
    clock.now += 61
    assert [v.transcript for v in open_store().page()[0]] == ["long"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", [b"", b"\x00" * 100, b"\xff" * 100, None])
def test_broken_files_are_skipped_and_replaced(open_store, tmp_path, damage):
    store = open_store()
    ((stored, _), (other, _)) = store.add(voice(), voice("other"))
    path = tmp_path / f"{stored.id}{SUFFIX}"
    path.write_bytes(path.read_bytes()[:-10] if damage is None else damage)
    for again in (store, open_store()):
        assert [v.id for v in again.page()[0]] == [other.id]
        with pytest.raises(NotFound):
            again.load(stored.id)
    assert store.add(voice())[0][1] is False
    assert store.load(stored.id).voice.transcript == "a"


def test_other_files_in_the_directory_are_left_alone(open_store, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    store = open_store()
    store.add(voice())
    assert len(store.page()[0]) == 1
    assert (tmp_path / "notes.txt").exists()


def test_voices_of_another_server_on_the_directory_appear_and_vanish(open_store):
    one, two = open_store(), open_store()
    ((stored, _),) = one.add(voice())
    assert two.find(stored.id).id == stored.id
    two.delete(stored.id)
    with pytest.raises(NotFound):
        one.find(stored.id)
    assert one.page()[0] == []


CRASH = """
import os, sys
from pathlib import Path
import numpy as np
from voxcpm_server import voices
from voxcpm_grpc.config import VoiceSettings
store = voices.VoiceStore(Path(sys.argv[1]), VoiceSettings(), "model")
os.fsync = lambda handle: os._exit(9)
made = voices.Voice(id=voices.voice_id(voices.Kind.PROMPT, "a"), kind=voices.Kind.PROMPT, fingerprint="model")
store.add(voices.StoredVoice(voice=made, prompt=np.zeros((1, 4, 8), np.float32)))
"""


def test_a_crash_while_writing_leaves_no_voice(open_store, tmp_path, clock):
    assert subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], timeout=60).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1  # the temporary file
    store = open_store()
    assert store.page()[0] == []
    clock.now = 4_000_000_000.0
    open_store()
    assert list(tmp_path.iterdir()) == []


def test_ids_depend_on_all_content_and_its_division():
    ids = {voice_id(Kind.PROMPT, *parts) for parts in (("a", "bc"), ("ab", "c"), ("abc",), ("a", "bc", ""))}
    assert len(ids | {voice_id(Kind.REFERENCE, "a", "bc")}) == 5


@pytest.mark.parametrize(
    "id", ["", "prm_", "../" + "a" * 32, "prm_" + "A" * 32, "prm_" + "a" * 31 + "/", "prm_" + "a" * 32 + "\n"]
)
def test_odd_ids_are_not_found(open_store, id):
    with pytest.raises(NotFound):
        open_store().find(id)


def test_reuse_keeps_what_is_stored(open_store):
    store = open_store()
    ((first, _),) = store.add(voice())
    renamed = replace(voice(), voice=replace(voice().voice, display_name="new"))
    assert store.add(renamed) == [(first, True)]
