"""What becomes of a voice follows from the names of its objects, whatever is missing, late or there twice."""

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


def alive(names: list[str], now: int = START + 2000) -> str | None:
    one = live(generations(names).get(ID, []), now)
    return one and one.generation


def test_a_record_makes_a_voice_and_the_mark_of_its_deletion_ends_it():
    latents, record = objects(OLD)
    deletion = objects(OLD, deleted=START + 1)[-1]
    for count in range(4):
        for names in combinations((latents, record, deletion), count):
            assert alive(list(names)) == (OLD if record in names and deletion not in names else None)


def test_a_voice_stored_again_outlives_the_deletion_of_the_first():
    both = objects(OLD, deleted=START + 500) + objects(NEW)
    assert alive(both) == NEW
    assert alive(objects(OLD) + objects(NEW)) == NEW
    assert alive(objects(OLD) + objects(NEW, deleted=START + 1500)) == OLD  # nobody deleted that one


def test_life_counts_from_the_last_use():
    assert alive(objects(OLD), START + TTL - 1) == OLD
    assert alive(objects(OLD), START + TTL) is None
    assert alive(objects(OLD, used=START + TTL - 1), START + TTL) == OLD
    assert alive(objects(OLD, used=START + TTL - 1), START + 2 * TTL) is None


def rubbish(names: list[str], now: int) -> list[str]:
    return [str(name) for name in survey(names, now).garbage]


def test_what_broke_off_is_rubbish_after_an_hour_and_not_before():
    latents, record = objects(OLD)
    unfinished = f"{record}.part12ab"
    assert rubbish([latents, unfinished], START + HOUR // 2) == []
    assert sorted(rubbish([latents, unfinished], START + 2 * HOUR)) == sorted([latents, unfinished])
    assert rubbish([latents, record], START + 2 * HOUR) == []


def test_a_mark_that_is_being_written_is_as_young_as_it_says():
    unfinished = f"{Name(ID, OLD, START + 100 * HOUR, ObjectKind.USE)}.partx"
    assert rubbish([*objects(OLD), unfinished], START + 100 * HOUR + 1) == []
    assert rubbish([*objects(OLD), unfinished], START + 102 * HOUR) == [unfinished]


def test_what_is_left_of_the_deleted_is_rubbish_and_the_mark_last():
    *rest, mark = objects(OLD, used=START + 5, deleted=START + 6)
    assert sorted(rubbish([*rest, mark], START + 7)) == sorted(rest)
    assert rubbish([mark], START + 7) == []
    assert rubbish([mark], START + 25 * HOUR) == [mark]


def test_only_the_latest_use_is_kept():
    first = str(Name(ID, OLD, START + 1, ObjectKind.USE))
    assert rubbish([*objects(OLD, used=START + 2), first], START + 3) == [first]


def test_what_expired_or_was_replaced_has_ended():
    (expired,) = survey(objects(OLD), START + TTL).ended
    assert expired.generation == OLD
    assert survey(objects(OLD) + objects(NEW), START + HOUR // 2).ended == []  # its writer may still answer for it
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
def test_foreign_names_are_nothing(name):
    assert parse(name) is None
    found = survey([name], START + 1000 * HOUR)
    assert (found.voices, found.ended, found.garbage) == ({}, [], [])


def test_names_are_read_as_they_are_written():
    for name in (Name(ID, OLD, 12, ObjectKind.LATENTS), Name(ID, NEW, 0, ObjectKind.USE, ".part0a")):
        assert parse(str(name)) == name
