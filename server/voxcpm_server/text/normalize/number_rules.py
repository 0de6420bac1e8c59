"""The numbers of languages beside English and Chinese: how they are written, and the rules of CLDR that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Language:
    """The way in which one language writes and reads numbers.

    locales: of CLDR, whose forms must agree
    thousands: marks between thousands, a class of characters
    decimal: the mark before decimals; empty if they keep their digits
    point: its word
    grouped: True if two decimals are read as one number
    percent: the word for %, `{}` the number; empty to leave it
    counted: rules of CLDR for the numbers of money and percentages; without it, all forms must agree
    money: words for one and for several, by sign
    cents: what stands between the amount and its cents; None to leave amounts with cents
    joined: True if the script puts no spaces between words, so that a letter may touch a number
    rules: the rules of CLDR that must agree; empty for all that it has for cardinals
    zero: the word before decimals, if it is another one than that of CLDR
    largest: the largest number that is written out
    special: regular expressions with what is read otherwise, each with a function of CLDR's words
    """

    locales: tuple[str, ...]
    thousands: str = "."
    decimal: str = ","
    point: str = ""
    grouped: bool = False
    percent: str = ""
    counted: str = ""
    money: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    cents: str | None = None
    joined: bool = False
    rules: tuple[str, ...] = ()
    zero: str = ""
    largest: int = 999_999
    special: tuple[Special, ...] = ()


@dataclass(frozen=True)
class Special:
    """Numbers that only their surroundings explain, such as ordinals.

    pattern: with the group `n`, and `before` for what stays before it; without `n` the match keeps its digits
    rules: of CLDR, which must agree; empty for those of cardinals
    prefix: what stands before the word
    but: numbers that CLDR spells wrongly
    """

    pattern: str
    rules: tuple[str, ...] = ()
    prefix: str = ""
    but: tuple[int, ...] = ()


def _euros(euro: str, dollar: str, dollars: str, pound: str, pounds: str) -> dict[str, tuple[str, str]]:
    return {"€": (euro, euro), "$": (dollar, dollars), "£": (pound, pounds)}


def _ordinal(*forms: str) -> tuple[str, ...]:
    return tuple(f"spellout-ordinal-{form}" if form else "spellout-ordinal" for form in forms)


_GERMAN_MONTHS = "Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember"
_DANISH_MONTHS = "januar|februar|marts|april|maj|juni|juli|august|september|oktober|november|december"
_NORWEGIAN_MONTHS = "januar|februar|mars|april|mai|juni|juli|august|september|oktober|november|desember"
_SWEDISH_MONTHS = "januari|februari|mars|april|maj|juni|juli|augusti|september|oktober|november|december"
_DUTCH_MONTHS = "januari|februari|maart|april|mei|juni|juli|augustus|september|oktober|november|december"
_YEAR = ("spellout-numbering-year",)


def _years(words: str) -> tuple[Special, ...]:
    """Years of the second millennium, which are read in hundreds after certain words, and only there."""
    year = r"(?P<n>1[1-9]\d\d)(?!\d|[.,:/-]\d)"
    return Special(rf"(?P<before>(?<!\w)(?:{words}) ){year}", _YEAR), Special(r"(?<!\d)1[1-9]\d\d(?![\d.,]\d)")


_MALAY = Special(r"(?<!\w)ke-(?P<n>\d{1,3})(?![\w-])", prefix="ke")
_ROMANCE_ORDINALS = (
    Special(r"(?<!\w)(?P<n>\d{1,2})º(?!\w)", _ordinal("masculine")),
    Special(r"(?<!\w)(?P<n>\d{1,2})ª(?!\w)", _ordinal("feminine")),
)
_SINO_KOREAN = (
    "년|월|개월|일|주년|주|초|원|달러|유로|엔|위안|퍼센트|프로|도|층|호|학년|세기|세|위|등|점|쪽|페이지|회|인분|"
    "킬로그램|킬로미터|킬로|센티미터|밀리미터|미터|그램|리터"
)

LANGUAGES: Mapping[str, Language] = {
    "da": Language(
        ("da",),
        point=" komma ",
        percent="{} procent",
        counted="spellout-cardinal-common",
        money=_euros("euro", "dollar", "dollar", "pund", "pund"),
        cents=" ",
        special=(
            Special(rf"(?<!\w)(?P<n>\d{{1,2}})\.(?= (?:{_DANISH_MONTHS})\b)", _ordinal("common"), but=(21, 31)),
            *_years(rf"i|år|siden|fra|{_DANISH_MONTHS}"),
            Special(r"(?<![\d.,])\d{1,2}\.(?!\S)"),
        ),
    ),
    "de": Language(
        ("de",),
        point=" Komma ",
        percent="{} Prozent",
        counted="spellout-cardinal-masculine",
        money=_euros("Euro", "Dollar", "Dollar", "Pfund", "Pfund"),
        cents=" ",
        special=(
            Special(
                r"(?P<before>(?<!\w)(?:[Aa]m|[Vv]om|[Zz]um|[Bb]is|[Dd]en|[Dd]em|[Dd]es) )"
                rf"(?P<n>\d{{1,2}})\.(?= (?:{_GERMAN_MONTHS})\b)",
                _ordinal("n"),
            ),
            Special(rf"(?P<before>(?<!\w)[Dd]er )(?P<n>\d{{1,2}})\.(?= (?:{_GERMAN_MONTHS})\b)", _ordinal("")),
            *_years(rf"Jahr|Jahre|Jahres|[Ss]eit|[Aa]nno|Anfang|Mitte|Ende|{_GERMAN_MONTHS}"),
            Special(r"(?<![\d.,])\d{1,2}\.(?!\S)"),
        ),
    ),
    "el": Language(
        ("el",),
        point=" κόμμα ",
        percent="{} τοις εκατό",
        counted="spellout-cardinal-neuter",
        money=_euros("ευρώ", "δολάριο", "δολάρια", "λίρα", "λίρες") | {"£": ("", "")},
    ),
    "es": Language(
        ("es",),
        thousands=". ",
        point=" coma ",
        grouped=True,
        percent="{} por ciento",
        counted="spellout-cardinal-masculine",
        money={"€": ("euro", "euros")},
        cents=" con ",
        special=_ROMANCE_ORDINALS,
    ),
    "fr": Language(
        ("fr",),
        thousands=" ",
        point=" virgule ",
        grouped=True,
        percent="{} pour cent",
        counted="spellout-cardinal-masculine",
        money={"€": ("euro", "euros"), "$": ("dollar", "dollars")},
        cents=" ",
        special=(
            Special(r"(?<!\w)(?P<n>1)er\b", _ordinal("masculine")),
            Special(r"(?<!\w)(?P<n>1)(?:re|ère)\b", _ordinal("feminine")),
            Special(r"(?<!\w)(?P<n>\d{1,2})(?:e|ème)\b", _ordinal("masculine", "feminine")),
        ),
    ),
    "hi": Language(
        ("hi",),
        thousands=",",
        decimal=".",
        point=" दशमलव ",
        percent="{} प्रतिशत",
        money={"₹": ("रुपया", "रुपये"), "$": ("डॉलर", "डॉलर")},
        largest=10**9,
    ),
    "id": Language(
        ("id",),
        point=" koma ",
        percent="{} persen",
        money={"Rp": ("rupiah", "rupiah"), "$": ("dolar", "dolar"), "€": ("euro", "euro")},
        largest=10**9,
        special=(_MALAY,),
    ),
    "it": Language(
        ("it",),
        point=" virgola ",
        grouped=True,
        percent="{} per cento",
        counted="spellout-cardinal-masculine",
        money={"€": ("euro", "euro"), "$": ("dollaro", "dollari")},
        cents=" e ",
        special=_ROMANCE_ORDINALS,
    ),
    "ja": Language(
        ("ja",),
        thousands=",",
        decimal=".",
        point="点",
        percent="{}パーセント",
        money={"¥": ("円", "円"), "￥": ("円", "円"), "$": ("ドル", "ドル"), "€": ("ユーロ", "ユーロ")},
        joined=True,
        rules=("spellout-cardinal",),
        largest=10**12,
    ),
    "km": Language(("km",), thousands="", decimal="", joined=True),
    "ko": Language(
        ("ko",),
        thousands=",",
        decimal=".",
        point="점",
        percent="{} 퍼센트",
        money={"₩": ("원", "원"), "$": ("달러", "달러"), "€": ("유로", "유로")},
        joined=True,
        zero="영",
        rules=("spellout-cardinal-sinokorean",),
        largest=10**12,
        special=(
            Special(r"(?<![\d.,:-])(?:6|10)월"),  # the names of these two months drop a sound
            Special(r"제(?P<n>\d+)(?![\d.,-])", prefix="제"),
            Special(rf"(?<!\d)\d[\d.,]*+(?! ?(?:[$€₩%]|{_SINO_KOREAN}))"),  # other counts take other numbers
        ),
    ),
    "ms": Language(
        ("ms",),
        thousands=",",
        decimal=".",
        point=" perpuluhan ",
        percent="{} peratus",
        money={"RM": ("ringgit", "ringgit"), "$": ("dolar", "dolar")},
        zero="sifar",
        largest=10**9,
        special=(_MALAY,),
    ),
    "nl": Language(
        ("nl",),
        point=" komma ",
        percent="{} procent",
        money=_euros("euro", "dollar", "dollar", "pond", "pond"),
        cents=" ",
        special=(
            Special(r"(?<!\w)(?P<n>\d{1,2})(?:e|de|ste)\b", _ordinal("")),
            *_years(rf"[Ii]n|[Ss]inds|[Uu]it|[Vv]an|[Jj]aar|{_DUTCH_MONTHS}"),
        ),
    ),
    "no": Language(
        ("no",),
        thousands=" ",
        point=" komma ",
        percent="{} prosent",
        counted="spellout-cardinal-masculine",
        money=_euros("euro", "dollar", "dollar", "pund", "pund"),
        cents=" ",
        special=(
            Special(rf"(?<!\w)(?P<n>\d{{1,2}})\.(?= (?:{_NORWEGIAN_MONTHS})\b)", _ordinal("masculine"), but=(20,)),
            *_years(rf"[Ii]|år|siden|fra|{_NORWEGIAN_MONTHS}"),
            Special(r"(?<![\d.,])\d{1,2}\.(?!\S)"),
        ),
    ),
    "pt": Language(
        ("pt", "pt_PT"),
        thousands=". ",
        point=" vírgula ",
        grouped=True,
        percent="{} por cento",
        counted="spellout-cardinal-masculine",
        money={"€": ("euro", "euros"), "R$": ("real", "reais")},
        cents=" e ",
        rules=("spellout-cardinal-masculine", "spellout-cardinal-feminine"),
        special=_ROMANCE_ORDINALS,
    ),
    "sv": Language(
        ("sv",),
        thousands=" ",
        point=" komma ",
        percent="{} procent",
        counted="spellout-cardinal-reale",
        money=_euros("euro", "dollar", "dollar", "pund", "pund"),
        cents=" ",
        special=(
            Special(rf"(?<![\w.,])(?P<n>\d{{1,2}})(?= (?:{_SWEDISH_MONTHS})\b)", _ordinal("feminine")),
            *_years(rf"[Åå]r|[Ss]edan|från|{_SWEDISH_MONTHS}"),
        ),
    ),
    "th": Language(
        ("th",),
        thousands=",",
        decimal=".",
        point="จุด",
        percent="{}เปอร์เซ็นต์",
        money={"฿": ("บาท", "บาท"), "$": ("ดอลลาร์", "ดอลลาร์"), "€": ("ยูโร", "ยูโร")},
        joined=True,
        largest=10**9,
    ),
    "tr": Language(
        ("tr",),
        point=" virgül ",
        grouped=True,
        percent="yüzde {}",
        money={"₺": ("lira", "lira"), "$": ("dolar", "dolar"), "€": ("avro", "avro")},
        largest=10**9,
        special=(Special(r"(?<![\d.,])\d{1,2}\.(?!\S)"),),
    ),
    "vi": Language(
        ("vi",),
        point=" phẩy ",
        grouped=True,
        percent="{} phần trăm",
        money={"₫": ("đồng", "đồng"), "$": ("đô la", "đô la"), "€": ("euro", "euro")},
        largest=10**9,
        # 1 and 4 have words of their own here.
        special=(Special(r"(?<!\w)(?:thứ|Thứ|tháng|Tháng|mồng|mùng) [14](?!\d)"),),
    ),
}
