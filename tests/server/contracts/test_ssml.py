"""SSML is read as text and breaks, and everything else is refused by its name."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_server.contracts import ssml

FIELD = "input.ssml"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("<speak>Hi &amp; <![CDATA[<bye>]]></speak>", ["Hi & <bye>"]),
        ("<speak>\n  One\n  two.\n</speak>", [" One two. "]),
        ("<speak>a<break/>b</speak>", ["a", 500, "b"]),
        ("<speak>a<break strength='none'/>b<break strength='x-strong'/></speak>", ["a", 0, "b", 1000]),
        ("<speak>a<break strength='weak' time='+.5s'/>b</speak>", ["a", 500, "b"]),
        ("<speak><p><s>a</s><s>b</s></p></speak>", ["a", "\n\n", "b", "\n\n", "\n\n"]),
        ('<?xml version="1.0" encoding="UTF-16"?><speak>ä<!-- no --></speak>', ["ä"]),
        ('<speak version="1.0" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="en">a</speak>', ["a"]),
        ("<speak/>", []),
    ],
)
def test_text_and_breaks_are_found_in_order(document, expected):
    assert ssml.parts(document, FIELD) == expected


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ("Hi.", "not well-formed"),
        ("<speak>Hi.", "not well-formed"),
        ("<speak>Hi.</speak> more", "not well-formed"),
        ("<speak>a < b</speak>", "line 1, column"),
        ("<p>Hi.</p>", "begins with <p>"),
        ("<speak><prosody rate='slow'>a</prosody></speak>", "<prosody> is not supported"),
        ("<speak><emphasis>a</emphasis></speak>", "<emphasis> is not supported"),
        ("<speak><audio src='http://internal/'/></speak>", "<audio> is not supported"),
        ("<speak><speak>a</speak></speak>", "<speak> is not supported"),
        ("<speak><p xml:lang='de'>a</p></speak>", "xml:lang"),
        ("<speak><break size='1'/></speak>", "size"),
        ("<speak><break time='soon'/></speak>", "'soon'"),
        ("<speak><break time='-1s'/></speak>", "'-1s'"),
        ("<speak><break strength='huge'/></speak>", "'huge'"),
        ("<speak><break>a</break></speak>", "must be empty"),
        ("<!DOCTYPE speak><speak>a</speak>", "DOCTYPE"),
    ],
)
def test_the_rest_is_refused_by_its_name(document, fault):
    with pytest.raises(InvalidRequest, match=FIELD) as caught:
        ssml.parts(document, FIELD)
    assert fault in caught.value.message and caught.value.field == FIELD


def test_entities_that_grow_and_deep_documents_cost_nothing():
    began = time.process_time()
    names = [f"e{index}" for index in range(20)]
    grows = "".join(f'<!ENTITY {name} "&{before};&{before};">' for before, name in pairwise(names))
    with pytest.raises(InvalidRequest):
        ssml.parts(f'<!DOCTYPE speak [<!ENTITY e0 "ha">{grows}]><speak>&e19;</speak>', FIELD)
    depth = 100_000
    assert len(ssml.parts("<speak>" + "<p>" * depth + "</p>" * depth + "</speak>", FIELD)) == depth
    assert time.process_time() - began < 5


def test_breaks_are_bounded_together_and_empty_parts_are_left_out():
    with pytest.raises(InvalidRequest, match=r"60\.001 s long together"):
        ssml.requests([30_000, "a", 30_001], FIELD)
    kinds = [one.WhichOneof("request") for one in ssml.requests(["", 60_000, "a", 0], FIELD)]
    assert kinds == ["pause", "text"]
