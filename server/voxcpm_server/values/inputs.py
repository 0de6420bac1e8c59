"""Requests as values. `requests` makes them from messages and checks their form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from voxcpm_grpc.audio import NO_EFFECTS, AudioFormat, Effects
from voxcpm_grpc.audio.uploads import NO_CLEANING, Cleaning
from voxcpm_grpc.request import Adapter, Priority, Role, Sampling
from voxcpm_server.values.voice import Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Audio inside a request.

    format: None if the bytes have a header with the format
    name: path of the request field, for error messages
    cleaning: changes before it is encoded
    """

    data: bytes
    format: AudioFormat | None
    name: str
    cleaning: Cleaning = NO_CLEANING


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLatents:
    """Latents inside a request.

    data: float32 little-endian [frames, dim]
    fingerprint: the model that made them; empty skips the check
    name: path of the request field, for error messages
    """

    data: bytes
    dim: int
    fingerprint: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinePrompt:
    """A prompt inside a request."""

    source: Recording | RawLatents
    transcript: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceChoice:
    """The voice that a stream asks for.

    voice: id or name of a voice of any kind; empty for none
    prompt, reference: a string is the id or name of a voice; None for none
    hifi: id or name of a hifi voice; empty for none
    preset: name of a preset; empty for none
    no_voice: True lets the model choose the voice, even if the server has a default voice
    """

    voice: str = ""
    prompt: str | InlinePrompt | None = None
    reference: str | Recording | RawLatents | None = None
    hifi: str = ""
    preset: str = ""
    no_voice: bool = False

    @property
    def inline(self) -> tuple[Recording | RawLatents, ...]:
        """The recordings and latents inside the request."""
        sources = (self.prompt.source if isinstance(self.prompt, InlinePrompt) else None, self.reference)
        return tuple(source for source in sources if isinstance(source, Recording | RawLatents))


class SegmentationMode(Enum):
    MANUAL = "manual"
    SENTENCE = "sentence"
    TOKENS = "tokens"  # text is spoken while it arrives


DEFAULT_MAX_WAIT = 0.25  # seconds


class FirstSegment(Enum):
    SENTENCE = "sentence"
    EAGER = "eager"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segmentation:
    """The rules by which text is cut into segments.

    max_chars: longest segment, in code points
    max_wait: seconds of a pause after which a complete sentence is spoken; 0 for never
    language: primary subtag of the text's language, such as `de`; empty takes the rules of the script
    first_segment: EAGER cuts the first sentence of a turn into clauses
    """

    mode: SegmentationMode = SegmentationMode.SENTENCE
    max_chars: int = 400
    max_wait: float = DEFAULT_MAX_WAIT
    language: str = ""
    first_segment: FirstSegment = FirstSegment.SENTENCE


class Continuity(Enum):
    INDEPENDENT = "independent"
    CARRY = "carry"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnConfig:
    """The settings of turns.

    style: a description of the voice or the delivery; empty for none
    style_in_text: True lets the text begin with such a description in parentheses
    language: the language to speak, one of ModelInfo.speech_languages; empty lets the model find it
    effects: speed and volume of the audio
    normalize: True to speak numbers, dates and symbols in words
    max_attempts: generations of a segment whose speech runs on; more than 1 holds each segment back until it is whole
    adapter: None is the model alone
    has_adapter: True if `adapter` was chosen, also to be none; False speaks with the adapter of the voice
    """

    sampling: Sampling = field(default_factory=Sampling)
    style: str = ""
    style_in_text: bool = False
    language: str = ""
    effects: Effects = NO_EFFECTS
    normalize: bool = False
    max_attempts: int = 1
    adapter: Adapter | None = None
    has_adapter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateConfig:
    """The options of a Generate stream with all defaults filled in.

    turn: the settings of turns until the caller changes them
    asks_to_carry: True if `continuity` is CARRY by the caller's wish, and not by default
    max_lead: seconds of audio that may wait for a client that does not read
    max_queue: longest wait for a slot, in seconds
    lexicon: words, and the spellings that are spoken instead of them
    trim_leading_silence: seconds of silence at the start of each turn that are left out at most; 0 for none
    word_timestamps: True to send the times of the words
    """

    voice: VoiceChoice
    turn: TurnConfig
    output: AudioFormat
    segmentation: Segmentation
    continuity: Continuity
    asks_to_carry: bool = False
    max_lead: float
    max_queue: float
    priority: Priority = Priority.INTERACTIVE
    lexicon: Mapping[str, str] = field(default_factory=dict[str, str])
    trim_leading_silence: float = 0.0
    word_timestamps: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Flush:
    tag: str
    end_turn: bool


