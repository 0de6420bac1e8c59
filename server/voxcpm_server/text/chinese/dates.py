"""Chinese dates, years and times of day in words."""

from __future__ import annotations

import re

from voxcpm_server.text.chinese.amounts import RESULTS
from voxcpm_server.text.chinese.numbers import cardinal, decimal, spelled
from voxcpm_server.text.chinese.script import after, either, not_after

Match = re.Match[str]
_TO = r" ?[-−~–—～至到]{1,2} ?"
_MONTH = r"(?:1[0-2]|0?[1-9])"
_DAY = r"(?:3[01]|[12]\d|0?[1-9])"
_YEAR = r"(?:1[0-9]|20|21)\d\d"
_HOUR = r"(?:2[0-4]|[01]?\d)"
_END = r"(?![\d/]|[-.:]\d)"
_LATIN_START = r"(?<![A-Za-z\d./:-])"

_DATE = re.compile(
    rf"{_LATIN_START}({_YEAR}|\d\d(?=/\d\d?/))([-−/.])({_MONTH})\2({_DAY}){_END}(?:T(?=\d)| (?=\d{{1,2}}:))?"
)
_DATES = re.compile(
    rf"{_LATIN_START}({_YEAR})([-/.])({_MONTH})\2({_DAY}){_TO}(?:({_YEAR})\2)?({_MONTH})\2({_DAY})(?![\d/]|[-.:]\d)"
)
_DAYS = re.compile(
    rf"(?<=日)[-−~–—～](?=(?:(?:{_YEAR}年)?{_MONTH}月)?{_DAY}[日号號]|{_YEAR}[-/.]\d|{_MONTH}[-/.]{_DAY}(?!\d))|(?<=[年月])[-−~–—～](?=\d)"
)
_MONTH_OF_YEAR = re.compile(rf"{_LATIN_START}({_YEAR})[-/.](0[1-9]|1[0-2]){_END}(?! ?[年個个元%到至])")
_PLAIN_DAY = re.compile(rf"{_LATIN_START}(?=0|\d\d.0)(0[1-9]|1[0-2])[-/](0[1-9]|[12]\d|3[01]){_END}")
_BEFORE_DAY = """
日期 生日 时间 活动 今天 明天 昨天 截止 截至 定在 定于 日期是 生日是 时间是 今天是 明天是 日期为 日期： 时间：
截止：
"""
_AFTER_DAY = either(
    """
    截止 提交 出发 开始 见面 上线 上映 发布 当天 那天 开会 晚上 早上 上午 下午 中午 凌晨 放假 开学 考试 （周
    （星期 (周 (星期
    """
)
_CUED_DAY = re.compile(
    rf"{after(_BEFORE_DAY)}({_MONTH})/({_DAY}){_END}"
    rf"|{_LATIN_START}({_MONTH})/({_DAY})(?=(?:(?:之?前|以前|之?后)?(?:{_AFTER_DAY})|[^的\W\d]{{1,4}}[节節]))"
)
_DAYS_OF_YEAR = re.compile(
    rf"{_LATIN_START}({_MONTH})/({_DAY}){_TO}({_MONTH})/({_DAY}){_END}(?! ?(?:的|左右|处|處|以))"
)
_YEARS = re.compile(rf"(?<![\d.A-Za-z])({_YEAR}){_TO}({_YEAR})(?!\d|\.\d| ?(?:{either('个 元 人 米 次 名 吨 件 万')}))")
_SEASON = re.compile(rf"(?<![\d.])({_YEAR})[-−/–—](\d\d)(?={either('赛季 学年 财年 年')})")
_SPAN_AFTER = either("前的历史 以来的历史 历史 的历史 之久 时间 文明 陈")
_ERAS = "第 康熙 乾隆 雍正 光绪 民国 昭和 平成"
_YEAR_DIGITS = re.compile(
    rf"(?<![\d.])(?:{not_after('第 约 近 过 将近 超过 大约 长达')}(?!1000){_YEAR}(?=年(?!{_SPAN_AFTER}))"
    rf"|{_YEAR}(?=年?{either('款 版 届 级 赛')}|{either('财年 学年 年度')})"
    r"|(?<!第)\d\d(?=年(?:0?[1-9]|1[0-2])月)"
    rf"|{not_after(_ERAS)}(?:0\d|[6-9][1-9])(?=年(?!{either('前 后 来 内 间 龄 的 以 之 多 代')}))"
    r"|\d\d(?=[后後](?![天年来來卫衛腰]))|(?<=《)\d{4}(?![\d.]))"
)
_ROUND_YEARS = re.compile(r"(?<![\d.])([1-9]000)(?=年(?:前|以?来|以?來|后|後))")
_OF_AN_ERA = re.compile(r"(?:(?<=公元)|(?<=西元))(前?)(\d{1,4})(?=年)")
_TENS = re.compile(r"(?<!\d)([1-9]0|00)(年代)")
_LONG_YEARS = re.compile(rf"(?<!\d)({_YEAR})(年代)")

