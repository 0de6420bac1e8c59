"""Names of languages mean what callers mean by them, or are refused with the tag to use."""

from __future__ import annotations

import grpc
import pytest

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.text.normalize import packages

MEANT = {
    "": ("", "auto", "AUTO", "und", "mul"),
    "ar": ("ar", "ar-EG", "ara", "arb", "arz", "Arabic", "العربية"),
    "da": ("da", "dan", "Danish", "dansk"),
    "de": ("de", "de-AT", "DE_at", "deu", "ger", "de_DE@euro", "German", "Deutsch"),
    "el": ("el", "ell", "gre", "Greek", "Modern Greek", "Ελληνικά"),
    "en": ("en", "en-US", "eng", "en_US.UTF-8", "English", " english ", "English (US)", "British English"),
    "es": ("es", "es-419", "spa", "Spanish", "Castilian", "español"),
    "fi": ("fi", "fin", "Finnish", "suomi"),
    "fr": ("fr", "fra", "fre", "French", "Français"),
    "he": ("he", "iw", "heb", "Hebrew", "עברית"),
    "hi": ("hi", "hin", "Hindi", "हिन्दी"),
    "id": ("id", "in", "ind", "Indonesian", "Bahasa Indonesia"),
    "it": ("it", "ita", "Italian"),
    "ja": ("ja", "ja-JP", "jpn", "Japanese", "日本語"),
    "km": ("km", "khm", "Khmer", "ខ្មែរ"),
    "ko": ("ko", "kor", "Korean", "한국어"),
    "lo": ("lo", "lao", "Lao", "ລາວ"),
    "ms": ("ms", "msa", "may", "zsm", "Malay"),
    "my": ("my", "mya", "bur", "Burmese", "မြန်မာ"),
    "nl": ("nl", "nld", "dut", "Dutch", "Flemish", "nl-BE"),
    "no": ("no", "nb", "nn", "nor", "nob", "nno", "nb-NO", "Norwegian", "norsk", "Norwegian Bokmål"),
    "pl": ("pl", "pol", "Polish", "polski"),
    "pt": ("pt", "pt_BR", "por", "Portuguese", "Portuguese (Brazil)", "Brazilian Portuguese"),
    "ru": ("ru", "rus", "Russian", "русский"),
    "sv": ("sv", "swe", "Swedish"),
    "sw": ("sw", "swa", "swh", "Swahili"),
    "th": ("th", "tha", "Thai", "ไทย"),
    "tl": ("tl", "fil", "fil-PH", "tgl", "Tagalog", "Filipino"),
    "tr": ("tr", "tur", "Turkish", "Türkçe"),
    "vi": ("vi", "vie", "Vietnamese", "Tiếng Việt"),
    "zh": (
        *("zh", "cmn", "yue", "wuu", "nan", "zho", "chi", "zh-yue", "zh-Hans", "zh_CN", "zh-Hant-TW"),
        *("chinese", "Mandarin", "Cantonese", "Simplified Chinese", "Chinese (Mandarin)", "中文", "粤语", "普通话"),
    ),
}
COUNTRIES = {"jp": "ja", "JP": "ja", "cn": "zh", "gr": "el", "dk": "da", "cz": "cs", "vn": "vi", "us": "en", "kh": "km"}


class Heard:
    """Keeps the languages of the texts that it gets."""

    def __init__(self) -> None:
        self.languages: list[str] = []

    async def normalize(self, text: str, language: str = "") -> str:
        self.languages.append(language)
        return text


def config(language: str) -> pb.GenerateConfig:
    return pb.GenerateConfig(segmentation=pb.Segmentation(language=language), turn=pb.TurnConfig(normalize=True))


async def test_every_name_of_a_language_is_its_tag(serve_front, monkeypatch):
    monkeypatch.setattr(packages, "_missing", list)
    heard = Heard()
    async with serve_front(normalizer=heard) as served:
        names = [(name, tag) for tag, names in MEANT.items() for name in names]
        for name, _ in names:
            await served.generate(config(name), "1.")
    assert [(name, found) for (name, _), found in zip(names, heard.languages, strict=True)] == names


async def refusal(served, language: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(pb.GenerateConfig(segmentation=pb.Segmentation(language=language)), "1.")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


async def test_the_code_of_a_country_is_refused_with_the_tag_of_its_language(served):
    for country, tag in COUNTRIES.items():
        found = await refusal(served, country)
        assert found.endswith(f"; {country.upper()} is a country, and the tag of its language is {tag}")


@pytest.mark.parametrize(
    "name",
    ["x", "xx", "zz", "zzz", "en-", "-en", "1", "e n", "not a language", "x-private", "中", "\0", "d" * 36, "a" * 9],
)
async def test_what_names_no_language_is_refused(served, name):
    found = await refusal(served, name)
    assert "it must be a BCP 47 tag such as de or pt-BR, of at most 35 characters, or the name of a language" in found
    assert "country" not in found
