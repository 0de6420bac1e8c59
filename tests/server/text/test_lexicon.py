"""Words of a lexicon are spoken as they are spelled there, and positions stay those of the caller's text."""

from __future__ import annotations

import json
import time
import unicodedata
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.uploads import upload

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.text import TextSettings
from voxcpm_grpc.text.lexicon import MAX_SPELLING, MAX_WORD, read_lexicon
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.app import running_server
from voxcpm_server.text.lexicon import Lexicon, WordList, respelled
from voxcpm_server.text.words import characters

STARTED = 1


def spoken(text: str, entries: dict[str, str], server: dict[str, str] | None = None) -> str:
    return respelled(text, list(Lexicon(WordList(server or {})).preceded_by(entries).find(text)))


@pytest.mark.parametrize(
    ("text", "entries", "expected"),
    [
        ("The gif, the GIF and the Gif.", {"gif": "jif"}, "The jif, the jif and the jif."),
        ("It is the IT of it.", {"it": "that", "IT": "eye tee"}, "that is the eye tee of that."),
        ("A Gif is no GIF.", {"GIF": "jif"}, "A Gif is no jif."),
        ("A party of art-lovers, art's best art", {"art": "ART"}, "A party of ART-lovers, ART's best ART"),
        ("3D prints, D prints, 3 D", {"D": "dee"}, "3D prints, dee prints, 3 dee"),
        ("naive naïve nai\u0308ve", {"nai": "x", "naive": "y"}, "y naïve nai\u0308ve"),
        ("New York and new  york, New Yorker", {"New   York": "NY"}, "NY and new  york, New Yorker"),
        ("C++ and C, a+b", {"C++": "see plus plus", "+": " plus "}, "see plus plus and C, a plus b"),
        ("ab abc abcd", {"ab": "1", "abc": "2"}, "1 2 abcd"),
        ("one two three", {"one": "two", "two": "one"}, "two one three"),
        ("a b c", {"a b": "1", "b c": "2"}, "1 c"),
        ("重庆火车站在重庆。", {"重庆": "崇庆", "重庆火车站": "车站"}, "车站在崇庆。"),
        ("用GIF的图", {"gif": "动图"}, "用动图的图"),
        ("行长在银行", {"银行": "银航"}, "行长在银航"),
        ("กาแฟร้อน", {"กา": "x"}, "xแฟร้อน"),
        ("กำแพง", {"ก": "x"}, "กำแพง"),
        ("AI가 서울에서 서울", {"ai": "에이아이", "서울": "쏘울"}, "에이아이가 서울에서 쏘울"),
        ("ﬁn İstanbul ǅ", {"istanbul": "x", "ǆ": "y"}, "ﬁn İstanbul y"),
        ("nothing here", {}, "nothing here"),
    ],
)
def test_a_word_is_found_by_its_case_its_borders_and_its_length(text, entries, expected):
    assert spoken(text, entries) == expected


def test_the_words_of_a_request_precede_those_of_the_server():
    server = {"gif": "server", "GIF": "SERVER", "png": "ping", "new york city": "NYC"}
    assert spoken("gif GIF png", {"gif": "mine"}, server) == "mine mine ping"
    assert spoken("New York City", {"new york": "NY"}, server) == "NYC"  # the longest word, whoever lists it


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=5).filter(lambda word: word != word.lower())))
def test_words_that_are_spelled_as_they_are_change_nothing(text, words):
    plain = characters.spoken(text)
    assert spoken(plain, {word: word for word in map(characters.spoken, words) if word}) == plain


INVISIBLE = {
    "soft hyphen": "\u00ad",
    "zero-width space": "\u200b",
    "zero-width non-joiner": "\u200c",
    "zero-width joiner": "\u200d",
    "left-to-right mark": "\u200e",
    "right-to-left mark": "\u200f",
    "right-to-left embedding": "\u202b",
    "word joiner": "\u2060",
    "left-to-right isolate": "\u2066",
    "byte-order mark": "\ufeff",
    "variation selector": "\ufe0f",
    "selector of ideographs": "\U000e0100",
}


