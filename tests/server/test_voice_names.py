"""The names of objects determine the state of a voice, even if objects are missing, late or duplicate."""

from __future__ import annotations

from itertools import combinations

import pytest

from voxcpm_server.voices.store.names import HOUR, Name, ObjectKind, generations, live, parse, survey

ID = "prm_" + "a" * 32
START = 1_700_000_000_000_000
OLD, NEW = f"{START:016d}-00000000", f"{START + 1000:016d}-ffffffff"
TTL = 240 * HOUR


def objects(generation: str, *, used: int = 0, deleted: int = 0) -> list[str]:
    parts = [(6, ObjectKind.LATENTS), (TTL, ObjectKind.RECORD)]
    parts += [(used, ObjectKind.USE)] * bool(used) + [(deleted, ObjectKind.DELETION)] * bool(deleted)
    return [str(Name(ID, generation, number, part)) for number, part in parts]


def live_generation(names: list[str], now: int = START + 2000) -> str | None:
    one = live(generations(names).get(ID, []), now)
    return one and one.generation


def test_a_record_creates_a_voice_and_the_mark_of_a_deletion_ends_it():
    latents, record = objects(OLD)
    deletion = objects(OLD, deleted=START + 1)[-1]
    for count in range(4):
        for names in combinations((latents, record, deletion), count):
            assert live_generation(list(names)) == (OLD if record in names and deletion not in names else None)


def test_a_voice_that_is_stored_again_exists_after_the_deletion_of_the_first():
    both = objects(OLD, deleted=START + 500) + objects(NEW)
    assert live_generation(both) == NEW
    assert live_generation(objects(OLD) + objects(NEW)) == NEW
    assert live_generation(objects(OLD) + objects(NEW, deleted=START + 1500)) == OLD  # it is not deleted


def test_the_time_to_live_counts_from_the_last_use():
    assert live_generation(objects(OLD), START + TTL - 1) == OLD
    assert live_generation(objects(OLD), START + TTL) is None
    assert live_generation(objects(OLD, used=START + TTL - 1), START + TTL) == OLD
    assert live_generation(objects(OLD, used=START + TTL - 1), START + 2 * TTL) is None


def garbage(names: list[str], now: int) -> list[str]:
    return [str(name) for name in survey(names, now).garbage]


def test_an_unfinished_voice_is_garbage_after_an_hour():
    latents, record = objects(OLD)
    unfinished = f"{record}.part12ab"
    assert garbage([latents, unfinished], START + HOUR // 2) == []
    assert sorted(garbage([latents, unfinished], START + 2 * HOUR)) == sorted([latents, unfinished])
    assert garbage([latents, record], START + 2 * HOUR) == []


def test_the_age_of_an_unfinished_mark_is_the_time_in_its_name():
    unfinished = f"{Name(ID, OLD, START + 100 * HOUR, ObjectKind.USE)}.partx"
    assert garbage([*objects(OLD), unfinished], START + 100 * HOUR + 1) == []
    assert garbage([*objects(OLD), unfinished], START + 102 * HOUR) == [unfinished]


def test_the_objects_of_a_deleted_voice_are_garbage_and_later_its_mark():
    *rest, mark = objects(OLD, used=START + 5, deleted=START + 6)
    assert sorted(garbage([*rest, mark], START + 7)) == sorted(rest)
    assert garbage([mark], START + 7) == []
    assert garbage([mark], START + 25 * HOUR) == [mark]


def test_only_the_latest_use_is_kept():
    first = str(Name(ID, OLD, START + 1, ObjectKind.USE))
    assert garbage([*objects(OLD, used=START + 2), first], START + 3) == [first]


def test_expired_and_replaced_generations_have_ended():
    (expired,) = survey(objects(OLD), START + TTL).ended
    assert expired.generation == OLD
    assert survey(objects(OLD) + objects(NEW), START + HOUR // 2).ended == []  # another server may still be using it
    (replaced,) = survey(objects(OLD) + objects(NEW), START + 2 * HOUR).ended
    assert replaced.generation == OLD
    assert survey(objects(OLD, deleted=START + 1), START + TTL).ended == []


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        f"{ID}/notes.txt",
        f"../{OLD}.1.voice",
        f"{ID}/{OLD}.1.pickle",
        f"{ID}/{OLD}.voice",
        f"{ID}/{OLD}.-1.voice",
        f"{ID.upper()}/{OLD}.1.voice",
        f"{ID}/{OLD}.1.voice\n",
        f"{ID}/../{OLD}.1.voice",
    ],
)
def test_other_names_are_ignored(name):
    assert parse(name) is None
    found = survey([name], START + 1000 * HOUR)
    assert (found.voices, found.ended, found.garbage) == ({}, [], [])


def test_parsing_inverts_writing():
    for name in (Name(ID, OLD, 12, ObjectKind.LATENTS), Name(ID, NEW, 0, ObjectKind.USE, ".part0a")):
        assert parse(str(name)) == name
