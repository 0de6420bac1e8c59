"""The speakers of the bundled voice: the one place that says which there are and what users call them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Voice:
    name: str  # in indexes, file names and reports
    flite: str  # symbol of the teacher's voice, and of its library
    description: str  # what a user writes in front of the text, in parentheses, to hear it

    def tagged(self, text: str) -> str:
        """Text that asks for this voice by design, in the spelling of the official model."""
        return f"({self.description}){text}"


VOICES = (
    Voice("slt", "cmu_us_slt", "a woman's voice"),
    Voice("rms", "cmu_us_rms", "a man's voice"),
    Voice("awb", "cmu_us_awb", "a Scottish man's voice"),
)


def find(name: str) -> Voice:
    """The voice of that name. Raises ValueError that lists the names."""
    for voice in VOICES:
        if voice.name == name:
            return voice
    raise ValueError(f"there is no voice {name!r}; the voices are {', '.join(voice.name for voice in VOICES)}")
