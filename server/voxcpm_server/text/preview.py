"""The text that a preview says by default."""

from __future__ import annotations

from collections.abc import Sequence

from voxcpm_server.text.normalize.scripts import LATIN, SCRIPTS, script
from voxcpm_server.values.languages import primary

ENGLISH = "en"
TEXTS = {
    ENGLISH: "Hello, this is how my voice sounds. I am glad to meet you.",
    "ar": "مرحبا، هذا هو صوتي. يسعدني لقاؤكم.",
    "bg": "Здравейте, така звучи моят глас. Радвам се да се запознаем.",
    "bn": "নমস্কার, এটি আমার কণ্ঠ। আপনার সাথে পরিচিত হয়ে ভালো লাগলো।",
    "da": "Hej, sådan lyder min stemme. Det glæder mig at møde dig.",
    "de": "Guten Tag, so klingt meine Stimme. Es freut mich, Sie kennenzulernen.",
    "el": "Γεια σας, έτσι ακούγεται η φωνή μου. Χαίρομαι που σας γνωρίζω.",
    "es": "Hola, así suena mi voz. Mucho gusto en conocerle.",
    "fi": "Hei, tältä ääneni kuulostaa. Hauska tavata.",
    "fr": "Bonjour, voici ma voix. C'est un plaisir de vous rencontrer.",
    "he": "שלום, כך נשמע הקול שלי. נעים להכיר.",
    "hi": "नमस्ते, मेरी आवाज़ ऐसी है। आपसे मिलकर अच्छा लगा।",
    "id": "Halo, beginilah suara saya. Senang bertemu dengan Anda.",
    "it": "Buongiorno, questa è la mia voce. È un piacere conoscerla.",
    "ja": "こんにちは、これが私の声です。お会いできてうれしいです。",
    "km": "សួស្តី នេះជាសំឡេងរបស់ខ្ញុំ។ ខ្ញុំរីករាយដែលបានជួបអ្នក។",
    "ko": "안녕하세요, 이것이 제 목소리입니다. 만나서 반갑습니다.",
    "lo": "ສະບາຍດີ ນີ້ແມ່ນສຽງຂອງຂ້ອຍ. ຍິນດີທີ່ໄດ້ຮູ້ຈັກ.",
    "ms": "Helo, beginilah suara saya. Gembira bertemu dengan anda.",
    "my": "မင်္ဂလာပါ။ ဒီအသံကို နားထောင်ပေးလို့ ကျေးဇူးတင်ပါတယ်။",
    "nl": "Hallo, zo klinkt mijn stem. Aangenaam kennis te maken.",
    "no": "Hei, slik høres stemmen min ut. Det er hyggelig å møte deg.",
    "pl": "Dzień dobry, tak brzmi mój głos. Bardzo mi miło.",
    "pt": "Olá, é assim que soa a minha voz. Muito prazer.",
    "ru": "Здравствуйте, так звучит мой голос. Приятно познакомиться.",
    "sv": "Hej, så här låter min röst. Det är trevligt att träffas.",
    "sw": "Habari, hii ni sauti yangu. Nimefurahi kukutana nawe.",
    "th": "สวัสดี นี่คือเสียงของฉัน ยินดีที่ได้รู้จัก",
    "tl": "Kumusta, ganito ang boses ko. Ikinagagalak kitang makilala.",
    "tr": "Merhaba, sesim böyle duyuluyor. Tanıştığımıza memnun oldum.",
    "uk": "Вітаю, так звучить мій голос. Приємно познайомитися.",
    "vi": "Xin chào, đây là giọng nói của tôi. Rất vui được gặp bạn.",
    "zh": "你好，这就是我的声音。很高兴认识你。",
}
"""The texts by primary subtag."""
COMMON = (ENGLISH, "ru", "zh")  # a script that several languages have takes one of these


def preview_text(transcript: str, languages: Sequence[str]) -> str:
    """The text for a voice.

    Its language is written in the script of most letters of the transcript, and claimed by the model, if there is one.
    Otherwise English, or the first language of the model that has a text.

    transcript: of the voice's prompt; empty for none
    languages: that the model claims to speak, BCP 47 tags; empty for no claim
    """
    claimed = [language for tag in languages if (language := primary(tag)) in TEXTS] or list(TEXTS)
    claimed.sort(key=lambda language: language != ENGLISH)  # the sort keeps the order of all others
    counts: dict[str, int] = {}
    for char in transcript:
        if name := script(char):
            counts[name] = counts.get(name, 0) + 1
    if "HIRAGANA" in counts or "KATAKANA" in counts:  # a Japanese text may have more Chinese characters than others
        counts = {"HIRAGANA": 1}
    if counts:
        most = max(counts, key=lambda name: counts[name])
        fitting = [language for language in claimed if most in SCRIPTS.get(language, (LATIN,))]
        fitting.sort(key=lambda language: language not in COMMON)
        claimed = fitting or claimed
    return TEXTS[claimed[0]]
