"""Chinese fractions, ranges, signs and sums: their marks become words, and the numbers stay digits."""

from __future__ import annotations

import re

from voxcpm_server.text.chinese.measures import COUNTED
from voxcpm_server.text.chinese.numbers import decimal, spelled
from voxcpm_server.text.chinese.script import after, either

Match = re.Match[str]
_N = r"\d+(?:\.\d+)?"
_DASH = r" ?[-−~–—～]{1,2} ?"
OPERATORS = {"+": "加", "-": "减", "−": "减", "×": "乘", "*": "乘", "÷": "除以", "/": "除以", "=": "等于"}
PARTS = {"%": "百分之", "‰": "千分之", "‱": "万分之"}
SIGNS = {"": "", "-": "负", "−": "负", "+": "正"}
SYMBOLS = {
    "²": "平方", "³": "立方", "√": "根号", "≈": "约等于", "≤": "小于等于", "≥": "大于等于", "≠": "不等于",
    "=": "等于", ">": "大于", "<": "小于", "→": "到", "×": "乘", "÷": "除以", "∞": "无穷大", "@": "艾特",
}  # fmt: skip
RESULTS = "战胜 击败 获胜 取胜 领先 落后 大胜 险胜 逆转 横扫 战平 打平 负于 不敌 惜败 告负 输给 赢 比分 胜 负"
_RESULTS = either(RESULTS)

_SUM = re.compile(rf"{_N}(?: ?[-+−×*÷/] ?{_N})+(?= ?=)")
_SPACED_SUM = re.compile(rf"(?<![\d.]){_N}(?: [-+−×*÷] {_N})+(?![\d.])")
_OPERATOR = re.compile(r" ?([-+−×*÷/=]) ?")
_TIMES = re.compile(r"(?<=\d) ?([×xX*÷]) ?(?=\d)")
_POWER = re.compile(r"(?<=\d)\^([-−]?)(\d+)")
_SCIENTIFIC = re.compile(rf"(?<![A-Za-z\d.])({_N})[eE]([-−+]?)(\d{{1,3}})(?![A-Za-z\d])")
_PERCENTS = re.compile(rf"((?<![\d.A-Za-z])[-−+]|)({_N})( ?[%‰‱])?(?:{_DASH}|[到至])([-−+]?)({_N}) ?([%‰‱])")
_PERCENT = re.compile(rf"((?<![\dA-Za-z])[-−+]|)({_N}) ?([%‰‱])")
_ADDED_PERCENT = re.compile(rf"(?<=[\u4e00-\u9fff])\+(?={_N} ?[%‰‱])")
_MIXED = re.compile(r"(?<![\d./])(\d{1,3}) (\d{1,2})/(\d{1,3})(?![\d/])")
_PRESSURE = re.compile(rf"{after('血压 血压是 血压为')}(\d{{2,3}})/(\d{{2,3}})")
_OF_PAGES = re.compile(r"第(\d+)/(\d+)([页頁集题題步])")
_FRACTION = re.compile(r"(?<![\d./A-Za-z])(\d{1,5})/(\d{1,5})(?![\d/]|\.\d)")
_RATIO = re.compile(rf"(?<![\d.:]){_N}(?: ?[:∶] ?{_N})+(?![\d:])")
_SCORE = re.compile(
    rf"(?<![\d.])(\d{{1,3}})[-–—](\d{{1,3}})(?= ?的?总?(?:{_RESULTS}))"
    rf"|{after('比分 比分是 比分为')}(\d{{1,3}})[-–—](\d{{1,3}})(?!\d)"
)
_RANGE = re.compile(rf"(?<=\d)((?:{COUNTED}|[年月日号號时時折级級楼樓章节節])?){_DASH}(?=[-−第]?\d)")
_RESULT = re.compile(
    rf"(?<![\d.A-Za-z-])(\d{{1,2}})-(\d{{1,2}})(?![\d.%-]|℃| ?(?:{COUNTED}|[年月日号號折级級楼樓章节節班栋棟室]))"
)
_ABOUT = re.compile(r"(约|約|大概|将近|將近|差不多)?(?<![\dA-Za-z])[~～] ?(?=\d)")
_ADDED = re.compile(rf"(?<=[\w+])\+(?={_N})(?!{_N}(?:度|摄氏|华氏))")
_PLUS = re.compile(r"(?<=[\w+]) ?\+ ?")
_NEGATIVE = re.compile(r"(?<![\dA-Za-z])[-−] ?(?=\d)|(?<=[A-Za-z])−(?=\d)")
_POSITIVE = re.compile(r"\+(?=\d)")
_DISCOUNT = re.compile(r"(?<![\d.])([1-9])\.?([1-9])(?=折)")
_AND = re.compile(r"(?<=[\u4e00-\u9fff]) ?& ?(?=\w)|(?<=\w) ?& ?(?=[\u4e00-\u9fff])")
_TOPIC = re.compile(r"# ?(\w{1,30}) ?#")
_HOUSE_SIGN = re.compile(r"(?<=\d)#(?=[楼樓机機线線门門])")
_NUMBER_SIGN = re.compile(r"(?:№|#|(?<![A-Za-z])[Nn][Oo]\.? ?)(?=\d)")
_ENGLISH_ORDINAL = re.compile(r"(?<![\dA-Za-z])(\d+)(?:st|nd|rd|th)(?![A-Za-z])")


