"""Chinese numbers in words, and 两 or 二 by what a number counts."""

from __future__ import annotations

import re

NAMES = "零一二三四五六七八九"
_LARGE_UNITS = ((10**8, "亿"), (10**4, "万"), (1000, "千"), (100, "百"), (10, "十"))
_LONGEST = 16  # digits of a number that has a name

TRADITIONAL = str.maketrans(
    "两万亿点个负时钟摄华欧镑韩卢币纳转号减约开级岁块张条",
    "兩萬億點個負時鐘攝華歐鎊韓盧幣納轉號減約開級歲塊張條",
)


def either(words: str) -> str:
    """A pattern for one of the words, which spaces separate, in simplified or traditional script, longest first."""
    both = {word for word in words.split()} | {word.translate(TRADITIONAL) for word in words.split()}
    return "|".join(sorted(both, key=lambda word: (-len(word), word)))


def after(words: str) -> str:
    """A pattern for a place after one of the words, which spaces separate."""
    return f"(?:{'|'.join(f'(?<={word})' for word in either(words).split('|'))})"


def not_after(words: str) -> str:
    """A pattern for a place that none of the words, which spaces separate, precedes."""
    return "".join(f"(?<!{word})" for word in either(words).split("|"))


COUNTED = either(
    # things, people and animals
    "个 個 位 名 只 隻 条 條 张 張 本 件 把 杯 瓶 碗 盒 包 袋 箱 桶 盘 盤 台 臺 部 辆 輛 架 艘 列 节课 門 门 项 項 种 種 类 類 样 樣 "
    "套 双 雙 对 對 副 串 束 朵 棵 株 根 支 枝 枚 颗 顆 粒 滴 片 块 段 句 首 篇 封 幅 面 座 栋楼 幢楼 间 間 家 所 处 處 口 头 頭 匹 "
    "群 批 组 組 行 页 頁 人 者 国 國 地 方 边 邊 侧 側 旁 端 半 成 代人 层楼 層樓 股 份 笔 筆 票 题 題 格 字 桌 席 室 厅 廳 卫 "
    "床被 球 杆 拍 碟 碼 码 款 季 届 屆 集 章 节 節 步 声 聲 下 眼 圈 倍 重 连胜 连败 连冠 連勝 胜 勝 负 平 员 道 扇 顶 頂 尊 台 朝元老 "
    # times that something happens, and time
    "次 回 遍 趟 场 場 局 轮 輪 顿 頓 阵 陣 年 周 週 星期 礼拜 禮拜 天 晚 夜 小时 小時 分钟 分鐘 分 秒 点 刻钟 刻鐘 岁 世纪 世紀 "
    "日游 日遊 日之内 周年 週年 "
    # money and measures
    "元 块 块钱 塊錢 角 毛 美元 欧元 英镑 日元 港元 港币 澳元 加元 韩元 美金 卢布 人民币 里 斤 公斤 克 千克 毫克 微克 吨 噸 升 毫升 "
    "公升 度 摄氏度 华氏度 米 公里 千米 厘米 毫米 微米 纳米 公顷 公頃 亩 畝 平 平方 平方米 平方公里 平方千米 平方厘米 立方 立方米 "
    "英里 英尺 英寸 海里 寸 尺 丈 磅 加仑 加侖 盎司 瓦 千瓦 兆 伏 毫安 赫兹 千赫 兆赫 吉赫 卡 千卡 大卡 焦 千焦 帕 千帕 分贝 分貝 "
    "像素 光年 转 千 万 亿 百万 千万"
)
_NAMED = either(  # a number before these names one of several, so it is 二
    "年级 年級 月 号 日 楼 樓 等奖 等獎 级 期 路 班 栋 棟 幢 单元 單元 环 環 线 線 手 战 戰 维 維 进制 進制 号线 季度 版 区 區 队 "
    "隊 胎 孩 哥 姐 叔 舅 比 分之 次方 甲 层 層 等 线 的 流 对2 對2"
)
_AFTER_TWO = re.compile(rf"(?:多|几|幾|来|來|余|餘|大|小|整|满|滿)?(?:{COUNTED})|[A-Zμ][A-Za-z]|[KMGT]B")
_NAMED_AFTER = re.compile(rf"(?:{_NAMED})(?!游|遊|楼|樓|之内)")
_RANGE_AFTER = re.compile(r"(?:到|至|、|比)负?\d+(?:\.\d+)?")
_OF_DAY = re.compile(r"(?:[点點]|(?<!小)[时時])(?:分|\d{1,2}分秒)$")
_CENTIMETERS = re.compile(rf"(?<=\d米)\d\d(?![\d.]|(?:{COUNTED}))")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def cardinal(digits: str, *, counts: bool = True) -> str:
    """A whole number in words. With `counts`, 两 precedes its first 百, 千, 万 or 亿."""
    if len(digits) > _LONGEST:
        return spelled(digits)
    words = _named(int(digits))
    if words.startswith("一十"):
        return words[1:]
    return re.sub("^二(?=[百千万亿])" if counts else "^二(?=[千万亿])", "两", words)


def spelled(digits: str, *, one: str = "一") -> str:
    """Each digit by its own name. Telephone numbers and the like take 幺 for 1."""
    return "".join(one if digit == "1" else NAMES[int(digit)] for digit in digits)


def decimal(number: str, *, counts: bool = True) -> str:
    """A number with or without a fraction in words; one that begins with a needless zero by its digits."""
    whole, point, fraction = number.partition(".")
    if not point and len(whole) > 1 and whole[0] == "0":
        return spelled(whole)
    return cardinal(whole, counts=counts) + (f"点{spelled(fraction)}" if point else "")


def numbers_in_words(text: str) -> str:
    """The text with every number in words."""
    text = _CENTIMETERS.sub(lambda m: spelled(m[0]), text)
    return _NUMBER.sub(
        lambda m: _in_context(m[0], text[max(0, m.start() - 6) : m.start()], text[m.end() : m.end() + 24]), text
    )


def _in_context(number: str, before: str, after: str) -> str:
    named = before.endswith("第")
    if number == "100" and before.endswith("分之"):
        return "百"
    if number != "2":
        return decimal(number, counts=not named)
    return "两" if _counts(before, after) else "二"


def _counts(before: str, after: str) -> bool:
    """True if a 2 says how many, and does not name one of several."""
    if before.endswith(("第", "之")) or _OF_DAY.search(before + after[:1]):
        return False
    if second := _RANGE_AFTER.match(after):
        after = after[second.end() :]
    return not _NAMED_AFTER.match(after) and _AFTER_TWO.match(after) is not None


def _named(number: int) -> str:
    for size, unit in _LARGE_UNITS:
        if number >= size:
            count, rest = divmod(number, size)
            gap = "零" if 0 < rest < size // 10 else ""
            return f"{_named(count)}{unit}{gap}{_named(rest) if rest else ''}"
    return NAMES[number]
