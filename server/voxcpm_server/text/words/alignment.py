"""The words of a text beside the words of the same text as it is spoken."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from voxcpm_grpc.text.characters import readable
from voxcpm_server.text.words.spoken_words import word_ends


def aligned(source: str, spoken: str) -> Iterator[tuple[range, range]]:
    """The words of `source` and those of `spoken` that are spoken for them, as numbers of words from 0, in order.

    Words that both texts have are alone in their pair. Between them lie words that were replaced by others, together in
    one pair; either of its ranges may be empty.
    """
    ours, theirs = _keys(source), _keys(spoken)
    waiting = [(0, len(ours), 0, len(theirs))]  # the next part of the texts is the last entry
    while waiting:
        first, last, low, high = waiting.pop()
        while first < last and low < high and ours[first] == theirs[low]:
            yield range(first, first + 1), range(low, low + 1)
            first, low = first + 1, low + 1
        same = 0  # words at the end that are equal
        while same < min(last - first, high - low) and ours[last - 1 - same] == theirs[high - 1 - same]:
            same += 1
        if same:
            waiting.append((last - same, last, high - same, high))
            last, high = last - same, high - same
        anchors = [(first + a, low + b) for a, b in _anchors(ours[first:last], theirs[low:high])]
        if anchors:
            parts = pairwise([(first, low), *anchors, (last, high)])
            waiting += reversed([(a, next_a, b, next_b) for (a, b), (next_a, next_b) in parts])
        elif first < last or low < high:
            yield range(first, last), range(low, high)


def _keys(text: str) -> list[str]:
    """The words of a text, alike for words that differ only in case, marks around them or invisible characters."""
    words = (readable(text[start:end]).casefold() for start, end in pairwise((0, *word_ends(text))))
    return [
        "".join(char for char in word if char.isalnum() or unicodedata.category(char)[0] == "M") or word.strip()
        for word in words
    ]


def _anchors(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """The places of words that each sequence has once, the most of them that are in the same order in both."""
    counts = Counter(ours), Counter(theirs)
    places = {word: at for at, word in enumerate(theirs)}
    pairs = [(at, places[word]) for at, word in enumerate(ours) if counts[0][word] == counts[1][word] == 1]
    lowest: list[int] = []  # each length has the lowest last place of its runs
    runs: list[tuple[int, int]] = []  # each pair has the length of the longest run that it ends, and its place
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(lowest, place)
        lowest[length : length + 1] = [place]
        runs.append((length, number))
    found: list[tuple[int, int]] = []
    for length, number in reversed(runs):
        if length == len(lowest) - 1 - len(found) and (not found or pairs[number][1] < found[-1][1]):
            found.append(pairs[number])
    return found[::-1]
