"""Requests as values. `requests` makes them from messages and checks their form."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from voxcpm_grpc.audio import AudioFormat
from voxcpm_grpc.request import Priority, Sampling
from voxcpm_server.wire.voice import Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Audio inside a request.

    format: None if the bytes have a header with the format
    name: path of the request field, for error messages
    """

    data: bytes
    format: AudioFormat | None
    name: str


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
class GenerateConfig:
    """The options of a Generate stream with all defaults filled in.

    max_lead: seconds of audio that may wait for a client that does not read
    max_queue: longest wait for a slot, in seconds
    """

    voice: VoiceChoice
    sampling: Sampling
    style: str
    output: AudioFormat
    segmentation: Segmentation
    continuity: Continuity
    max_lead: float
    max_queue: float
    priority: Priority = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Flush:
    tag: str
    end_turn: bool


@dataclass(frozen=True, slots=True)
class Interrupt:
    tag: str


@dataclass(frozen=True, slots=True)
class Finish:
    pass


@dataclass(frozen=True, slots=True)
class Idle:
    """Made by the server: the caller sent no message within the idle timeout."""


GenerateInput = GenerateConfig | Text | Flush | Interrupt | Finish | Idle


MAX_NAME = 200  # characters of a display name


class AudioRole(Enum):
    """The use of a recording in a voice."""

    PROMPT = "prompt"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceChange:
    """New properties of a stored voice; None keeps the old one. An empty name or empty labels remove it or them."""

    display_name: str | None = None
    labels: dict[str, str] | None = None
    ttl: float | None = None

    def of(self, voice: Voice) -> Voice:
        """The voice after the change."""
        return replace(
            voice,
            display_name=voice.display_name if self.display_name is None else self.display_name,
            labels=voice.labels if self.labels is None else self.labels,
            ttl=self.ttl or voice.ttl,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceOptions:
    """`ttl`: seconds from the last use to the expiry; None takes the server's default."""

    display_name: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    ttl: float | None = None

    @property
    def change(self) -> VoiceChange:
        """The change that an upload makes to a voice that is stored already: what is set here."""
        return VoiceChange(display_name=self.display_name or None, labels=self.labels or None, ttl=self.ttl)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A recording that follows on the stream.

    format: None if the bytes have a header with the format
    transcript: text of the recording, for prompts
    """

    format: AudioFormat | None
    transcript: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadConfig:
    """The first message of an upload.

    prompt, reference: an upload, the id or name of a stored voice, or None
    shared: True uses the prompt's recording as the reference too
    preview: format of the reconstructed audio in the reply; None for no preview
    """

    prompt: Upload | str | None = None
    reference: Upload | str | None = None
    shared: bool = False
    options: VoiceOptions = field(default_factory=VoiceOptions)
    preview: AudioFormat | None = None

    @property
    def roles(self) -> tuple[AudioRole, ...]:
        """The roles of the recordings that follow on the stream."""
        sources = {AudioRole.PROMPT: self.prompt, AudioRole.REFERENCE: self.reference}
        return tuple(role for role, source in sources.items() if isinstance(source, Upload))


@dataclass(frozen=True, slots=True)
class AudioPart:
    """Bytes of a recording from byte `offset` on. `role` is None for the only recording of the stream."""

    data: bytes
    offset: int
    role: AudioRole | None


@dataclass(frozen=True, slots=True)
class Digest:
    """Length and checksum of a recording. `role` is None for the only recording of the stream."""

    total_bytes: int
    sha256: bytes
    role: AudioRole | None


@dataclass(frozen=True, slots=True)
class Commit:
    digests: tuple[Digest, ...]


UploadInput = UploadConfig | AudioPart | Commit
