"""Sentences in the ten languages of Qwen3-TTS, and a vocabulary of the released size."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from voxcpm_grpc.models.qwen3_tts.tokenizer import ArrivingText, TextTokenizer

PHRASES = {
    "en": (
        "the old harbour",
        "we'll see",
        "I'M sure",
        "don't",
        "iPhone",
        "HelloWorld",
        "naïve café",
        "2,718 miles",
        "co-op",
    ),
    "zh": (
        "今天天气很好",
        "我们去公园散步",
        "你好，世界",
        "人工智能",
        "一二三",
        "语音合成。",
        "“真的吗？”",
        "北京2024年",
    ),
    "de": ("die Straße", "schöne Grüße", "Äpfel und Öl", "Donaudampfschifffahrt", "z. B.", "fünf Uhr"),
    "es": ("¿Qué tal?", "mañana", "el niño pequeño", "¡Olé!", "corazón", "pingüino"),
    "ja": ("こんにちは", "東京タワー", "カタカナとひらがな", "がぎぐげご", "です。", "日本語"),
    "fr": ("l'été", "où êtes-vous", "garçon", "cœur", "déjà vu", "aujourd'hui"),
    "ko": ("안녕하세요", "한국어 문장", "가각갂", "서울", "감사합니다.", "읽다"),
    "ru": ("Привет", "ёлка и йод", "Москва", "хорошо!", "объезд", "сегодня"),
    "it": ("perché", "l'acqua", "città", "più tardi", "gnocchi", "è vero"),
    "pt": ("não", "coração", "avó e avô", "São Paulo", "português", "à tarde"),
    "marks": (
        "e\u0301a\u0308\u0323",
        "\u1112\u1161\u11ab",
        "สวัสดี",
        "नमस्ते",
        "مرحبا",
        "x\u0338=",
        "\u1100\u1161",
        "ﬁ",
        "Å",
    ),
    "signs": (
        "...",
        "!!!",
        "--",
        "\n\n",
        " \n ",
        "\t",
        "   ",
        "'s",
        "'r",
        "😀👩‍👩‍👧",
        "🇩🇪",
        "<|im_end|>",
        "__init__",
        "\u3000",
        "/;",
    ),
}
BETWEEN = (" ", " ", " ", "", "  ", ", ", "\n")


def sentences(count: int, seed: int = 1) -> list[str]:
    """Sentences of a language each, with signs, marks and words of others."""
    rng, made = random.Random(seed), list[str]()
    for number in range(count):
        own = PHRASES[[*PHRASES][number % len(PHRASES)]]
        parts = [
            rng.choice(own if rng.random() < 0.7 else PHRASES[rng.choice([*PHRASES])]) for _ in range(rng.randint(1, 9))
        ]
        made.append("".join(part + rng.choice(BETWEEN) for part in parts))
    return made


def in_parts(tokenizer: TextTokenizer, text: str, cuts: Sequence[int]) -> list[int]:
    """The ids of a text that arrives in parts, of which none may ever change."""
    ends, arriving = [0, *sorted(cuts), len(text)], ArrivingText()
    for number, (start, end) in enumerate(pairwise(ends)):
        grown = tokenizer.extend(arriving, text[start:end], last=number == len(ends) - 2)
        assert grown.ids[: len(arriving.ids)] == arriving.ids, (text, cuts)
        arriving = grown
    return [*arriving.ids]


def write_released_vocabulary(folder: Path) -> None:
    """Write vocab.json and merges.txt of the tokens of a PyPI package, which are those of the released models."""
    files = distribution("dashscope").files or ()
    path = next(file for file in files if file.name == "qwen.tiktoken").locate()
    lines = Path(str(path)).read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    symbols = [chr(byte) for byte in range(256)]
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    for number, byte in enumerate(others):
        symbols[byte] = chr(256 + number)
    spelled = {token: "".join(symbols[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            merges.append(" ".join(spelled[part] for part in _halves(token, rank, ranks)))
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(("#version: 0.2", *merges)) + "\n", encoding="utf-8")


def _halves(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that the merge of this rank joins."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        least = min(pairs)
        assert least < rank
        place = pairs.index(least)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def reference(folder: Path) -> Tokenizer:
    """The tokenizer of Qwen2 as its library builds it, with the regular expression of the released models."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made