@pytest.mark.parametrize("char", INVISIBLE.values(), ids=INVISIBLE)
async def test_words_are_found_past_invisible_characters_in_the_text_and_in_the_lexicon(served, char):
    text = f"A {char}G{char}IF{char}. 重{char}庆{char}。"
    words = (
        {"gif": "jif", "重庆": "崇庆"}
        if char == "\u202b" or char == "\u2066"
        else {f"g{char}if": "jif", "重庆": "崇庆"}
    )
    chunks = await served.generate(pb.GenerateConfig(lexicon=lexicon(**words)), text)
    started = [e for c in chunks for e in c.segment_events if e.kind == STARTED]
    assert "".join(event.text for event in started) == "A jif.崇庆。"
    assert started[-1].input_end == len(text)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("other", ["NFC", "NFD"])
@pytest.mark.parametrize("word", ["naïve", "Ångström", "서울", "क़लम", "Việt", "がく", "בָּרוּךְ"])
async def test_composed_and_decomposed_words_are_the_same(served, form, other, word):
    entries = lexicon(**{unicodedata.normalize(form, word): "x"})
    await served.generate(pb.GenerateConfig(lexicon=entries), f"A {unicodedata.normalize(other, word)}, no more.")
    assert served.pool.requests[0].text == "A x, no more."


def test_a_word_with_an_emoji_is_found_in_either_presentation():
    for word in ("I ❤ it", "I ❤\ufe0f it"):
        assert spoken("I ❤ it. I ❤\ufe0f it!", {word: "love"}) == "love. love!"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("co\u00adope\u00adrate", "cooperate"),
        ("\ufeffHe\u200bl\u2060lo\u200e.", "Hello."),
        ("Cafe\u0301, 서울", "Café, 서울"),
        ("e\u200b\u0301", "é"),
        ("葛\U000e0100", "葛"),
        ("क्\u200dष", "क्\u200dष"),  # after a virama a joiner spells
        ("می\u200cخواهم", "می\u200cخواهم"),  # as between Arabic letters
        ("a\u200cb\u200d", "ab"),
        ("سلام\u200c.", "سلام."),
        ("I ❤\ufe0f 👨\u200d👩\u200d👧.", "I ❤\ufe0f 👨\u200d👩\u200d👧."),
    ],
)
async def test_the_model_gets_composed_text_without_invisible_characters(served, text, expected):
    await served.generate(text)
    assert [request.text for request in served.pool.requests] == [expected]


async def test_text_of_invisible_letters_alone_is_refused(served):
    with pytest.raises(grpc.aio.AioRpcError, match="nothing to speak"):
        await served.generate("\u3164\uffa0 \u115f")


def test_a_thousand_words_cost_little_for_a_long_segment():
    """Compared with the same text without words that begin as it does."""
    text = "and so it was that a word came after the other " * 9
    lists = [WordList({f"{first}{number}": "x" for number in range(1000)}) for first in ("a", "§")]
    costs = []
    for one in lists:
        lexicon = Lexicon(one)
        began = time.process_time()
        for _ in range(20):
            list(lexicon.find(text))
        costs.append(time.process_time() - began)
    assert costs[0] < 20 * costs[1]


def lexicon(**words: str) -> list[pb.LexiconEntry]:
    return [pb.LexiconEntry(word=word, spelling=spelling) for word, spelling in words.items()]


async def test_the_model_gets_the_spelling_and_events_count_the_callers_text(served):
    config = pb.GenerateConfig(lexicon=lexicon(gif="animated picture", png="p n g"))
    chunks = await served.generate(config, "A GIF", " moves. A PNG does not. ", pb.Flush(end_turn=True), "GIF!")
    started = [e for c in chunks for e in c.segment_events if e.kind == STARTED]
    assert [(e.text, e.input_start, e.input_end) for e in started] == [
        ("A animated picture moves.", 0, 13),
        ("A p n g does not.", 13, 29),
        ("animated picture!", 0, 4),
    ]
    assert [request.text for request in served.pool.requests] == [
        "A animated picture moves.",
        " A p n g does not.",
        " animated picture!",
    ]
    assert served.pool.requests[1].conditioning.prompt.text == "A animated picture moves."
    assert chunks[-1].summary.input_chars == 33


async def test_a_divided_word_is_found_and_the_division_does_not_matter(served):
    config = pb.GenerateConfig(lexicon=lexicon(gif="jif"))
    await served.generate(config, *"The GIF moves.")
    assert served.pool.requests[0].text == "The jif moves."


