"""Roman numerals in names, titles and abbreviations."""

from __future__ import annotations

import re

from voxcpm_server.text.english.numbers import cardinal, ordinal
from voxcpm_server.text.english.rules import Match, Rule, listed, one_of, rule, text_before

LABELS = listed(
    "Chapter Part Volume Vol. Book Act Scene Section Article Phase Type Class Level Grade Title Appendix Stage "
    "Tier Episode Season Canto Division Figure Table Annex Schedule Amendment Psalm "
    "Category Lesson Round Game War Wars Bowl Fantasy Rocky Quest Souls Civilization Apollo Saturn "
    "Olympiad Vatican Titan Area Region"
)
LABELS_IN_LOWER_CASE = listed("chapter part volume vol. book act scene section article phase type stage grade class")
RULERS = listed(
    "Henry Louis Charles Edward George James William Richard Elizabeth Mary Pius Paul Benedict Leo Napoleon "
    "Philip Philippe Ramses Ramesses Rameses Catherine Peter Nicholas Alexander Frederick Wilhelm Ivan Francis "
    "Gregory Clement Innocent Urban Julius Victoria Margaret Harald Gustav Gustavus Christian Frederik Carl Olaf "
    "Haakon Otto Leopold Albert Baudouin Ferdinand Alfonso Juan Isabella Sixtus Boniface Adrian Celestine "
    "Callixtus Eugene Martin Stephen Robert David Malcolm Kenneth Constantine Justinian Theodosius Darius Xerxes "
    "Artaxerxes Ptolemy Cleopatra Antiochus Amenhotep Thutmose Seti Mehmed Murad Selim Suleiman Abdul Umberto "
    "Emmanuel Maximilian Rudolf Joseph Naruhito Pedro Afonso Manuel John Sigismund Casimir Vladislaus Bela Mircea "
    "Vlad Willem Juliana Beatrix Rainier Harold Godfrey Baldwin"
)
TITLES = listed("King Queen Pope Emperor Empress Tsar Czar Kaiser Prince Princess Duke Sultan Pharaoh Saint St.")
PERSONS = {
    "Dr.": "Doctor",
    "Mr.": "Mister",
    "Prof.": "Professor",
    "St.": "Saint",
    "Mt.": "Mount",
    "Ft.": "Fort",
    "Gen.": "General",
    "Sen.": "Senator",
    "Rep.": "Representative",
    "Gov.": "Governor",
    "Capt.": "Captain",
    "Sgt.": "Sergeant",
    "Lt.": "Lieutenant",
    "Col.": "Colonel",
    "Cpt.": "Captain",
    "Rev.": "Reverend",
    "Hon.": "Honorable",
    "Pres.": "President",
}
STREETS = {"St.": "Street", "Ave.": "Avenue", "Blvd.": "Boulevard", "Rd.": "Road", "Dr.": "Drive", "Ln.": "Lane"}
NUMBERED = {  # they stand before a number
    "No.": "Number",
    "no.": "number",
    "Nos.": "Numbers",
    "nos.": "numbers",
    "№": "number",
    "Nº": "number",
    "N°": "number",
    "p.": "page",
    "pp.": "pages",
    "pg.": "page",
    "P.": "Page",
    "Pp.": "Pages",
    "pgs.": "pages",
    "vol.": "volume",
    "Vol.": "Volume",
    "ch.": "chapter",
    "Ch.": "Chapter",
    "fig.": "figure",
    "Fig.": "Figure",
    "figs.": "figures",
    "Figs.": "Figures",
    "sec.": "section",
    "Sec.": "Section",
    "eq.": "equation",
    "Eq.": "Equation",
    "Art.": "Article",
    "ext.": "extension",
    "Ext.": "Extension",
    "Apt.": "Apartment",
    "apt.": "apartment",
    "Rm.": "Room",
    "approx.": "approximately",
    "Approx.": "Approximately",
    "ca.": "circa",
    "c.": "circa",
    "§": "section ",
    "§§": "sections ",
    "#": "number ",
}
ABBREVIATIONS = {
    "etc.": "et cetera",
    "Jr.": "Junior",
    "Sr.": "Senior",
    "Inc.": "Incorporated",
    "Ltd.": "Limited",
    "Corp.": "Corporation",
    "Dept.": "Department",
    "dept.": "department",
    "Ave.": "Avenue",
    "Blvd.": "Boulevard",
}
WORDS = {
    "vs.": "versus",
    "vs": "versus",
    "WWI": "World War one",
    "WWII": "World War two",
    "WW1": "World War one",
    "WW2": "World War two",
    "e.g.": "for example",
    "E.g.": "For example",
    "i.e.": "that is",
    "I.e.": "That is",
    "w/o": "without",
    "w/": "with",
    "approx.": "approximately",
}
_ROMAN = r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})"
_LARGE = r"(?=[IVXL])(?:XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_LONGER = r"(?=[IVX]{2})(?!X+(?!\w))X{0,3}(?:IX|IV|V?I{0,3})"
_ALWAYS_NUMBERED = ("World War", "Super Bowl", *listed("War Wars Type Phase Stage Class Grade Act Scene Olympiad"))
_AFTER_ONE = re.compile(
    r" (?:of|and|to|or|in|on|is|was|has|had|begins?|began|ends?|ended|opens|covers|describes|introduces|deals)\b"
)
_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}
_NO_NAME = listed(
    "The A An In On At Of By For To From And Or But My Your His Her Its Our Their This That These Those IV If "
    "When With Is Are Was Were I We You He She It They Not No Yes Start Stop Use Get Give Need Take Insert Place "
    "Check As So"
)


