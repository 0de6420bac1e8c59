"""Chinese text's forms of characters before it is read, and its spaces, brackets and dashes after."""

from __future__ import annotations

import re
import unicodedata

from voxcpm_server.text.chinese.numbers import cardinal

_WIDE = re.compile(r"[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a＄＃％＆＋－／＜＝＞＠]")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[：．](?=\d)")
_COMPATIBLE = re.compile(r"[\u3300-\u33ff\u00bc-\u00be\u2150-\u215e]")  # these are units such as ㎡, and fractions
_CIRCLED = re.compile(r"[\u2460-\u2473\u24f5-\u24fe\u2776-\u2793\u3220-\u3229\u3280-\u3289]")
_SINGLE_NUMBER = re.compile(rf"[\u2160-\u217b]|{_CIRCLED.pattern}")
_LIST = re.compile(rf"^{_CIRCLED.pattern} ?|^(?:\d{{1,2}}[.、)]|[（(]\d{{1,2}}[)）])(?!\d) ?")
_HAN = r"\u3400-\u9fff\uf900-\ufaff"
_CHINESE_MARK = r"\u3000-\u303f\uff00-\uff65"
_SPACE = re.compile(
    rf"(?<=[{_HAN}]) +(?=[!-~℃])|(?<=[!-~℃]) +(?=[{_HAN}])| *(?<=[{_CHINESE_MARK}]) *| +(?=[{_CHINESE_MARK}])"
)
_PAUSE = re.compile(
    # A description of the voice and calls such as f(x) keep their parentheses.
    r"(?P<kept>^\([^()]*\)|(?<=[A-Za-z_])\([!-'*-~ ]*\))"
    r"| *(?:[（）()【】［］\[\]〔〕|｜•~～—―─–]| -{1,2} |--)[ （）()【】［］\[\]〔〕|｜•~～—―─–]*"
)
_QUIET_BEFORE = frozenset("，。！？；：、…,.!?;:“「『《")
_QUIET_AFTER = frozenset("，。！？；：、…,.!?;:”」』》")


def with_plain_characters(text: str) -> str:
    """The text with ASCII for wide letters and digits, and with numbers for characters such as Ⅱ, ½ and ㎡."""
    text = _WIDE.sub(lambda m: unicodedata.normalize("NFKC", m[0]), text.replace("\u3000", " "))
    text = _BETWEEN_DIGITS.sub(lambda m: {"：": ":", "．": "."}[m[0]], text)
    text = _COMPATIBLE.sub(lambda m: unicodedata.normalize("NFKC", m[0]).replace("\u2044", "/"), text)
    if len(_CIRCLED.findall(text)) > 1:  # the numbers are those of a list within a sentence
        text = _CIRCLED.sub(lambda m: f"（{_value(m[0])}）", text)
    text = _LIST.sub(lambda m: f"{_value(m[0])}，", text)
    return _SINGLE_NUMBER.sub(lambda m: cardinal(_value(m[0])), text)


def _value(mark: str) -> str:
    """The digits of a mark such as ③, Ⅲ or (3)."""
    digits = re.search("[0-9]+", mark)
    return digits[0] if digits else str(int(unicodedata.numeric(mark.strip()[0])))


def without_loose_spaces(text: str) -> str:
    """The text without the spaces between Chinese and other scripts, and beside Chinese marks."""
    return _SPACE.sub("", " ".join(text.split()))


def with_pauses(text: str) -> str:
    """The text with a comma where brackets, dashes and the like make a pause, unless another mark stands there.

    Parentheses at the start stay, because they may describe the voice, and so do those of calls such as f(x).
    """
    return _PAUSE.sub(_pause, text)


def _pause(match: re.Match[str]) -> str:
    if match["kept"]:
        return match[0]
    before, behind = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    silent = not before or not behind or before in _QUIET_BEFORE or behind in _QUIET_AFTER
    return "" if silent else "，"
