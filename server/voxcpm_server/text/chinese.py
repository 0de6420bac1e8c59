"""Chinese text for a reader: what the library `wetext` reads wrongly."""

from __future__ import annotations

import re

SYMBOLS = {"²": "平方", "³": "立方", "√": "根号", "≈": "约等于", "≤": "小于等于", "≥": "大于等于", "≠": "不等于"}
OPERATORS = {"+": "加", "-": "减", "−": "减", "×": "乘", "*": "乘", "÷": "除以", "/": "除以", "=": "等于"}
_AREA = re.compile(r"(\d)(km|cm|mm|m)([²³])")
_AREA_UNITS = {"m": "米", "km": "千米", "cm": "厘米", "mm": "毫米"}
_DATE = re.compile(r"(?<![\d-])(\d{4})-(\d{1,2})-(\d{1,2})(?![\d-])")
_PHONE = re.compile(r"(?<![\d-])(0\d{2,3})-(\d{7,8})(?![\d-])")
_LONG = re.compile(r"(?<![\d.,])\d{12,}(?![\d.,]\d)")
_RANGE = re.compile(r"(?<![\d.A-Za-z-])(\d+(?:\.\d+)?%?)[-~–—～](\d+(?:\.\d+)?%?)(?![\d-])")
_MODEL = re.compile(r"(?<=[A-Za-z])-(?=\d)")
_SUM = re.compile(r"\d[\d.]*(?: ?[-+−×*÷/] ?\d[\d.]*)+(?= ?=)|(?<=\d) ?= ?(?=\d)")
_OPERATOR = re.compile(r" ?([-+−×*÷/=]) ?")
_TIMES = re.compile(r"(?<=\d) ?([×÷]) ?(?=\d)")


def prepared(text: str) -> str:
    """The text with what `wetext` reads wrongly already in words."""
    text = _SUM.sub(lambda m: _OPERATOR.sub(lambda one: OPERATORS[one[1]], m[0]), text)
    text = _TIMES.sub(lambda m: OPERATORS[m[1]], text)
    text = text.replace("=", "等于").replace(">", "大于").replace("<", "小于")
    text = _DATE.sub(lambda m: f"{m[1]}年{int(m[2])}月{int(m[3])}日", text)
    text = _PHONE.sub(lambda m: "".join("零幺二三四五六七八九"[int(digit)] for digit in m[1] + m[2]), text)
    text = _LONG.sub(lambda m: "".join("零一二三四五六七八九"[int(digit)] for digit in m[0]), text)
    text = _RANGE.sub(r"\1到\2", text)
    text = _MODEL.sub(" ", text)
    return _AREA.sub(lambda m: f"{m[1]}{'平方' if m[3] == '²' else '立方'}{_AREA_UNITS[m[2]]}", text)


def finished(text: str) -> str:
    """The text of `wetext` without spaces inside Chinese, without brackets, and with names for symbols."""
    for bracket in "（）【】":
        text = text.replace(bracket, " ")
    text = text.replace("`", "").replace("——", " ")
    for symbol, reading in SYMBOLS.items():
        text = text.replace(symbol, reading)
    return re.sub(r"(?<![\x21-\x7e]) +| +(?![\x21-\x7e])", "", " ".join(text.split()))
