"""The sounds of English words that no dictionary has, guessed from their letters: good enough to find the words."""

from __future__ import annotations

import re

VOWELS = "aeiouy"
# The values are the phones of the graphemes. Longer graphemes come before shorter ones.
GRAPHEMES = {
    "tion": "SH AH N",
    "sion": "ZH AH N",
    "ture": "CH ER",
    "ough": "AO",
    "eigh": "EY",
    "augh": "AO",
    "igh": "AY",
    "tch": "CH",
    "dge": "JH",
    "sch": "SH",
    "eau": "OW",
    "air": "EH R",
    "ear": "IH R",
    "our": "AO R",
    "oor": "AO R",
    "ous": "AH S",
    "que": "K",
    "gue": "G",
    "ing": "IH NG",
    "ion": "Y AH N",
    "ch": "CH",
    "sh": "SH",
    "th": "TH",
    "ph": "F",
    "wh": "W",
    "ck": "K",
    "ng": "NG",
    "qu": "K W",
    "gh": "G",
    "kn": "N",
    "wr": "R",
    "gn": "N",
    "ps": "P S",
    "sc": "S K",
    "zh": "ZH",
    "kh": "K",
    "rh": "R",
    "ts": "T S",
    "ee": "IY",
    "ea": "IY",
    "oo": "UW",
    "ou": "AW",
    "ow": "OW",
    "oa": "OW",
    "oi": "OY",
    "oy": "OY",
    "ai": "EY",
    "ay": "EY",
    "au": "AO",
    "aw": "AO",
    "ei": "EY",
    "ey": "IY",
    "ie": "IY",
    "eu": "UW",
    "ew": "UW",
    "ue": "UW",
    "ar": "AA R",
    "er": "ER",
    "ir": "ER",
    "or": "AO R",
    "ur": "ER",
    "ae": "EY",
    "oe": "OW",
    "ui": "UW",
    "bb": "B",
    "cc": "K",
    "dd": "D",
    "ff": "F",
    "gg": "G",
    "ll": "L",
    "mm": "M",
    "nn": "N",
    "pp": "P",
    "rr": "R",
    "ss": "S",
    "tt": "T",
    "zz": "Z",
    "ce": "S EH",
    "ci": "S IH",
    "cy": "S IY",
    "ge": "JH EH",
    "gi": "JH IH",
    "a": "AE",
    "b": "B",
    "c": "K",
    "d": "D",
    "e": "EH",
    "f": "F",
    "g": "G",
    "h": "HH",
    "i": "IH",
    "j": "JH",
    "k": "K",
    "l": "L",
    "m": "M",
    "n": "N",
    "o": "AA",
    "p": "P",
    "q": "K",
    "r": "R",
    "s": "S",
    "t": "T",
    "u": "AH",
    "v": "V",
    "w": "W",
    "x": "K S",
    "y": "IH",
    "z": "Z",
}
LONGEST = max(map(len, GRAPHEMES))
FINAL = {"y": "IY", "o": "OW", "a": "AH", "i": "IY", "es": "Z", "ed": "D"}
LONG = {"a": "EY", "e": "IY", "i": "AY", "o": "OW", "u": "UW"}
_SILENT_E = re.compile(rf"(?<=[{VOWELS}])([^{VOWELS}wxr])e$")


def sounds(word: str) -> list[str]:
    """The phones of a word of the letters a to z."""
    phones: list[str] = []
    at = 0
    silent = _SILENT_E.search(word)
    while at < len(word):
        if silent and at == silent.start() - 1 and word[at] in LONG:
            phones.append(LONG[word[at]])
            at += 1
        elif silent and at == len(word) - 1:
            at += 1
        elif at and word[at:] in FINAL:
            phones += FINAL[word[at:]].split()
            at = len(word)
        else:
            length = next(n for n in range(LONGEST, 0, -1) if word[at : at + n] in GRAPHEMES)
            phones += GRAPHEMES[word[at : at + length]].split()
            at += length
    return phones