@dataclass(frozen=True, slots=True)
class Pause:
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """`played_samples`: position in the stream up to which it was heard; None if the caller does not say."""

    tag: str
    played_samples: int | None = None


@dataclass(frozen=True, slots=True)
class TurnChange:
    """Other settings for the turns that open from now on. `has_seed`: False keeps the seed of the stream."""

    config: TurnConfig
    has_seed: bool


@dataclass(frozen=True, slots=True)
class Finish:
    pass


@dataclass(frozen=True, slots=True)
class Idle:
    """The server makes this: the caller sent no message within the idle timeout."""


GenerateInput = GenerateConfig | TurnChange | Text | Flush | Pause | Interrupt | Finish | Idle


MAX_NAME = 200  # characters of a display name


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceChange:
    """New properties of a stored voice; None keeps the old one. What is empty removes the name, labels or adapter.

    of_name: the name that is changed, with its labels; empty for the one that the voice shows
    """

    display_name: str | None = None
    labels: dict[str, str] | None = None
    ttl: float | None = None
    lora: str | None = None
    of_name: str = ""

    def of(self, voice: Voice) -> Voice:
        """The voice after the change."""
        if self.display_name is not None or self.labels is not None:
            voice = voice.shown_as(self.of_name)
            if self.display_name is not None:
                voice = voice.renamed(self.display_name)
            if self.labels is not None:
                voice = replace(voice, labels=self.labels)
        return replace(voice, ttl=self.ttl or voice.ttl, lora=voice.lora if self.lora is None else self.lora)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceOptions:
    """The properties that an upload gives to a voice.

    ttl: seconds from the last use to the expiry; None takes the server's default
    lora: name of a LoRA adapter; empty for the model alone; None is empty, and keeps that of a stored voice
    """

    display_name: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    ttl: float | None = None
    lora: str | None = None

    def of(self, voice: Voice) -> Voice:
        """A voice that is stored already, after an upload of its recording with these properties.

        It gets the name beside those that it has, and keeps for as long as any of its names was promised.
        """
        if self.display_name:
            voice = voice.with_name(self.display_name, self.labels or None)
        elif self.labels:
            voice = replace(voice, labels=self.labels)
        ttl = self.ttl or voice.ttl
        return replace(
            voice,
            ttl=max(ttl, voice.ttl) if voice.other_names else ttl,
            lora=voice.lora if self.lora is None else self.lora,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A recording that follows on the stream.

    format: None if the bytes have a header with the format
    transcript: text of the recording, for prompts
    cleaning: changes before it is encoded
    """

    format: AudioFormat | None
    transcript: str = ""
    cleaning: Cleaning = NO_CLEANING


class PreviewMode(Enum):
    NONE = "none"
    RECONSTRUCTION = "reconstruction"
    SYNTHESIS = "synthesis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The audio of a stored voice that an upload asks for.

    text: the text of SYNTHESIS; empty for the default
    config: the stream that speaks the text; its output is that of all audio, its seed that of auditions without one
    auditions: True if auditions follow the commit
    """

    mode: PreviewMode
    text: str
    config: GenerateConfig
    auditions: bool

    @property
    def speaks(self) -> bool:
        """True if the stream speaks texts."""
        return self.mode is PreviewMode.SYNTHESIS or self.auditions


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadConfig:
    """The first message of an upload.

    prompt, reference: an upload, the id or name of a stored voice, or None
    shared: True uses the prompt's recording as the reference too
    preview: None for an upload without any audio in its reply
    """

    prompt: Upload | str | None = None
    reference: Upload | str | None = None
    shared: bool = False
    options: VoiceOptions = field(default_factory=VoiceOptions)
    preview: Preview | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the recordings that follow on the stream."""
        sources = {Role.PROMPT: self.prompt, Role.REFERENCE: self.reference}
        return tuple(role for role, source in sources.items() if isinstance(source, Upload))


@dataclass(frozen=True, slots=True)
class AudioPart:
    """Bytes of a recording from byte `offset` on. `role` is None for the only recording of the stream."""

    data: bytes
    offset: int
    role: Role | None


@dataclass(frozen=True, slots=True)
class Digest:
    """Length and checksum of a recording. `role` is None for the only recording of the stream."""

    total_bytes: int
    sha256: bytes
    role: Role | None


@dataclass(frozen=True, slots=True)
class Commit:
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audition:
    """A text to speak with the voice that the stream has stored.

    config: the stream that speaks it, without the output
    has_seed: True if the caller set the seed of the config
    """

    text: str
    tag: str
    config: GenerateConfig
    has_seed: bool


UploadInput = UploadConfig | AudioPart | Commit | Audition
