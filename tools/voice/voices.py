"""The speakers of the bundled voice: their names and descriptions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Voice:
    """A speaker."""

    name: str  # in indexes, file names and reports
    flite: str  # symbol of the teacher's voice, and of its library
    description: str  # selects the voice when a user writes it before the text, in parentheses

    def tagged(self, text: str) -> str:
        """The text with the description of this voice, as the official model expects it."""
        return f"({self.description}){text}"


VOICES = (
    Voice("slt", "cmu_us_slt", "a woman's voice"),
    Voice("rms", "cmu_us_rms", "a man's voice"),
    Voice("awb", "cmu_us_awb", "a Scottish man's voice"),
)


def find(name: str) -> Voice:
    """The voice of a name. Raises ValueError with all names if there is none."""
    for voice in VOICES:
        if voice.name == name:
            return voice
    raise ValueError(f"unknown voice {name!r}; the voices are {', '.join(voice.name for voice in VOICES)}")
