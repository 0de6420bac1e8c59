"""Numbers before the words that they count: 两 for a 2 that says how many, and 二 for one that names one of several."""

from __future__ import annotations

import re

from voxcpm_server.text.chinese.numbers import decimal, spelled
from voxcpm_server.text.chinese.script import either

COUNTED = either(
    """
    个 位 名 只 条 张 本 件 把 杯 瓶 碗 盒 包 袋 箱 桶 盘 台 部 辆 架 艘 列 节 门 项 种 类 样 套 双 对 副 串 束
    朵 棵 株 根 支 枝 枚 颗 粒 滴 片 块 段 句 首 篇 封 幅 面 座 栋楼 幢楼 间 家 所 处 口 头 匹 群 批 组 行 页 人
    者 国 地 方 边 侧 旁 端 半 成 代人 层楼 股 份 笔 票 题 格 字 桌 席 室 厅 卫 床被 球 杆 拍 款 季 届 集 章 步
    声 下 眼 圈 倍 重 连胜 连败 连冠 胜 负 平 员 道 扇 顶 尊 朝元老
    次 回 遍 趟 场 局 轮 顿 阵 年 周 星期 礼拜 天 晚 夜 小时 分钟 分 秒 点 刻钟 岁 世纪 日游 日之内 周年
    元 块 角 毛 美元 欧元 英镑 日元 港元 港币 澳元 加元 韩元 美金 卢布 人民币
    里 斤 公斤 克 千克 毫克 微克 吨 升 毫升 公升 度 摄氏度 华氏度 米 公里 千米 厘米 毫米 微米 纳米 公顷 亩 平方
    立方 英里 英尺 英寸 海里 寸 尺 丈 磅 加仑 盎司 瓦 千瓦 兆 伏 毫安 赫兹 千赫 兆赫 吉赫 卡 千卡 大卡 焦 千焦
    帕 千帕 分贝 像素 光年 转 千 万 亿 百万 千万
    """
)
_NAMED = either(
    """
    年级 月 号 日 楼 等 级 期 路 班 栋 幢 单元 环 线 手 战 维 进制 季度 版 区 队 胎 孩 哥 姐 叔 舅 比 分之 次方
    甲 层 的 流 对2 次元 人转 把手 氧化 极管 次函数 次方程 次曲线
    分法 元论 元一次 元方程
    """
)
_BETWEEN = either("多 几 来 余 大 小 整 满")
_COUNTED_AFTER = re.compile(rf"(?:{_BETWEEN})?(?:{COUNTED})| ?[A-Zμ][A-Za-z]")
_NAMED_AFTER = re.compile(rf"(?:{_NAMED})(?!{either('游 楼 之内')})")
_RANGE_AFTER = re.compile(r"(?:到|至|、|比)负?\d+(?:\.\d+)?")
_MINUTE_OF_DAY = re.compile(r"(?:[点點]|(?<!小)[时時])(?:分|\d{1,2}分秒)$")
_CENTIMETERS = re.compile(rf"(?<=\d米)\d\d(?![\d.]|{COUNTED})")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CONTEXT = 24  # characters after a number that are read; the longest word has 4, and a range before it some more


def numbers_in_words(text: str) -> str:
    """The text with every number in words."""
    text = _CENTIMETERS.sub(lambda m: spelled(m[0]), text)
    return _NUMBER.sub(
        lambda m: _in_context(m[0], text[max(0, m.start() - 6) : m.start()], text[m.end() : m.end() + _CONTEXT]), text
    )


def _in_context(number: str, before: str, after: str) -> str:
    if number == "2":
        return "两" if _counts(before, after) else "二"
    if number == "100" and before.endswith("分之"):
        return "百"
    return decimal(number, counts=not before.endswith("第"))


def _counts(before: str, after: str) -> bool:
    """True if a 2 says how many, and does not name one of several."""
    if before.endswith(("第", "之")) or _MINUTE_OF_DAY.search(before + after[:1]):
        return False
    if second := _RANGE_AFTER.match(after):
        after = after[second.end() :]
    return not _NAMED_AFTER.match(after) and _COUNTED_AFTER.match(after) is not None
