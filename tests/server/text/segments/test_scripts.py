"""Sentences of every script end where its readers see an end, and scripts without marks do not wait for one."""

from __future__ import annotations

import importlib
import sys
import unicodedata

import pytest

from voxcpm_server.text.segments.segmenter import DOUBTFUL_WAITS, Segmenter
from voxcpm_server.text.words.spoken_words import word_breaks
from voxcpm_server.values.inputs import Segmentation
from voxcpm_server.values.outputs import CutReason

THAI = "วันนี้อากาศดีมากเลยอยากออกไปเดินเล่นที่สวนสาธารณะใกล้บ้านกับเพื่อนเก่าที่ไม่ได้เจอกันมานานหลายปีแล้วและคิดว่าจะแวะซื้อกาแฟสักแก้ว"
SENTENCES = {
    "Khmer": ("ខ្ញុំមកវិញហើយ។", "អ្នកទៅណា៖", "តើ"),
    "Burmese": ("သူသည် ထမင်းစားသည်။", "အမေက၊", "ဟု"),
    "Devanagari": ("यह अच्छा है।", "हाँ,", "फिर"),
    "Bengali": ("আমি ভাত খাই।", "হ্যাঁ,", "তারপর"),
    "Ethiopic": ("ሰላም ነው።", "እሺ፣", "ከዚያ"),
    "Armenian": ("Ես գնում եմ։", "Այո,", "Հետո"),
    "Tibetan": ("བཀྲ་ཤིས་བདེ་ལེགས།", "དེ་ནས,", "ང"),
    "Greek question": ("Πού πας;", "Ναι,", "Μετά"),
    "Greek question mark": ("Πού πας\u037e", "Ναι,", "Μετά"),
    "Urdu": ("میں جا رہا ہوں۔", "ہاں،", "پھر"),
    "Arabic": ("أين أنت؟", "نعم،", "ثم"),
    "N'Ko": ("ߒ ߓߍ ߕߊ߫ ߹", "ߒ,", "ߒ"),
    "Mongolian": ("ᠪᠢ ᠶᠠᠪᠤᠨᠠ᠃", "ᠪᠢ᠂", "ᠲᠡᠷᠡ"),
    "Javanese": ("ꦱꦸꦒꦼꦁ꧉", "ꦱꦸꦒꦼꦁ,", "ꦱ"),
    "Santali": ("ᱤᱧ ᱪᱟᱞᱟᱜ ᱠᱟᱱᱟ᱾", "ᱤᱧ,", "ᱤᱧ"),
    "Syriac": ("ܫܠܡܐ܀", "ܫܠܡܐ,", "ܫ"),
}


def fed(text: str, **options) -> tuple[list[str], Segmenter]:
    segmenter = Segmenter(Segmentation(**options))
    return [segment.text for segment in segmenter.feed(text)], segmenter


@pytest.mark.parametrize(("sentence", "clause", "following"), SENTENCES.values(), ids=SENTENCES)
def test_a_sentence_of_any_script_ends_at_its_mark(sentence, clause, following):
    assert fed(f"{sentence} {following}")[0] == [unicodedata.normalize("NFC", sentence)]
    assert fed(sentence, max_wait=0.5)[1].max_wait == 0.5
    assert fed(clause, max_wait=0.5)[1].max_wait == 0.5 * DOUBTFUL_WAITS


def test_a_semicolon_is_a_question_mark_in_greek_alone():
    assert fed("We wait; Then we go")[0] == []
    assert fed("Ναι; Όχι", language="el")[0] == ["Ναι;"]
    assert fed("We take α; Then we go")[0] == []


@pytest.mark.parametrize(
    "text",
    ["สวัสดีครับ", "ຂ້ອຍມາແລ້ວ", "ខ្ញុំមកហើយ", "ငါလာပြီ", "我马上去", "今から行くね", "ใช้ iPhone 15", "ราคา 65"],
)
def test_a_pause_speaks_text_of_scripts_that_may_do_without_marks(text):
    assert fed(text, max_wait=0.5)[1].max_wait == 0.5 * DOUBTFUL_WAITS


def test_spaces_between_phrases_end_segments_of_thai_and_lao_that_are_long_enough():
    assert fed("วันนี้อากาศดีมากเลย อยากออกไปเดินเล่น ไป")[0] == ["วันนี้อากาศดีมากเลย", "อยากออกไปเดินเล่น"]
    assert fed("ຂ້ອຍຢາກໄປກິນເຂົ້າຢູ່ຕະຫຼາດ ລາວບໍ່ໄປ")[0] == ["ຂ້ອຍຢາກໄປກິນເຂົ້າຢູ່ຕະຫຼາດ"]
    assert fed("ไป ๆ มา ๆ ดี ไหม")[0] == []  # too short, and a sign that repeats the word before it
    assert fed("รถไฟออกจากสถานีตอน 20.00 น")[0] == []  # the number belongs to the phrase


def test_spaces_do_not_end_segments_of_text_that_has_marks():
    first = "ម្តាយរបស់នាងកំពុងដាំបាយនៅក្នុងផ្ទះបាយ។ "
    rest = "កុំភ្លេចយកមួកនិងទឹកទៅជាមួយផង ហើយប្រាប់ចំនួនមនុស្សមកខ្ញុំ ព្រោះខ្ញុំត្រូវកក់រថយន្តសម្រាប់ថ្ងៃស្អែក ដើម្បី"
    assert len(fed(first + rest)[0]) == 1
    assert len(fed(rest)[0]) > 0


@pytest.mark.parametrize(
    "text", [THAI * 2, "我们今天一起去那里看看然后再回家吃饭" * 6, "ខ្ញុំត្រូវឈប់ចាំនៅផ្ទះមីងហើយទៅផ្សារ" * 6]
)
def test_text_without_marks_waits_for_no_more_than_eight_seconds(text):
    segmenter = Segmenter(Segmentation())
    fed_in, segment = next((at, found) for at, char in enumerate(text, 1) for found in segmenter.feed(char))
    assert 24 <= fed_in <= 200
    assert segment.cut is CutReason.LIMIT
    assert len(segment.text) > 20
    assert segment.end in word_breaks(text)


def test_words_are_whole_with_the_breaker_of_icu():
    words = [0, *word_breaks("😀 นี่คือร้านกาแฟที่อยู่ใกล้คุณ")]
    assert {2, 5, 8, 12} <= set(words)
    assert word_breaks("我们今天一起去") == [2, 4]
    assert word_breaks("ខ្ញុំត្រូវឈប់") == [5, 10]


def test_without_the_breaker_syllables_count_as_words(monkeypatch):
    for name in ("icu4py", "icu4py.breakers"):
        monkeypatch.setitem(sys.modules, name, None)  # not installed
    monkeypatch.delitem(sys.modules, "voxcpm_server.text.words.spoken_words")
    found = importlib.import_module("voxcpm_server.text.words.spoken_words").word_breaks
    assert found("เดินไป") == [3, 4]  # no vowel is parted from its consonant
    assert found("我们去") == [1, 2]


def test_phonemes_are_never_cut():
    text = "我们今天一起去那里{ni3}{hao3}" * 8
    for segments in (fed(text)[0], fed("Say {HH AH0 L OW1} " * 12, max_chars=40)[0]):
        assert segments
        for segment in segments:
            assert segment.count("{") == segment.count("}")
