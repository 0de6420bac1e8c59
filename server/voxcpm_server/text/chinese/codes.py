"""Chinese text's numbers that are names: addresses, telephone numbers, versions, brands and models."""

from __future__ import annotations

import re

from voxcpm_server.text.chinese.measures import COUNTED
from voxcpm_server.text.chinese.numbers import decimal, spelled
from voxcpm_server.text.chinese.script import after, either

Match = re.Match[str]
_ADDRESS_MARKS = str.maketrans(
    {".": "点", "/": "斜杠", ":": "冒号", "@": "艾特", "-": "杠", "_": "下划线", "?": "问号", "=": "等于", "#": "井号"}
)
_URL = re.compile(
    r"(?<![A-Za-z\d])(?:(?:https?|ftp)://[A-Za-z\d][^\s\u3000-\uffef]*|[\w.+-]+@[A-Za-z\d-]+(?:\.[A-Za-z\d-]+)+"
    r"|(?:[A-Za-z\d-]+\.)+(?:com|cn|net|org|io|gov|edu|ai|hk|tw)\b(?:/[^\s\u3000-\uffef]*)?)",
    re.ASCII,
)
_SCHEME = re.compile(r"^(?:https?|ftp)://")
_IP = re.compile(r"(?<![\d.])((?:\d{1,3}\.){3}\d{1,3})(/\d{1,2}|:\d{2,5})?(?![\d.]*\d)")
_PORT = re.compile(r"(?<=[A-Za-z]):\d{2,5}(?![\d:])")
_VERSION = re.compile(r"(?<![\d.])(\d+(?:\.\d+){2,})(?![\d.]*\d)")
_HOUSE = re.compile(r"(?<![A-Za-z\d.-])(\d{1,4})-(\d{1,4})-(\d{1,4})(?![\d.-])")
_BOOKS = re.compile(r"(?<![\d-])97[89](?:[- ]\d{1,7}){3}[- ]\d(?!\d)|(?<![\d-])\d+(?:-\d+){3,}(?![\d-])")

_MOBILE = re.compile(r"(?<![\d.])(?:\+?(86)[- ]?)?(1[3-9]\d)([- ]?)(\d{4})\3(\d{4})(?!\d)")
_LANDLINE = re.compile(
    r"(?<![\d.-])(?<!\d )(?:\+\d{1,3}[- ])?[(（]?0\d{2,3}[)）]?[- ]?(?:\d{7,8}|\d{4}[- ]\d{4})(?:-\d{1,5})?(?![\d-])"
)
_FREE = re.compile(r"(?<![\d-])[48]00(?:([- ]?)\d{3}\1\d{4}|-\d{4}-\d{3})(?![\d-])")
_ABROAD = re.compile(r"(?<![\dA-Za-z])\+\d{1,3}[- ]?\(?\d{1,4}\)?(?:[- ]\d{3,4}){1,3}(?![\d-])")
_EXTENSION = re.compile(r"(?<=[零幺二三四五六七八九][转轉])\d{2,5}(?!\d)")
_CALL_CUES = "拨 拨打 致电 呼叫 电话 热线 客服 手机 号码 传真 短信 请打 快打 就打 ，打 。打"
_CALLED = re.compile(
    rf"(?:{either(_CALL_CUES)}|^打|[Tt]el|TEL)(?:{either('到 给 了 是 为 ： 号 号码')}|[: ])?\+?"
    rf"(\d(?:[- ]?\d){{2,11}})(?![\d.])(?! ?(?:{COUNTED}))"
)
_SERVICES = """
110 119 120 122 114 12306 12315 12345 12348 12333 12320 12580 10086 10010 95588 95555 95533 95566 95599 95338 96110
"""
_SERVICE = re.compile(
    rf"(?<![\d.A-Za-z第约約共有])(?<![A-Za-z] )({either(_SERVICES)})"
    rf"(?![\dA-Za-z.%:/~～‰-])(?! ?(?:{COUNTED}|[多余年月日号號]))"
)
_NUMBERED = re.compile(
    after(
        """
        号码 编号 订单 订单号 账号 帐号 卡号 尾号 验证码 密码 邮编 邮政编码 学号 工号 群号 单号 取件码 代码 型号
        身份证 身份证号 准考证 准考证号 条形码 门牌号 房间号 房号 分机 座位号 流水号 校验码 口令 股票 端口 端口号
        车次 航班 会议室 教室 病房 包间 寝室 宿舍 号码是 号码为 号：
        """
    )
    + r"((?:[是为為：: ]|号是|號是)*)([A-Za-z]{0,3})(\d[\d -]+\d)(?!\d|\.\d)"
)
_QQ = re.compile(r"(?:(?<=QQ)|(?<=ID)|(?<=id)|(?<=qq))([号：: 是]{0,3})(\d{4,})(?!\d)")
_LONG = re.compile(
    rf"(?<![\d.+-])(?!\d+0000(?!\d))\d{{8,}}(?!\d|[.,]\d)(?! ?(?:{COUNTED}|[%℃]))"
    rf"|(?<![\d.])\d{{12,}}(?![.,]?\d)"
)
_PROVINCES = "京津沪冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼渝"
_PLATE = re.compile(rf"(?<=[{_PROVINCES}])([A-Z])[·• ]?([A-Z\d]{{5,6}})(?![A-Za-z\d])")
_ROOM = re.compile(
    rf"{after('单元 栋 幢 座')}\d{{3,4}}(?![\d.])|(?<![\d.])\d{{3,4}}"
    rf"(?={either('室 房 路公交 路车 路公车 路电车 次列车 次航班 号房 号病房 号包间 号车厢')}|路(?:[，。到坐]|$))"
)
_TRAIN = re.compile(
    rf"(?<![A-Za-z])([GDCZTKYSL]|[A-Z]{{2}}|[A-Z]\d|\d[A-Z])(\d{{3,4}})(?={either('次 航班 列车 高铁 动车 班机')})"
)