_MERIDIEM = {"a": "上午", "p": "下午"}
_ENGLISH_TIME = re.compile(
    r"(?<![\d:.])(\d{1,2})(:[0-5]\d)? ?([aApP])\.?[mM](?![A-Za-z\d])\.?"
    r"|(?<![A-Za-z])([aApP])[mM] ?(\d{1,2})(:[0-5]\d)?(?![\d:]|\.\d)"
)
_HALVES = either("上午 下午 早上 晚上 凌晨 中午 傍晚 次日 第二天")
_SAID_TWICE = re.compile(rf"({_HALVES})[上下]午")
_TIME_RANGE = re.compile(
    rf"(?<=:[0-5]\d){_TO}(?={_HOUR}:[0-5]\d)|(?<=[点點时時半分\d]){_TO}(?={_HALVES})"
    r"|(?<=[点點时時半分]) ?[-−~–—～]{1,2} ?(?=\d{1,2}[点點时時:])"
)
_WEEKDAYS = re.compile(r"(?<=[周週期][一二三四五六日1-6])[-−~–—～](?=[周週星一二三四五六日])")
_TIME = re.compile(rf"(?<![\d:.])({_HOUR}):([0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?(?![\d:]|\.\d)(?:分(?![钟鐘]))?")
_ZERO_PART = re.compile(r"(?<=[点點时時分])(0\d)(?=[分秒])")
_RATIOS = "比分 比例 比例尺 比率 配比 宽高比 长宽比 比为 之比 比是 打成 战成 终场 半场 局分 盘分 总分 赔率"
_SCORE_BEFORE = re.compile(rf"(?:{either(f'{_RATIOS} {RESULTS}')})\S{{0,4}}$")
_SCORE_AFTER = re.compile(rf" ?的?(?:{either(f'{RESULTS} 比例 比率 屏幕 屏 画面 成绩 大比分 总比分 优势')})")


def dates_in_words(text: str) -> str:
    """The text with every date, year and time of day in words."""
    text = _DATES.sub(_dates, text)
    text = _DATE.sub(lambda m: f"{spelled(m[1])}年{_plain(m[3])}月{_plain(m[4])}日", text)
    text = _SEASON.sub(lambda m: f"{spelled(m[1])}到{spelled(m[2])}", text)
    text = _MONTH_OF_YEAR.sub(lambda m: f"{spelled(m[1])}年{_plain(m[2])}月", text)
    text = _PLAIN_DAY.sub(lambda m: f"{_plain(m[1])}月{_plain(m[2])}日", text)
    text = _DAYS_OF_YEAR.sub(lambda m: f"{_plain(m[1])}月{_plain(m[2])}日到{_plain(m[3])}月{_plain(m[4])}日", text)
    text = _CUED_DAY.sub(lambda m: f"{_plain(m[1] or m[3])}月{_plain(m[2] or m[4])}日", text)
    text = _DAYS.sub("到", text)
    text = _YEARS.sub(lambda m: f"{spelled(m[1])}到{spelled(m[2])}", text)
    text = _ROUND_YEARS.sub(lambda m: cardinal(m[1]), text)
    text = _OF_AN_ERA.sub(lambda m: f"{m[1]}{spelled(m[2])}", text)
    text = _TENS.sub(lambda m: f"{'零零' if m[1] == '00' else cardinal(m[1])}{m[2]}", text)
    text = _LONG_YEARS.sub(lambda m: f"{spelled(m[1])}{m[2]}", text)
    text = _YEAR_DIGITS.sub(lambda m: spelled(m[0]), text)
    return _times(text)


def _dates(match: Match) -> str:
    first, _, month, day, second, last_month, last_day = match.groups()
    begin = f"{spelled(first)}年{_plain(month)}月{_plain(day)}日"
    return f"{begin}到{f'{spelled(second)}年' if second else ''}{_plain(last_month)}月{_plain(last_day)}日"


def _times(text: str) -> str:
    text = _SAID_TWICE.sub(r"\1", _ENGLISH_TIME.sub(_english, text))
    text = _WEEKDAYS.sub("到", text)
    text = _TIME_RANGE.sub("到", text)
    text = _TIME.sub(lambda m: _time(m, text), text)
    return _ZERO_PART.sub(lambda m: decimal(m[1]), text)


def _english(match: Match) -> str:
    half, hour, minutes = match[3] or match[4], match[1] or match[5], match[2] or match[6] or ""
    return f"{_MERIDIEM[half.lower()]}{hour}{minutes or '点'}"


def _time(match: Match, text: str) -> str:
    hour, minutes, seconds = match[1], match[2], match[3]
    is_score = _SCORE_BEFORE.search(text, 0, match.start()) or _SCORE_AFTER.match(text, match.end())
    if seconds is None and is_score:
        return match[0]
    words = f"{_hour(hour)}点"
    if int(minutes) or int(seconds or 0):
        words += f"{_padded(minutes)}分"
    return words + (f"{_padded(seconds)}秒" if seconds and int(seconds) else "")


def _hour(digits: str) -> str:
    return "两" if int(digits) == 2 else _plain(digits)


def _plain(digits: str) -> str:
    return cardinal(str(int(digits)))


def _padded(digits: str) -> str:
    return spelled(digits) if digits[0] == "0" and digits != "00" else _plain(digits)
