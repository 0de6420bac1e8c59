"""Numbers that name something: telephones, addresses of hosts, versions, labels, models, and figures with a reading of
their own.
"""

from __future__ import annotations

import re

from voxcpm_server.text.english.numbers import DIGITS, cardinal, in_pairs, of_version, plural, spelled
from voxcpm_server.text.english.rules import DASH, END, Match, Rule, listed, one_of, rule, text_before

KNOWN = {
    "24/7": "twenty four seven",
    "24/7/365": "twenty four seven three sixty five",
    "50/50": "fifty fifty",
    "50-50": "fifty fifty",
    "20/20": "twenty twenty",
    "9/11": "nine eleven",
    "7/11": "seven eleven",
    "911": "nine one one",
    "007": "double oh seven",
    "404": "four oh four",
    "401k": "four oh one k",
    "401(k)": "four oh one k",
    "3M": "three M",
    "100s": "hundreds",
    "1000s": "thousands",
}
SOFTWARE = listed(
    "Version version Release release Python Java Node Ubuntu Debian Fedora Windows Android Chrome Firefox Safari "
    "Go Rust Ruby Swift Kotlin Scala Django Flask Rails React Angular Vue Linux Kernel kernel Docker Kubernetes "
    "Postgres Redis Perl Julia Bluetooth Firmware firmware Build build Update update Patch patch Section section "
    "Chapter chapter Figure figure Fig. Table table Exercise exercise Llama Gemini Claude Gemma Mistral Qwen "
    "Triton Torch Bash"
)
LABELS = listed(
    "Room room Rm. Suite suite Apt. apt. Apartment apartment Flight flight Bus bus Train train Route route "
    "Highway highway Interstate interstate Platform Boeing Airbus Extension extension Channel channel Unit Locker "
    "locker Bay Studio Building building Form form Model model platform Hall hall Course course Porsche Peugeot "
    "BMW RTX GTX port Port error Error status Status"
)
SECRETS = listed(
    "PIN pin code Code passcode Passcode password Password OTP ID serial Serial ZIP zip Zip postcode account Account"
)  # each digit of their numbers is spoken
PAPERS = listed(
    "confirmation Confirmation reference Reference case Case ticket Ticket order Order tracking invoice Invoice"
)  # each digit of theirs is spoken, if a word or sign says that it is a number
AIRLINES = listed("UA AA DL BA LH AF KL EK QR SQ CX NH JL QF VS WN AC TK LX")
_DIALLED = r"(?:[Cc]all(?:ed|ing)?|[Dd]ial(?:l?ed)?|[Pp]hone|[Rr]ing|[Tt]ext)"
_PRERELEASE = r"[-.]?(?:alpha|beta|rc|dev|preview|pre|post)[-.]?\d*"
_VERSION = r"\d+(?:\.\d+)+"
_STATES = listed(
    "AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH OK "
    "OR PA RI SC SD TN TX UT VT VA WA WV WI WY DC"
)


def _known(match: Match) -> str | None:
    counts = match[0].isdecimal() and re.match(r" [a-z]+s\b| people\b", match.string[match.end() :])
    return None if counts else KNOWN[match[0]]


def _groups(text: str) -> str:
    """Groups of digits, each spelled, with a pause between them."""
    plus = "plus " if text.startswith("+") else ""
    return plus + ", ".join(spelled(group) for group in re.findall(r"\d+|X", text))


def _phone(match: Match) -> str | None:
    digits = re.sub(r"\D", "", match[0])
    return _groups(match[0]) if 7 <= len(digits) <= 15 else None


def _dialled(match: Match) -> str | None:
    """The number of a telephone without other signs of one: "call 112", "text 555 1234"."""
    digits = re.sub(r"\D", "", match[2])
    return match[1] + _groups(match[2]) if len(digits) == 3 or len(digits) > 4 else None


