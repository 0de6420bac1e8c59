"""Byte-pair encoding of Qwen2, of whole texts and of texts that are still arriving.

A pre-token is a part of a text, such as a word, whose border no token crosses. Symbols are the characters that stand
for bytes in the files of the tokenizer.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from tokenizers import Regex, models, normalizers, pre_tokenizers

from voxcpm_grpc.errors import StartupError

# The released tokenizers have this pattern. The official package replaces it by that of Mistral's models for some
# checkpoints in a folder, and not for the same ones of a repository. Nothing here does.
PRE_TOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WHITE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""The characters that \\s matches in PRE_TOKEN."""
CACHED_PIECES, CACHED_SYMBOLS = 1 << 16, 64  # so many pre-tokens keep their ids, and none that is longer


@dataclass(frozen=True, slots=True)
class ArrivingText:
    """A text of which more may follow.

    settled: ids of whole pre-tokens
    free: ids behind them, of a pre-token that may grow, which no further text can change
    tail: the text behind the settled ids
    """

    settled: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    tail: str = ""

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids that no further text can change."""
        return self.settled + self.free


class TextTokenizer:
    """Token ids of texts. The text of special tokens, such as <|im_end|>, is text as any other."""

    def __init__(self, directory: Path) -> None:
        """Read vocab.json and merges.txt. Raises StartupError."""
        try:
            vocabulary, merges = models.BPE.read_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
            self._bpe = models.BPE(vocab=vocabulary, merges=merges)
        except Exception as error:  # the library raises plain exceptions for missing and for broken files
            raise StartupError(
                f"vocab.json and merges.txt in {directory} cannot be read ({error}); download the checkpoint again"
            ) from error
        symbols = _symbols()
        if lacking := [symbol for symbol in symbols if symbol not in vocabulary]:
            raise StartupError(
                f"vocab.json in {directory} lacks {len(lacking)} of 256 bytes; download the checkpoint again"
            )
        self.top = max(vocabulary.values())
        self._normalize = normalizers.NFC().normalize_str
        self._split = pre_tokenizers.Split(Regex(PRE_TOKEN), "isolated").pre_tokenize_str
        self._spelling = str.maketrans({chr(byte): symbol for byte, symbol in enumerate(symbols)})
        self._byte = {symbol: byte for byte, symbol in enumerate(symbols)}
        self._token = {id: token for token, id in vocabulary.items()}
        self._sorted = sorted(vocabulary)
        self._longest = max(map(len, vocabulary))
        self._cached: dict[str, tuple[int, ...]] = {}

    def __call__(self, text: str) -> list[int]:
        """The ids of a text in normal form, without its outer white space."""
        return self._pieces(self._normalize(text).strip(WHITE))

    def single(self, piece: str) -> int | None:
        """The id of a pre-token that is one token."""
        ids = self._encode(self._spelled(piece))
        return ids[0] if len(ids) == 1 else None

    def text_of(self, ids: Sequence[int], start: int) -> str:
        """The text of the ids from `start` on. A character of which they have the end is whole."""
        before, behind = self._bytes(ids[:start]), self._bytes(ids[start:])
        while behind and behind[0] & 0xC0 == 0x80 and before:
            before, behind = before[:-1], before[-1:] + behind
        return behind.decode("utf-8", "replace")

    def extend(self, text: ArrivingText, more: str, *, last: bool) -> ArrivingText:
        """A text with more of it. After the `last` part, its ids are those of the whole text."""
        tail = self._normalize(text.tail + more)
        if not text.settled:
            tail = tail.lstrip(WHITE)
        if last:
            return ArrivingText(settled=(*text.settled, *self._pieces(tail.rstrip(WHITE))))
        fixed = tail[: _fixed(tail)]
        dense = len(fixed.rstrip(WHITE))
        # White space at the end may join what follows, and line breaks before it too.
        whole = list(takewhile(lambda piece: piece[1][1] <= dense and piece[1][1] < len(fixed), self._split(fixed)))
        done = whole[-1][1][1] if whole else 0
        settled = *text.settled, *(id for piece, _ in whole for id in self._encode(self._spelled(piece)))
        return ArrivingText(settled=settled, free=self._free(self._spelled(fixed[done:dense])), tail=tail[done:])

    def unread(self, text: ArrivingText, read: int) -> str:
        """The text behind the first `read` ids."""
        ids = *text.settled, *self._pieces(text.tail.rstrip(WHITE))
        return self.text_of(ids, read) + text.tail[len(text.tail.rstrip(WHITE)) :]

    def _free(self, symbols: str) -> tuple[int, ...]:
        """The ids at the start of a pre-token that may grow which stay as they are however it grows.

        The ids of a longer pre-token, up to one that ends behind the symbols there are now, are those of the symbols
        before that one: without its last token, an encoding is that of the shorter text. That token begins at the end,
        or where one of the vocabulary begins with all symbols from there on.
        """
        size = len(symbols)
        starts = (place for place in range(max(0, size - self._longest + 1), size) if self._may_begin(symbols[place:]))
        return _common(self._encode(symbols[:place]) for place in (size, *starts))

    def _may_begin(self, symbols: str) -> bool:
        """True if a token is longer than these symbols and begins with them."""
        behind = bisect_right(self._sorted, symbols)
        return behind < len(self._sorted) and self._sorted[behind].startswith(symbols)

    def _pieces(self, text: str) -> list[int]:
        return [id for piece, _ in self._split(text) for id in self._encode(self._spelled(piece))]

    def _spelled(self, piece: str) -> str:
        return piece.encode("utf-8", "replace").decode("latin-1").translate(self._spelling)

    def _encode(self, symbols: str) -> tuple[int, ...]:
        if (known := self._cached.get(symbols)) is not None:
            return known
        ids = tuple(token.id for token in self._bpe.tokenize(symbols)) if symbols else ()
        if len(symbols) <= CACHED_SYMBOLS and len(self._cached) < CACHED_PIECES:
            self._cached[symbols] = ids
        return ids

    def _bytes(self, ids: Iterable[int]) -> bytes:
        return bytes(self._byte[symbol] for id in ids for symbol in self._token[id])


def _common(encodings: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The common start of all encodings."""
    first, *others = encodings
    for other in others:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False))
        first = tuple(id for id, _ in same)
    return first


def _fixed(text: str) -> int:
    """The length of the part of a text in normal form that stays as it is, whatever follows."""
    start = len(text) - 1
    while start >= 0 and not _is_starter(text[start]):
        start -= 1
    if start >= 0 and _composes(text[start]):
        return start
    return start + 1  # marks behind it may still change places


def _is_starter(letter: str) -> bool:
    return not unicodedata.combining(letter) and unicodedata.category(letter) != "Cn"


def _composes(letter: str) -> bool:
    """True if this letter may become another one with what follows.

    So may a composed letter whose own marks leave it, because the order of marks puts the new one before them.
    """
    code = ord(letter)
    if 0x1100 <= code <= 0x1112 or 0xAC00 <= code <= 0xD7A3:  # these are Hangul
        return code < 0xAC00 or (code - 0xAC00) % 28 == 0
    return unicodedata.normalize("NFD", letter)[0] in _first_parts()


@cache
def _first_parts() -> frozenset[str]:
    """The letters that normal form composes with one behind them."""
    pairs = (unicodedata.decomposition(chr(code)).split() for code in range(0x30000))
    return frozenset(chr(int(pair[0], 16)) for pair in pairs if len(pair) == 2 and not pair[0].startswith("<"))


def _symbols() -> list[str]:
    """The symbol of each byte: itself if it is printable, and otherwise one of those from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
