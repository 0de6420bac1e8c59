"""Chinese numbers in words: what holds for every text. tests/system/normalize has the readings of single texts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxcpm_server.text import chinese
from voxcpm_server.text.chinese.numbers import cardinal

PIECES = """
今天是2024-05-03 2024年5月3日 8:05 下午2点 2个 2号 200元 ¥3.50 $5 -5℃ +3 3-5天 5% 3%-5% 1/2 3:2 （真的） ——
我 去了 ， 。 iPhone 15 GPT-4 v2.0.1 192.168.1.1 13800138000 110 302室 5km/h 2kg 1,000 1.5亿 Python 3.12 He is OK
兩個 這裡 第2 ② ½ C++ 007 58同城 ２ a1@b2.com 2^10 “好” 90年代 2019-2021年
"""
ONES = {"": 0} | {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"两": 2}
UNITS = {"十": 10, "百": 100, "千": 1000}


def read(text: str) -> str:
    return chinese.read(text)


def value_of(words: str) -> int:
    """The number that words name, read by its units from the largest to the smallest."""
    for unit, size in (("亿", 10**8), ("万", 10**4)):
        before, found, behind = words.partition(unit)
        if found:
            return value_of(before) * size + value_of(behind)
    total = 0
    for digit, unit in re.findall("零?([一二三四五六七八九两]?)([千百十]?)", words):
        total += (ONES[digit] or 1) * UNITS[unit] if unit else ONES[digit]
    return total


def words_of(text: str) -> list[str]:
    """The Latin words that are longer than units and marks of currencies."""
    return [word for word in re.findall("[A-Za-z]+", text) if len(word) > 3]


@given(st.integers(0, 10**16 - 1) | st.integers(0, 10**5))
def test_a_number_is_worth_what_its_words_name(number: int):
    assert value_of(cardinal(str(number))) == number


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=8), st.sampled_from(["", " "]))
def test_no_digit_is_left_and_words_stay_as_they_are(pieces: list[str], between: str):
    found = read(between.join(pieces))
    assert not re.search(r"[0-9０-９]", found)
    assert read(found) == found


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=8))
def test_words_of_english_stay_whole_and_in_order(pieces: list[str]):
    text = "我" + "，".join([*pieces, "The quick brown fox", "了"])
    assert "The quick brown fox" in read(text)
    assert words_of(read(text)) == words_of(text)


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.sampled_from("0123456789-–—~.,:/%+×= 年月日点个号kmGs$¥€（()，。第A℃#&*'\"@①²\u3000") | st.characters())
)
def test_odd_text_is_never_an_error_and_has_no_digits_of_ascii(text: str):
    assert not re.search("[0-9]", read(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("這裡有2個，20000元，下午2點，-5℃", "這裡有兩個，兩萬元，下午兩點，負五攝氏度"),
        ("这里有2个，20000元，下午2点，-5℃", "这里有两个，两万元，下午两点，负五摄氏度"),
    ],
)
def test_words_take_the_script_of_the_text(text: str, expected: str):
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("（首都）很大", "首都，很大"),
        ("北京（首都），很大。", "北京，首都，很大。"),
        ("北京（首都）。", "北京，首都。"),
        ("北京 —— 首都——", "北京，首都"),
        ("(a warm voice)你好（真的）吗？", "(a warm voice)你好，真的，吗？"),
        ("调用print()和f(x)", "调用print()和f(x)"),
        ("你好 世界", "你好 世界"),
        ("共 3 个 item", "共三个item"),
        ("模型 3.1 405B", "模型三点一 四百零五B"),
    ],
)
def test_brackets_and_dashes_are_one_pause_and_words_do_not_join(text: str, expected: str):
    assert read(text) == expected


@pytest.mark.parametrize("text", ["1" * 400, "1-" * 200, "1:" * 200, "a1" * 200, "（" * 400, "a." * 200, "1/21" * 100])
def test_long_runs_of_marks_and_digits_end(text: str):
    assert not re.search("[0-9]", read(text))
