"""Simplified and traditional script: which one a text has, and patterns for words in both."""

from __future__ import annotations

import re

_OUTPUT = str.maketrans(
    "两万亿点个负时钟摄华欧镑韩卢币纳转号减约级开",
    "兩萬億點個負時鐘攝華歐鎊韓盧幣納轉號減約級開",
)
_INPUT = _OUTPUT | str.maketrans(
    "条张块岁只盘台辆节门项种类样双对颗间处头组页国边侧层楼笔题厅卫连胜轮顿阵周礼杀届声顶员复线环战维进区队栋单"
    "电话热线码编账帐验证邮学准门牌会议教病宿舍库传真订请动车铁级间截开见面发布当凌晨后历赛财领击败获惜输赢术"
    "公顷亩吨里钱几余满来分贝伦侖报压视资时户贵强馆",
    "條張塊歲隻盤臺輛節門項種類樣雙對顆間處頭組頁國邊側層樓筆題廳衛連勝輪頓陣週禮殺屆聲頂員複線環戰維進區隊棟單"
    "電話熱線碼編賬帳驗證郵學準門牌會議教病宿舍庫傳真訂請動車鐵級間截開見面發布當凌晨後歷賽財領擊敗獲惜輸贏術"
    "公頃畝噸里錢幾餘滿來分貝倫侖報壓視資時戶貴強館",
)
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


def either(words: str) -> str:
    """A pattern for one of the words, which spaces separate, in simplified or traditional script, longest first."""
    return "|".join(re.escape(word) for word in _in_both(words))


def after(words: str) -> str:
    """A pattern for a place after one of the words, which spaces separate."""
    return f"(?:{'|'.join(f'(?<={re.escape(word)})' for word in _in_both(words))})"


def not_after(words: str) -> str:
    """A pattern for a place that none of the words, which spaces separate, precedes."""
    return "".join(f"(?<!{re.escape(word)})" for word in _in_both(words))


def is_traditional(text: str) -> bool:
    """True if more characters are of traditional script alone than of simplified script alone."""
    return sum(_encodes(character, "big5") - _encodes(character, "gb2312") for character in _HAN.findall(text)) > 0


def in_traditional_script(text: str) -> str:
    """The text with the words that reading adds in traditional script."""
    return text.translate(_OUTPUT)


def _in_both(words: str) -> list[str]:
    simplified = words.split()
    both = {*simplified, *(word.translate(_INPUT) for word in simplified)}
    return sorted(both, key=lambda word: (-len(word), word))


def _encodes(character: str, charset: str) -> bool:
    try:
        character.encode(charset)
    except UnicodeEncodeError:
        return False
    return True