def _address(match: Match) -> str | None:
    """192.168.1.1:8080, 10.0.0.0/8."""
    parts = match[1].split(".")
    if any(int(part) > 255 for part in parts):
        return None
    words = " dot ".join(spelled(part) if len(part) > 2 else cardinal(int(part)) for part in parts)
    words += f" port {spelled(match[2])}" if match[2] else ""
    return words + (f" slash {cardinal(int(match[3]))}" if match[3] else "")


def _version(match: Match) -> str:
    said = "v" in match.groupdict() and not re.search(r"\bversion\s$", text_before(match), re.IGNORECASE)
    words = _parts(match["version"])
    if match["rest"]:
        words += " " + " ".join(
            of_version(one) if one.isdecimal() else one for one in re.findall(r"[a-z]+|\d+", match["rest"])
        )
    return f"version {words}" if said else words


def _labelled_version(match: Match) -> str:
    """Python 3.12; Python 3.9-3.12."""
    words = f"{match[1]} {_parts(match[2])}"
    if not match[3]:
        return words
    between = re.search(r"and|or", match[0][match.end(2) - match.start() : match.start(3) - match.start()])
    return f"{words} {between[0] if between else 'to'} {_parts(match[3])}"


def _parts(version: str) -> str:
    return " point ".join(of_version(part) for part in version.split("."))


def _token(match: Match) -> str:
    """A name of letters and digits: "GPT-4o" is GPT four o, "A380" A three eighty."""
    parts = re.findall(r"\d+|[^\W\d_]+|[^\w\s]|_", match[0])
    words = [in_pairs(part) if part.isdecimal() else part for part in parts if part not in "-\u2011"]
    if len(parts) > 2 and parts[-1] == "s" and parts[-2].isdecimal() and parts[0].isupper():
        words[-2:] = [plural(words[-2])]
    return " ".join(words)


def _in_pairs_after(match: Match) -> str:
    return f"{match[1]}{in_pairs(match[2])}"


def _grouped_after(match: Match) -> str:
    return f"{match[1].replace('#', 'number ')}{_groups(match[2])}"


def _resolution(match: Match) -> str:
    return f"{in_pairs(match[1])} by {in_pairs(match[2])}"


def _isbn(label: str) -> str:
    return re.sub(r"-(\d+)", lambda m: f" {cardinal(int(m[1]))}", label)