_BRANDS = {
    "7-11": "七十一", "12306": "幺二三零六", "500强": "五百强", "24/7": "二十四七", "50/50": "五十五十",
    "80/20": "八十二十",
}  # fmt: skip
_SPELLED_BRANDS = """
58同城 58到家 51job 51Job 3721 4399 17173 2345 1688 9527 985 211 360 996 618 520 1314 404 163 126 315 911 365
"""
_BRAND = re.compile(
    rf"(?<![\d.第约約共有A-Za-z+¥￥$€-])({either(_SPELLED_BRANDS + ' '.join(_BRANDS))})"
    rf"(?![\d%‰:~～℃]|[.-]\d|/\d(?!\d\d)|到\d|\+\d)(?! ?(?:{COUNTED}|[多余餘年月日号號路室]))"
)
_HOLIDAYS = either("假期 小长假 长假 劳动节 国庆 大促 购物节 购物狂欢节 晚会")
_EVENT = re.compile(rf"(?<![\d.·])(\d{{1,2}})(?:·|\.(?=\d+(?:{_HOLIDAYS})))(\d{{1,2}})(?![\d.·])")
_SERIES = after("歼 轰 运 直 东风 苏 米格 巨浪 长征 神舟 嫦娥 新冠 红旗 鹰击 波音 空客 北斗")
_SERIES_HYPHEN = re.compile(rf"{_SERIES}-(?=\d)")
_PLANE = re.compile(r"(?<=波音|空客)\d{3}(?:-\d{1,4})?")
_CODED = re.compile(r"(?<![A-Za-z\d])[A-Za-z\d]+(?:[-.][A-Za-z\d]*\d[A-Za-z\d]*)*")
_AFTER_NAME = re.compile(
    rf"(?<![\d.])([A-Za-z][A-Za-z+#]*)( ?|-)(\d+(?:\.\d+)?)(-\d{{4}})?"
    rf"(?![\dA-Za-z]|\.\d|[%℃°]| ?(?:[KMGTP]i?B|{COUNTED}|[月日]))"
)
_SIZE = re.compile(r"\d+(?:\.\d+)?(?:[KMGTP]i?B|[KMGT]?bps|[KMGBT])")
_PARTS = re.compile(r"\d+(?:\.\d+)?")