async def test_the_lexicon_of_the_server_serves_previews_and_auditions_too(serve_front, recording):
    async with serve_front(lexicon={"gif": "jif"}) as served:
        await served.generate("A GIF.")
        await served.generate(pb.GenerateConfig(lexicon=lexicon(gif="gee eye eff")), "A GIF.")
        preview = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text="My GIF.", auditions=True)
        settings = pb.AddReferenceConfig(preview=preview)
        messages = [
            *upload(pb.AddReferenceRequest, settings, (0, recording)),
            pb.AddReferenceRequest(audition=pb.Audition(text="Your GIF.")),
        ]
        assert [chunk async for chunk in served.stub.AddReference(iter(messages))]
        texts = [request.text for request in served.pool.requests]
        assert texts == ["A jif.", "A gee eye eff.", "My jif.", "Your jif."]


async def test_a_server_does_not_start_with_a_faulty_lexicon(tmp_path: Path):
    (tmp_path / "a.json").write_text("[]")
    settings = Settings(listen="127.0.0.1:0", text=TextSettings(lexicon=tmp_path / "a.json"))
    with pytest.raises(StartupError, match=r"text\.lexicon: the lexicon .*a\.json is not an object"):
        async with running_server(settings):
            pass


@pytest.fixture
def recording() -> bytes:
    return wav_bytes(np.random.default_rng(0).uniform(-0.5, 0.5, 16000).astype(np.float32), 16000)


@pytest.mark.parametrize(
    ("entries", "field", "words"),
    [
        (lexicon(gif="jif", png=""), "config.lexicon[1]", "'png' has no letter"),
        (lexicon(**{" ": "x"}), "config.lexicon[0]", "a word is empty"),
        (lexicon(**{"a b": "x", "a  b": "y"}), "config.lexicon[1]", "'a b' is there twice"),
        (lexicon(**{"an é": "x", "an e\u0301": "y"}), "config.lexicon[1]", "'an é' is there twice"),
        (lexicon(**{"GIF": "x", "G\u00adIF": "y"}), "config.lexicon[1]", "'GIF' is there twice"),
        (lexicon(**{"\u200b": "x"}), "config.lexicon[0]", "a word is empty"),
        (lexicon(a="\u3164"), "config.lexicon[0]", "no letter and no digit"),
        (lexicon(**{"a" * 101: "x"}), "config.lexicon[0]", f"101 characters and the limit is {MAX_WORD}"),
        (lexicon(a="x" * 201), "config.lexicon[0]", f"201 characters and the limit is {MAX_SPELLING}"),
        (lexicon(a="x\x1b"), "config.lexicon[0]", "control character U+001B"),
        (lexicon(**{f"w{n}": "x" for n in range(1001)}), "config.lexicon", "1001 words and the limit is 1000"),
    ],
)
async def test_a_faulty_entry_is_refused_by_its_place(served, details_of, entries, field, words):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(pb.GenerateConfig(lexicon=entries), "Hello.")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in str(caught.value.details())
    assert details_of(caught.value).field == field


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", json.dumps({"GIF": "jif", "重庆": "崇庆"})), ("a.toml", 'GIF = "jif"\n"重庆" = "崇庆"\n')],
)
def test_a_file_is_json_or_toml(tmp_path: Path, name, text):
    (tmp_path / name).write_text(text, "utf-8")
    assert read_lexicon(tmp_path / name) == {"GIF": "jif", "重庆": "崇庆"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "[1]", "is not an object"),
        ("a.json", "{", "is not valid"),
        ("a.json", '{"a": 1}', "that is not a string"),
        ("a.json", '{"a": "x", "a": "y"}', "'a' is there twice"),
        ("a.json", '{"a b": "x", "a  b": "y"}', "'a b' is there twice"),
        ("a.json", '{"a": "..."}', "no letter and no digit"),
        ("a.toml", "a = ", "is not valid"),
        ("a.toml", "[a]\nb = 'c'", "that is not a string"),
    ],
)
def test_a_faulty_file_is_an_error_with_its_path(tmp_path: Path, name, text, words):
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=words) as caught:
        read_lexicon(tmp_path / name)
    assert name in str(caught.value)


def test_a_missing_file_is_an_error_with_its_path(tmp_path: Path):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_lexicon(tmp_path / "none.json")