def _value(roman: str) -> int:
    values = [_VALUES[letter] for letter in roman]
    return sum(-one if one < following else one for one, following in zip(values, [*values[1:], 0], strict=True))


def _label(match: Match) -> str | None:
    """Chapter IV, Part I, World Wars I and II; but not "the Book I read"."""
    rest = match.string[match.end() :]
    unsure = match[2] == "I" and match[1] not in _ALWAYS_NUMBERED
    if unsure and re.match(r" [a-z]", rest) and not _AFTER_ONE.match(rest):
        return None
    if match[2] == "I" and match[1].islower():
        return None
    words = f"{NUMBERED.get(match[1], match[1])} {cardinal(_value(match[2]))}"
    if match[4] is None:
        return words
    between = match[3].strip() if match[3].strip().isalpha() else "to"
    return f"{words} {between} {cardinal(_value(match[4]))}"


def _ruler(match: Match) -> str | None:
    name, roman = match["name"], match["roman"]
    if roman in ("I", "X", "V") and not _is_numeral(match):
        return None
    return f"{match['title'] or ''}{name} the {ordinal(_value(roman))}"


def _is_numeral(match: Match) -> bool:
    """True if one letter after the name of a ruler is a numeral: not in "Malcolm X" and "John I think"."""
    if match["name"] == "Malcolm":
        return False
    rest = match.string[match.end() :]
    if match["title"] or match["roman"] != "I":
        return not rest.startswith(".") or match["title"] is not None or not re.match(r"\. ?[A-Z]", rest)
    return bool(re.match(r"(?:[,;:.!?)]|'s|$| (?:was|is|of|and|ruled|reigned|died|became|had|wrote|married)\b)", rest))


def _someone(match: Match) -> str | None:
    """Rocky II, Apple II; a numeral of at least two letters."""
    if match[1] in _NO_NAME or match[1].isupper():
        return None
    return f"{match[1]} {cardinal(_value(match[2]))}"


def _person(match: Match) -> str:
    return PERSONS[match[0]]


def _street(match: Match) -> str | None:
    """Main St., 12 Elm Dr.; a capital after it is a person's name or a saint's, unless the street has a number."""
    text, rest = match.string, match.string[match.end() :]
    if re.match(r" [A-Z]", rest) and not re.search(r"\d\w* (?:[A-Z][\w.]* )*$", text[: match.start()]):
        return None
    ends = not rest or bool(re.match(r"[\"')]? [A-Z][a-z]+ [a-z]", rest))
    return f"{match[1].strip()} {STREETS[match[2]]}" + ("." if ends else "")


def _numbered(match: Match) -> str:
    word = NUMBERED[match[1]].strip()
    inside = re.search(r"[\w,] $", text_before(match))
    return f"{word.lower() if inside and match[1] in ('No.', 'Nos.') else word} "


def _abbreviated(match: Match) -> str:
    """An abbreviation that may end a sentence, whose full stop is kept there."""
    rest = match.string[match.end() :]
    new_sentence = re.match(r"[\"')]* [A-Z]", rest) and match[1] == "etc."
    return ABBREVIATIONS[match[1]] + ("." if re.fullmatch(r"[\"')]*", rest) or new_sentence else "")


RULES: tuple[Rule, ...] = (
    rule(
        rf"\b({one_of((*LABELS, *LABELS_IN_LOWER_CASE))}s?|World Wars?|Super Bowl) ({_LARGE})(?!\w|'\w)"
        rf"(?:( (?:and|to|or) | ?[-\u2013] ?)({_ROMAN})(?!\w|'\w))?"
        r"(?! am\b)",
        _label,
    ),
    rule(rf"\b(?P<title>{one_of(TITLES)} )?(?P<name>{one_of(RULERS)}) (?P<roman>{_ROMAN})(?!\w|'(?!s\b)|-\w)", _ruler),
    rule(rf"\b(?P<title>{one_of(TITLES)} )(?P<name>[A-Z][a-z]+) (?P<roman>{_ROMAN})(?!\w|'(?!s\b)|-\w)", _ruler),
    rule(rf"(?<!\w)([A-Z][A-Za-z]*[a-z]) ({_LONGER})(?!\w|-\w)", _someone),
    rule(rf"(?<!\w)({_ROMAN})(?:th|st|nd|rd)?(?= [Cc]entur(?:y|ies)\b)", lambda m: ordinal(_value(m[1]))),
    rule(rf"(?<!\w)(?:{one_of(PERSONS)})(?= [A-Z])", _person),
    rule(rf"(?<!\w)([A-Z]\w+) ({one_of(STREETS)})(?=\W|$)", _street),
    rule(rf"(?<=\dst|\dnd|\drd|\dth)( )({one_of(STREETS)})(?=\W|$)", _street),
    rule(rf"(?<!\w)({one_of(NUMBERED)}) ?(?=\d)", _numbered),
    rule(rf"(?<!\w)({one_of(ABBREVIATIONS)})", _abbreviated),
    rule(r"(?<!\w)etc(?!\w|\.)", "et cetera"),
    rule(rf"(?<![\w.])({one_of(WORDS)})(?!\w)", lambda m: WORDS[m[1]] + (" " if m[1].endswith("/") else "")),
)