FIGURES: tuple[Rule, ...] = (
    rule(r"(?<![\w.])(\d{3,4}) ?[x×] ?(\d{3,4})(?![\w=]| ?=)", _resolution),
    rule(r"(?<![\w.,/-])(?:1-)?8\d\d-(?=[A-Z]{3})", lambda m: f"{_groups(m[0])}, "),
    rule(
        r"(?<!\w)0[xX][0-9a-fA-F]+(?!\w)",
        lambda m: " ".join(DIGITS[int(one)] if one.isdecimal() else one for one in m[0]),
    ),
    rule(rf"(?<![\w.,/:$€£+])(?<![\d\s(]-)(?<!^-){one_of(KNOWN)}(?![\w/]|-\d)(?![.,]\d)(?!'s? ?\d)", _known),
    rule(
        r"(?<![\w.,/-])\+\d{1,3}[ .-]?\(?\d{1,4}\)?(?:[ .-]?\d{2,4}){1,5}(?![\w-])|(?<![\w.,/-])\+\d{7,15}(?!\w)",
        _phone,
    ),
    rule(r"(?<![\w.,/-])(?:1[ .-]?)?\(\d{3}\) ?\d{3}[ .-]\d{4}(?![\w-])", _phone),
    rule(r"(?<![\w.,/-])(?:\d{1,3}[ .-])?\d{3}([-. ])\d{3}\1\d{4}(?![\w-])", _phone),
    rule(r"(?<![\w.,/-])\d{3}-\d{4}(?![\w-])", _phone),
    rule(r"\(0\d{2,4}\) ?\d{3,4}[ -]?\d{3,4}(?![\w-])", _phone),
    rule(r"(?<![\w.,/-])0\d{2,4}[ -]\d{3,4}[ -]?\d{3,4}(?![\w-])", _phone),
    rule(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?::(\d{1,5}))?(?:/(\d{1,2}))?(?![\w/])(?!\.\d)", _address),
    rule(r"(?<![\w.,/-])\d{4}(?:[ -]\d{4}){2,4}(?![\w-])", lambda m: _groups(m[0])),
    rule(
        r"(?<![\w.,/-])(?!\d{4}-\d{1,2}-\d{1,2}(?!\d)|\d{1,2}-\d{1,2}-\d{4}(?!\d))\d+(?:-\d+){2,}(?:-X)?(?![\w-])",
        lambda m: _groups(m[0]),
    ),
    rule(rf"\b({_DIALLED} (?:(?:me|us|him|her|them) (?:at|on) )?)(\d[\d -]+\d)(?![\w-])(?![.,]\d)", _dialled),
    rule(r"\b((?:ISBN|IBAN|ISSN)(?:-1[03])?:? )([\d -]*[\dX])(?!\w)", lambda m: f"{_isbn(m[1])}{_groups(m[2])}"),
)
RULES: tuple[Rule, ...] = (
    rule(r"(?<![\w.])\d{1,3}(?:\.\d{3}){2,}(?![\w.]\d|\w)", lambda m: cardinal(int(m[0].replace(".", "")))),
    rule(r"(?<!\w)(?![vV]\d)([A-Za-z]+)(\d+\.\d+)(?!\.?\d|\w)", lambda m: f"{m[1]} {_parts(m[2])}"),
    rule(r"(?<![\w-])([A-Z]{1,4})-(\d{3,4})(?!\w|[.,]\d)", lambda m: f"{m[1]} {in_pairs(m[2])}"),
    rule(r"(?<!\w)(7\d7)-(\d{1,3})(?!\d)", lambda m: f"{in_pairs(m[1])} {in_pairs(m[2])}"),
    rule(r"\bHTTP/(?=\d)", "HTTP "),
    rule(r"(?<![\w.])([A-Z])\.(\d{3})(?!\w)", lambda m: f"{m[1]} {in_pairs(m[2])}"),
    rule(
        r"(?<![\w.])(?P<v>v\.? ?|V(?=\d+\.\d))(?P<version>\d+(?:\.\d+)*)(?P<rest>{_PRERELEASE})?(?!\.?\d|[A-Za-z])",
        _version,
    ),
    rule(
        rf"(?<![\w.])(?P<version>\d+(?:\.\d+){{2,}})(?P<rest>{_PRERELEASE})?(?!\.?\d)",
        _version,
    ),
    rule(
        rf"(?<!\w)({one_of(SOFTWARE)}|[A-Za-z]*[a-z][A-Z]\w*|[A-Z]{{2,}}) ({_VERSION})"
        rf"(?: ?(?:{DASH}|to|and|or) ?({_VERSION}))?"
        r"(?!\.?\d)(?!%| ?(?:million|billion|trillion|percent))",
        _labelled_version,
    ),
    rule(
        rf"\b((?:{one_of(SECRETS)})(?: (?:number|code|is|was|no\.|#))*:? #?)(\d{{4,}}|\d+(?:[- ]\d+)+){END}",
        _grouped_after,
    ),
    rule(
        rf"\b({one_of(PAPERS)} (?:(?:number|no\.|code|ID)(?: is| was)?:? ?#?|#))(\d{{4,}}|\d+(?:[- ]\d+)+){END}",
        _grouped_after,
    ),
    rule(rf"\b({one_of(_STATES)} )(\d{{5}})(?![\d,])", _grouped_after),
    rule(rf"(?<![\w.])({one_of(LABELS)} )(\d{{3,4}})(?!,\d|\.\d|\d)", _in_pairs_after),
    rule(rf"(?<!\w)((?:[Ff]light )?{one_of(AIRLINES)} )(\d{{2,4}})(?![\w.]\d|\w|,\d)", _in_pairs_after),
    rule(r"(?<![\w.])(?=\w*[A-Za-z])(?=\w*\d)[^\W_]+(?:[-\u2011](?=\w*\d)[^\W_]+)*(?!\w)", _token),
)