def addresses_in_words(text: str) -> str:
    """The text with the digits and marks of addresses in words: URLs, e-mail, IP."""
    text = _URL.sub(lambda m: _address(m[0]), text)
    return _PORT.sub(lambda m: _address(m[0]), _IP.sub(lambda m: _address(m[0]), text))


def _address(address: str) -> str:
    address = _SCHEME.sub("", address)
    named = address.rstrip("/.,:?!")  # marks at the end are those of the sentence
    words = named.translate(_ADDRESS_MARKS) + address[len(named) :].replace("/", "")
    return re.sub(r"\d", lambda m: spelled(m[0]), words)


def codes_in_words(text: str) -> str:
    """The text with every number that is a name in words."""
    for pattern in (_MOBILE, _FREE, _LANDLINE, _ABROAD):
        text = pattern.sub(_telephone, text)
    text = _EXTENSION.sub(lambda m: spelled(m[0], one="幺"), text)
    text = _BOOKS.sub(lambda m: "，".join(spelled(part) for part in re.split("[- ]", m[0])), text)
    text = _HOUSE.sub(_house, text)
    text = _PLATE.sub(lambda m: m[1] + _digits(m[2]), text)
    text = _CALLED.sub(lambda m: m[0][: m.start(1) - m.start()] + _digits(m[1], one="幺"), text)
    text = _SERVICE.sub(lambda m: spelled(m[1], one="幺"), text)
    text = _NUMBERED.sub(lambda m: f"{m[1]}{m[2]}{_digits(m[3])}", text)
    text = _QQ.sub(lambda m: f"{m[1]}{spelled(m[2])}", text)
    text = _LONG.sub(lambda m: spelled(m[0]), text)
    text = _ROOM.sub(lambda m: spelled(m[0]), text)
    text = _TRAIN.sub(lambda m: _digits(m[1]) + spelled(m[2], one="幺"), text)
    text = _BRAND.sub(_brand, text)
    text = _EVENT.sub(lambda m: spelled(m[1] + m[2]), text)
    text = _PLANE.sub(lambda m: "杠".join(map(spelled, m[0].split("-"))), _SERIES_HYPHEN.sub("", text))
    text = _VERSION.sub(lambda m: "点".join(decimal(part) for part in m[1].split(".")), text)
    text = _CODED.sub(lambda m: _code(m[0]), text)
    return _AFTER_NAME.sub(lambda m: f"{m[1]}{m[2].replace('-', '')}{_short_or_spelled(m[3])}{_edition(m[4])}", text)


def _telephone(match: Match) -> str:
    country = "加" if match[0][0] == "+" else ""
    return country + "".join(spelled(character, one="幺") for character in match[0] if character.isdigit())


def _house(match: Match) -> str:
    """Three numbers, of which single digits follow each other, as in the formation 4-3-3."""
    return ("" if len(match[0]) == 5 else "杠").join(_short_or_spelled(part) for part in match.groups())


def _brand(match: Match) -> str:
    return _BRANDS.get(match[1]) or re.sub(r"\d", lambda m: spelled(m[0]), match[1])


def _digits(code: str, *, one: str = "一") -> str:
    """The digits of a code one by one; its letters stay, its spaces are pauses, and its hyphens are left out."""
    return re.sub(r"\d+", lambda m: spelled(m[0], one=one), code.replace("-", "").replace(" ", "，"))


def _code(code: str) -> str:
    """A word of letters and digits, such as GPT-4, A380 or 1080p."""
    if _SIZE.fullmatch(code) or code.isalpha() or not re.search("[A-Za-z]", code):
        return code
    code = re.sub(r"(?<=[A-Za-z])-(?=\d)", "", code)
    return _PARTS.sub(lambda m: _short_or_spelled(m[0]), re.sub(r"(?<=\d)-(?=\d)", " ", code))


def _edition(year: str | None) -> str:
    return f"杠{spelled(year[1:])}" if year else ""


def _short_or_spelled(number: str) -> str:
    """Numbers of one or two digits by their value, and others by their digits."""
    return spelled(number) if number.isdigit() and len(number) > 2 else decimal(number)
