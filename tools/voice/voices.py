"""The speakers of the bundled voice: their names and descriptions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Voice:
    """A speaker."""

    name: str  # in indexes, file names and reports, and of the preset
    kokoro: str  # name of the teacher's voice
    description: str  # selects the voice when a user writes it before the text, in parentheses
    about: str  # a sentence for listeners
    british: bool = False  # accent of the teacher's phonemes
    speed: float = 1.0  # of the teacher's own pace

    def tagged(self, text: str) -> str:
        """The text with the description of this voice, as the official model expects it."""
        return f"({self.description}){text}"


VOICES = (  # the first one speaks when no voice is named
    Voice("hazel", "af_heart", "a woman's voice", "An American woman, warm and close, who takes her time.", speed=0.9),
    Voice("miles", "am_michael", "a man's voice", "An American man, calm and low, with an even pace.", speed=0.9),
    Voice("george", "bm_george", "a British man's voice", "A British man, deep and measured.", british=True),
)


def find(name: str) -> Voice:
    """The voice of a name. Raises ValueError with all names if there is none."""
    for voice in VOICES:
        if voice.name == name:
            return voice
    raise ValueError(f"unknown voice {name!r}; the voices are {', '.join(voice.name for voice in VOICES)}")
