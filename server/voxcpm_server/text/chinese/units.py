"""Chinese names of currencies and units behind their numbers, which stay digits: ¥5 becomes 5元, 3km/h 3千米每小时."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from voxcpm_server.text.chinese.script import either

Match = re.Match[str]
CURRENCIES = {
    "¥": "元", "￥": "元", "$": "美元", "€": "欧元", "£": "英镑", "₩": "韩元", "₹": "卢比", "₽": "卢布",
    "฿": "泰铢", "₫": "越南盾", "HK$": "港元", "NT$": "新台币", "US$": "美元", "A$": "澳元", "AU$": "澳元",
    "C$": "加元", "CA$": "加元", "S$": "新加坡元", "R$": "雷亚尔", "JP¥": "日元", "CN¥": "元", "RMB": "元",
    "CNY": "元", "USD": "美元", "EUR": "欧元", "GBP": "英镑", "JPY": "日元", "HKD": "港元", "TWD": "新台币",
    "KRW": "韩元",
}  # fmt: skip
UNITS = {
    "km": "千米", "m": "米", "dm": "分米", "cm": "厘米", "mm": "毫米", "μm": "微米", "µm": "微米", "nm": "纳米",
    "ft": "英尺", "kg": "千克", "KG": "千克", "Kg": "千克", "g": "克", "mg": "毫克", "μg": "微克", "µg": "微克",
    "t": "吨", "lb": "磅", "lbs": "磅", "oz": "盎司", "L": "升", "l": "升", "ml": "毫升", "mL": "毫升",
    "ML": "毫升", "h": "小时", "hr": "小时", "hrs": "小时", "H": "小时", "min": "分钟", "mins": "分钟",
    "s": "秒", "sec": "秒", "ms": "毫秒", "μs": "微秒", "ns": "纳秒", "Hz": "赫兹", "kHz": "千赫", "KHz": "千赫",
    "MHz": "兆赫", "GHz": "吉赫", "W": "瓦", "kW": "千瓦", "KW": "千瓦", "kw": "千瓦", "MW": "兆瓦",
    "kWh": "千瓦时", "V": "伏", "kV": "千伏", "mV": "毫伏", "mA": "毫安", "mAh": "毫安时", "Ω": "欧姆",
    "Pa": "帕", "kPa": "千帕", "MPa": "兆帕", "hPa": "百帕", "J": "焦", "kJ": "千焦", "cal": "卡",
    "kcal": "千卡", "dB": "分贝", "db": "分贝", "N": "牛", "ha": "公顷", "mmHg": "毫米汞柱", "rpm": "转每分钟",
    "mph": "英里每小时", "kmh": "千米每小时", "px": "像素", "mol": "摩尔", "°C": "摄氏度", "℃": "摄氏度",
    "°F": "华氏度", "℉": "华氏度", "°": "度", "º": "度", "m²": "平方米", "km²": "平方千米", "cm²": "平方厘米",
    "mm²": "平方毫米", "m³": "立方米", "cm³": "立方厘米", "mm³": "立方毫米", "km³": "立方千米",
    "dm³": "立方分米", "m2": "平方米", "km2": "平方千米", "cm2": "平方厘米", "m3": "立方米", "cm3": "立方厘米",
}  # fmt: skip
_KEPT = "[KMGTP]i?B|kB|[KMGk]bps|MM|[KMGT]"  # letters that readers say as they are
_PER = UNITS | {"d": "天", "day": "天", "y": "年"}
_PER_WORDS = either(
    """
    人 次 天 日 月 年 周 季 小时 分钟 分 秒 个 件 斤 公斤 千克 吨 克 升 平 晚 位 股 张 瓶 盒 杯 套 份 本 台 间
    亩 公里 桶 户 箱 包 只 平方米 平方公里 立方米 公顷 百万 千字 字
    """
)
_MEASURED = "元块塊圆角人个個次件米克斤升度转轉字步里天万亿萬億千百"
_SIZES = {"k": 3, "K": 3, "m": 6, "M": 6, "b": 9, "B": 9, "bn": 9, "w": 4, "W": 4}


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_N = r"\d+(?:\.\d+)?"
_SIZE = r"(bn|[kKmMbBwW])(?![A-Za-z])|((?:[百千]?[万亿萬億]|[百千])?)"
_UNIT_OF_MONEY = r"(?:(?:美|欧|歐|日|港|澳|加)?元|英镑|英鎊|港币|港幣)?"
_PRICE = re.compile(
    rf"(?<![A-Za-z])({_any(CURRENCIES)}) ?([-−+]?{_N})(?: ?[-~–—～至到] ?(?:{_any(CURRENCIES)})?({_N}))?"
    rf"(?:{_SIZE}){_UNIT_OF_MONEY}"
)
_PRICE_BEHIND = re.compile(rf"(?<![\d.])({_N})(?:{_SIZE}) ?({_any(CURRENCIES)})(?![A-Za-z\d])")
_DECIMAL_COMMA = re.compile(r"((?<=€)\d+|(?<=€ )\d+|(?<![\d.,])\d+(?=,\d\d ?€)),(\d\d)(?!\d)")
_NEEDLESS_ZEROS = re.compile(r"(?<=\d)(?:\.00|(?<=\d)(\.[1-9])0)(?=(?:美|欧|歐|港|日|澳|加)?元|英镑|英鎊|块|塊)")
_SCREENS = either("视频 电视 屏 画质 分辨率 超清 超高清 影院 金 纯金 黄金")
_THOUSANDS = re.compile(rf"(?<![\dA-Za-z.])(\d+(?:\.\d+)?)([kw])(?![A-Za-z\d]|{_SCREENS})")
_DURATION = re.compile(r"(?<![A-Za-z\d.])(\d+)[hH](\d{1,2})(?:min|m)?(?:(\d{1,2})s)?(?![A-Za-z\d])")
_ANGLE = re.compile(r"(?<=\d)[°º](\d+)[′'](?:(\d+(?:\.\d+)?)[″\"])?")
_NETWORK = re.compile(rf"(?<=\d)g(?={either('网 手机 时代 信号 基站 技术 流量 套餐')})")
_WATTS = re.compile(rf"(?<=\d)w(?={either('快充 充电 灯 功率')})")
_MINUTES = re.compile(r"(?<![\d.])(\d{1,2})['′](\d{1,2})[\"″]")
_UNIT = re.compile(rf"(?<=\d) ?({_any(UNITS)})(?:/({_any(_PER)}|{_PER_WORDS}))?(?![A-Za-z\d²³]|/[A-Za-z])")
_KEPT_PER = re.compile(rf"(?<=\d)( ?(?:{_KEPT}))/({_any(_PER)}|{_PER_WORDS})(?![A-Za-z\d])")
_HAN_PER = re.compile(
    rf"(?<=[{_MEASURED}\d])/(?=(?:{_PER_WORDS})(?!/))|(?<=[{_MEASURED}\d])/({_any(_PER)})(?![A-Za-z])"
    rf"|(?<=[克升米斤])/(?={_N}[{_MEASURED}毫千厘])"
)
_NAME_BEFORE = re.compile(r"(?<![A-Za-z\d])[A-Za-z]+[ -]?\d+$")


def with_names_of_units(text: str) -> str:
    """The text with words for currencies and units, behind their numbers."""
    text = _DECIMAL_COMMA.sub(r"\1.\2", text)
    text = _PRICE.sub(lambda m: _price(m, m[4], m[5]), text)
    text = _PRICE_BEHIND.sub(lambda m: _sized(m[1], m[2], m[3]) + CURRENCIES[m[4]], text)
    text = _NEEDLESS_ZEROS.sub(lambda m: m[1] or "", text)
    text = _DURATION.sub(lambda m: f"{m[1]}小时{m[2]}分钟" + (f"{m[3]}秒" if m[3] else ""), text)
    text = _ANGLE.sub(lambda m: f"度{m[1]}分" + (f"{m[2]}秒" if m[2] else ""), text)
    text = _WATTS.sub("瓦", _NETWORK.sub("G", text))
    text = _MINUTES.sub(r"\1分\2秒", text)
    text = _UNIT.sub(lambda m: _unit(m, text), text)
    text = _KEPT_PER.sub(lambda m: f"{m[1]}每{_PER.get(m[2], m[2])}", text)
    text = _THOUSANDS.sub(lambda m: _sized(m[1], m[2], ""), text)
    return _HAN_PER.sub(lambda m: f"每{_PER.get(m[1], '')}" if m[1] else "每", text)


def _price(match: Match, size: str | None, multiple: str | None) -> str:
    amount = _sized(match[2], size, multiple)
    if match[3]:
        amount = f"{match[2]}到{_sized(match[3], size, multiple)}"
    return amount + CURRENCIES[match[1]]


def _sized(number: str, size: str | None, multiple: str | None) -> str:
    """An amount such as 20k, 1.5M or 3万, with the Chinese multiple that has the fewest digits."""
    if not size:
        return number + (multiple or "")
    value = Decimal(number).scaleb(_SIZES[size])
    for power, name in ((8, "亿"), (4, "万")):
        if abs(value) >= 10**power:
            return f"{value.scaleb(-power).normalize():f}{name}"
    return f"{value.normalize():f}"


def _unit(match: Match, text: str) -> str:
    """A unit's name; a single letter after the number of a product, such as iPhone 5s, is no unit."""
    if len(match[1]) == 1 and match[1].isalpha() and _NAME_BEFORE.search(text, 0, match.start()):
        return match[0]
    return UNITS[match[1]] + (f"每{_PER.get(match[2], match[2])}" if match[2] else "")
