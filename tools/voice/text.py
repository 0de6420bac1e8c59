"""Write the text for the teacher: OUT/sentences.txt for training and OUT/held_out.txt for the evaluation.

    python -m tools.voice.text OUT
    python -m tools.voice.text OUT --seed 2 --without SENTENCES

The second command writes none of the sentences of a file, which an earlier training has learned.

Needs Debian's packages wordnet-base and scowl. A seed always gives the same text. Sentences are plain and mostly of
common words, with numbers as words or as figures up to 99. A share of them is random words, which cover the spelling.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tools.voice import grammar

WORDNET = Path("/usr/share/wordnet")
SCOWL = Path("/usr/share/dict/scowl")
HELD_OUT = Path(__file__).with_name("held_out.txt")

COMMON, KNOWN = 20, 35  # sizes of SCOWL: about 12,000 and 48,000 words
MIN_WORDS, MAX_WORDS = 3, 20
PLAIN = re.compile(r"[A-Za-z][A-Za-z' ,;-]*[A-Za-z][.?!]?")
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
QUESTION = re.compile(r"(who|what|where|when|why|how|which|whose|is|are|was|do|does|did|can|could|will|would|may)\b")
NEAR = 5  # words in a row that a training sentence may not share with a held-out one
LONG_WORDS = 40  # most words of a paragraph
SHARES = {
    "examples": 0.12, "rarer": 0.10, "definitions": 0.32, "grammar": 0.29, "salad": 0.08, "short": 0.04, "long": 0.05
}  # fmt: skip


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return WORD.findall(text.lower())


def word_list(size: int) -> set[str]:
    """The words of SCOWL up to a size in lower case, with American spelling."""
    found: set[str] = set()
    for kind in ("english-words", "american-words", "english-contractions", "english-upper"):
        for path in SCOWL.glob(f"{kind}.*"):
            if int(path.suffix[1:]) <= size:
                found.update(path.read_text(encoding="latin-1").lower().split())
    return found


def sentence(text: str) -> str:
    """A text with a capital at its start, and with a full stop or question mark at its end."""
    if text[-1] not in ".?!":
        text += "?" if QUESTION.match(text.lower()) and "," not in text else "."
    return text[0].upper() + text[1:]


def entries() -> Iterator[str]:
    """The lines of WordNet."""
    for kind in ("noun", "verb", "adj", "adv"):
        with (WORDNET / f"data.{kind}").open(encoding="utf-8") as lines:
            yield from lines


def examples() -> Iterator[str]:
    """The example sentences of WordNet, unchanged."""
    for line in entries():
        yield from re.findall(r'"([^"]+)"', line.partition(" | ")[2])


def definitions() -> Iterator[str]:
    """The definitions of WordNet, each part on its own, without its examples and remarks in parentheses."""
    for line in entries():
        gloss = re.sub(r"\([^)]*\)", "", line.partition(" | ")[2].partition('"')[0])
        yield from (" ".join(part.split()) for part in gloss.split(";"))


def plain(texts: Iterable[str], vocabulary: set[str]) -> list[str]:
    """The texts with plain characters, MIN_WORDS to MAX_WORDS words, and words of the vocabulary only."""
    return [
        sentence(text)
        for text in dict.fromkeys(texts)
        if PLAIN.fullmatch(text) and "--" not in text
        if MIN_WORDS <= len(words(text)) <= MAX_WORDS and vocabulary.issuperset(words(text))
    ]


def salad(vocabulary: list[str], draw: random.Random) -> str:
    """A few random words, sometimes with a comma. Every word is about equally likely, unlike in real text."""
    chosen = draw.sample(vocabulary, draw.randint(2, 9))
    if len(chosen) > 3 and draw.random() < 0.4:
        cut = draw.randrange(1, len(chosen) - 1)
        chosen[cut] += ","
    return sentence(" ".join(chosen))


def short(vocabulary: list[str], rules: grammar.Grammar, draw: random.Random) -> str:
    """One or two words, or two short sentences in a row."""
    if draw.random() < 0.5:
        return sentence(" ".join(draw.sample(vocabulary, draw.randint(1, 2)))).replace(".", draw.choice(".!?"))
    pair = [rules.sentence(draw) for _ in range(2)]
    return " ".join(pair) if len(words(" ".join(pair))) <= MAX_WORDS else min(pair, key=len)


def long(sentences: Sequence[str], rules: grammar.Grammar, draw: random.Random) -> str:
    """Sentences in a row, of the grammar or of others, with more than MAX_WORDS words and at most LONG_WORDS."""
    while True:
        text = ""
        while len(words(text)) <= MAX_WORDS:
            text = f"{text} {draw.choice(sentences) if draw.random() < 0.5 else rules.sentence(draw)}".strip()
        if len(words(text)) <= LONG_WORDS:
            return text


def too_near(held_out: Iterable[str]) -> Callable[[str], bool]:
    """A check that is True for a text with NEAR words in a row, or most of its words, of a held-out sentence."""
    runs: set[tuple[str, ...]] = set()
    bags = [frozenset(words(text)) for text in held_out]
    for text in held_out:
        runs.update(_runs(words(text)))

    def check(text: str) -> bool:
        bag = frozenset(words(text))
        return not runs.isdisjoint(_runs(words(text))) or any(len(bag & b) > 0.6 * len(bag | b) for b in bags)

    return check


def _runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + NEAR]) for i in range(len(words) - NEAR + 1))


def compose(count: int, seed: int, held_out: list[str], without: Iterable[str] = ()) -> list[str]:
    """`count` different training sentences in random order. The grammar makes those for which there are no examples.

    without: sentences that are not among them
    """
    draw = random.Random(seed)
    rules = grammar.load()
    own = {word for _ in range(30_000) for word in words(rules.sentence(draw))}
    common, known = word_list(COMMON) | own, word_list(KNOWN) | own
    vocabulary = sorted(word for word in common if re.fullmatch(r"[a-z]{2,}|a|i", word))
    every = list(examples())
    usual = plain(every, common)
    rarer = sorted(set(plain(every, known)).difference(usual))
    near, used = too_near(held_out), frozenset(without)
    chosen: dict[str, None] = {}

    def take(source: Iterable[str], until: int) -> None:
        for text in source:
            if len(chosen) >= until:
                return
            if text not in used and not near(text):
                chosen[text] = None

    def endless(make: Callable[[], str]) -> Iterator[str]:
        while True:
            yield make()

    take(draw.sample(usual, len(usual)), round(count * SHARES["examples"]))
    take(draw.sample(rarer, len(rarer)), round(count * (SHARES["examples"] + SHARES["rarer"])))
    defined = sorted({one for one in plain(definitions(), known) if one[-1] != "?"}.difference(usual, rarer))
    take(draw.sample(defined, len(defined)), len(chosen) + round(count * SHARES["definitions"]))
    take(endless(lambda: salad(vocabulary, draw)), len(chosen) + round(count * SHARES["salad"]))
    take(endless(lambda: short(vocabulary, rules, draw)), len(chosen) + round(count * SHARES["short"]))
    take(endless(lambda: long(usual, rules, draw)), len(chosen) + round(count * SHARES["long"]))
    take(endless(lambda: rules.sentence(draw)), count)
    return draw.sample(list(chosen), len(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--sentences", type=int, default=30_000, help="sentences for training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", type=Path, help="file of sentences to leave out, one a line")
    args = parser.parse_args()
    held_out = HELD_OUT.read_text(encoding="utf-8").splitlines()
    without = args.without.read_text(encoding="utf-8").splitlines() if args.without else ()
    training = compose(args.sentences, args.seed, held_out, without)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, texts in (("sentences.txt", training), ("held_out.txt", held_out)):
        (args.out / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    count = Counter(word for text in training for word in words(text))
    rare = sorted(word for text in held_out for word in words(text) if count[word] < 3)
    print(f"{len(training)} sentences of {count.total()} words, {len(count)} different ones,")
    print(f"{sum(n > 2 for n in count.values())} of them three times or more; rare held-out words: {rare}")


if __name__ == "__main__":
    main()