def marks_in_words(text: str) -> str:
    """The text with words for the marks of arithmetic, of ranges and of fractions."""
    text = _DISCOUNT.sub(lambda m: spelled(m[1] + m[2]), text)
    text = _MIXED.sub(r"\1又\3分之\2", text)
    for pattern in (_SUM, _SPACED_SUM):
        text = pattern.sub(_sum, text)
    text = _ADDED_PERCENT.sub("加", text)
    text = _PERCENTS.sub(_percents, text)
    text = _PERCENT.sub(lambda m: f"{SIGNS[m[1]]}{PARTS[m[3]]}{m[2]}", text)
    text = _PRESSURE.sub(r"\1比\2", text)
    text = _OF_PAGES.sub(r"第\1\3共\2\3", text)
    text = _FRACTION.sub(r"\2分之\1", text)
    text = _RATIO.sub(lambda m: re.sub(" ?[:∶] ?", "比", m[0]), text)
    text = _SCORE.sub(lambda m: f"{m[1] or m[3]}比{m[2] or m[4]}", text)
    text = _RESULT.sub(lambda m: f"{m[1]}{'比' if int(m[1]) >= int(m[2]) else '到'}{m[2]}", text)
    text = _RANGE.sub(r"\1到", text)
    text = _TIMES.sub(lambda m: "除以" if m[1] == "÷" else "乘", text)
    text = _ADDED.sub("加", _ABOUT.sub(lambda m: m[1] or "约", text).replace("±", "正负"))
    return _POSITIVE.sub("正", _NEGATIVE.sub("负", text))


def symbols_in_words(text: str) -> str:
    """The text with words for symbols that need no number."""
    for symbol, reading in SYMBOLS.items():
        text = text.replace(symbol, reading)
    return _AND.sub("和", _PLUS.sub("加", _TOPIC.sub(r"\1", text)))


def ordinals_and_powers_in_words(text: str) -> str:
    """The text with words for signs of ordinals and powers, such as No.1, 10^8 and 1e-5."""
    text = _HOUSE_SIGN.sub("号", text)
    text = _NUMBER_SIGN.sub("第", _ENGLISH_ORDINAL.sub(r"第\1", text))
    text = _SCIENTIFIC.sub(lambda m: f"{m[1]}乘十的{_signed(m[2], m[3])}次方", text)
    return _POWER.sub(lambda m: f"的{_signed(m[1], m[2])}次方", text)


def _sum(match: Match) -> str:
    """A sum; what it adds may be fractions."""
    terms = match[0]
    if re.search("[-+−]", terms):
        terms = _FRACTION.sub(r"\2分之\1", terms)
    return _OPERATOR.sub(lambda one: OPERATORS[one[1]], terms)


def _percents(match: Match) -> str:
    """A range of percentages: the second names its parts again if the first has the mark, too."""
    part = PARTS[match[6]]
    return f"{SIGNS[match[1]]}{part}{match[2]}到{SIGNS[match[4]]}{part if match[3] else ''}{match[5]}"


def _signed(sign: str, digits: str) -> str:
    return ("负" if sign in ("-", "−") else "") + decimal(digits)
