"""Write what the teacher is to speak: OUT/sentences.txt for training and OUT/held_out.txt for the evaluation.

    python -m tools.voice.text OUT

Needs Debian's packages wordnet-base and scowl. A seed gives the same text. Sentences are what people type: plain,
mostly of common words, numbers as words or as figures up to 99, and a share of word salad that covers the spelling.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
SHARES = {"examples": 0.46, "rarer": 0.13, "grammar": 0.24, "salad": 0.13, "short": 0.04}


def words(text: str) -> list[str]:
    """Lower-case words, as they are counted everywhere in this recipe."""
    return WORD.findall(text.lower())


def word_list(size: int) -> set[str]:
    """Lower-case words of SCOWL up to that size, American spelling."""
    found: set[str] = set()
    for kind in ("english-words", "american-words", "english-contractions", "english-upper"):
        for path in SCOWL.glob(f"{kind}.*"):
            if int(path.suffix[1:]) <= size:
                found.update(path.read_text(encoding="latin-1").lower().split())
    return found


def sentence(text: str) -> str:
    """With a capital, and a full stop or question mark where there is none."""
    if text[-1] not in ".?!":
        text += "?" if QUESTION.match(text.lower()) and "," not in text else "."
    return text[0].upper() + text[1:]


def examples() -> Iterator[str]:
    """The example sentences of WordNet, as they are."""
    for kind in ("noun", "verb", "adj", "adv"):
        with (WORDNET / f"data.{kind}").open(encoding="utf-8") as lines:
            for line in lines:
                yield from re.findall(r'"([^"]+)"', line.partition(" | ")[2])


def plain(texts: Iterable[str], vocabulary: set[str]) -> list[str]:
    """Those of plain characters, of a fair length, and of words of the vocabulary alone."""
    return [
        sentence(text)
        for text in dict.fromkeys(texts)
        if PLAIN.fullmatch(text) and "--" not in text
        if MIN_WORDS <= len(words(text)) <= MAX_WORDS and vocabulary.issuperset(words(text))
    ]


def salad(vocabulary: list[str], draw: random.Random) -> str:
    """A few random words, sometimes with a comma: every word is about equally likely, which no real text offers."""
    chosen = draw.sample(vocabulary, draw.randint(2, 9))
    if len(chosen) > 3 and draw.random() < 0.4:
        cut = draw.randrange(1, len(chosen) - 1)
        chosen[cut] += ","
    return sentence(" ".join(chosen))


def short(vocabulary: list[str], speak: grammar.Grammar, draw: random.Random) -> str:
    """One or two words, or two short sentences in a row."""
    if draw.random() < 0.5:
        return sentence(" ".join(draw.sample(vocabulary, draw.randint(1, 2)))).replace(".", draw.choice(".!?"))
    pair = [speak.sentence(draw) for _ in range(2)]
    return " ".join(pair) if len(words(" ".join(pair))) <= MAX_WORDS else min(pair, key=len)


def too_near(held_out: Iterable[str]) -> Callable[[str], bool]:
    """Whether a text shares NEAR words in a row, or most of its different words, with one of the held-out sentences."""
    runs: set[tuple[str, ...]] = set()
    bags = [frozenset(words(text)) for text in held_out]
    for text in held_out:
        runs.update(_runs(words(text)))

    def check(text: str) -> bool:
        bag = frozenset(words(text))
        return not runs.isdisjoint(_runs(words(text))) or any(len(bag & b) > 0.6 * len(bag | b) for b in bags)

    return check


def _runs(spoken: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(spoken[i : i + NEAR]) for i in range(len(spoken) - NEAR + 1))


def compose(count: int, seed: int, held_out: list[str]) -> list[str]:
    """`count` different training sentences in random order. Examples that run out are replaced by the grammar."""
    draw = random.Random(seed)
    speak = grammar.load()
    own = {word for _ in range(30_000) for word in words(speak.sentence(draw))}
    common, known = word_list(COMMON) | own, word_list(KNOWN) | own
    vocabulary = sorted(word for word in common if re.fullmatch(r"[a-z]{2,}|a|i", word))
    told = list(examples())
    usual = plain(told, common)
    rarer = sorted(set(plain(told, known)).difference(usual))
    near = too_near(held_out)
    chosen: dict[str, None] = {}

    def take(source: Iterable[str], until: int) -> None:
        for text in source:
            if len(chosen) >= until:
                return
            if not near(text):
                chosen[text] = None

    def endless(make: Callable[[], str]) -> Iterator[str]:
        while True:
            yield make()

    take(draw.sample(usual, len(usual)), round(count * SHARES["examples"]))
    take(draw.sample(rarer, len(rarer)), round(count * (SHARES["examples"] + SHARES["rarer"])))
    take(endless(lambda: salad(vocabulary, draw)), len(chosen) + round(count * SHARES["salad"]))
    take(endless(lambda: short(vocabulary, speak, draw)), len(chosen) + round(count * SHARES["short"]))
    take(endless(lambda: speak.sentence(draw)), count)
    return draw.sample(list(chosen), len(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sentences", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    held_out = HELD_OUT.read_text(encoding="utf-8").splitlines()
    training = compose(args.sentences, args.seed, held_out)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, texts in (("sentences.txt", training), ("held_out.txt", held_out)):
        (args.out / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    count = Counter(word for text in training for word in words(text))
    rare = sorted(word for text in held_out for word in words(text) if count[word] < 3)
    print(f"{len(training)} sentences of {count.total()} words, {len(count)} different ones,")
    print(f"{sum(n > 2 for n in count.values())} of them three times or more; rare held-out words: {rare}")


if __name__ == "__main__":
    main()
