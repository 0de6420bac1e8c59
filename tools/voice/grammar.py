"""Random sentences from the rules of grammar.txt, whose first lines describe their syntax."""

import random
import re
from pathlib import Path

FORMS = ("base", "third", "past", "ing")
RULE = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
VERB = re.compile(r"\w+(?:/\w+){3}")
ARTICLE = re.compile(r"\b(a)\(n\) (\w)", re.IGNORECASE)


class Grammar:
    """Checked rules. Raises ValueError for a line that is no rule, and for a rule that uses one that does not exist."""

    def __init__(self, text: str) -> None:
        self._rules: dict[str, list[str]] = {}
        logical = re.sub(r"\n[ \t]+", " ", re.sub(r"(?m)^#.*\n", "", text))
        for line in filter(None, logical.splitlines()):
            name, equals, body = line.partition(" = ")
            if not equals or name in self._rules:
                raise ValueError(f"grammar line {line[:60]!r} is no rule, or its name exists already")
            self._rules[name] = [alternative.strip() for alternative in body.split("|")]
        for name, alternatives in self._rules.items():
            for used, form in RULE.findall(" ".join(alternatives)):
                if used not in self._rules or (form and form not in FORMS):
                    raise ValueError(f"grammar rule {name!r} uses {used}.{form or 'base'}, which does not exist")

    def sentence(self, draw: random.Random) -> str:
        """A random sentence with punctuation, from the rule `sentence`."""
        text = self._expand("sentence", "base", draw)
        text = ARTICLE.sub(lambda m: f"{m[1]}{'n' if m[2] in 'aeiou' else ''} {m[2]}", text)
        text = re.sub(r"([.?!])[.?!]+", r"\1", text)
        return text[0].upper() + text[1:]

    def _expand(self, name: str, form: str, draw: random.Random) -> str:
        chosen = draw.choice(self._rules[name])
        chosen = VERB.sub(lambda verb: verb[0].split("/")[FORMS.index(form)], chosen)
        return RULE.sub(lambda used: self._expand(used[1], used[2] or "base", draw), chosen)


def load() -> Grammar:
    return Grammar(Path(__file__).with_name("grammar.txt").read_text(encoding="utf-8"))
