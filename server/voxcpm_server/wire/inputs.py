"""What callers say, free of protobuf: made by `convert`, checked there for form, acted on by everything else."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from voxcpm_grpc.audio import AudioFormat
from voxcpm_grpc.request import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Encoded audio. `format` is None when the container tells. `name` is the request field, for errors."""

    data: bytes
    format: AudioFormat | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLatents:
    """Latents as sent: float32 little-endian [frames, dim]. An empty fingerprint makes no claim."""

    data: bytes
    dim: int
    fingerprint: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinePrompt:
    source: Recording | RawLatents
    transcript: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceChoice:
    """The voice a stream asks for. Strings are ids of stored voices, or a preset's name; "" and None mean none.

    `no_voice` asks for the one that the model chooses, also where the server has a default voice.
    """

    prompt: str | InlinePrompt | None = None
    reference: str | Recording | RawLatents | None = None
    hifi: str = ""
    preset: str = ""
    no_voice: bool = False

    @property
    def is_open(self) -> bool:
        """True if the caller left the voice to the server."""
        return self == VoiceChoice()

    @property
    def name(self) -> str:
        """The voice in a word, as callers are told it; empty if there is none."""
        sources = (self.prompt, self.reference)
        names = [source if isinstance(source, str) else "inline" for source in sources if source is not None]
        return self.preset or self.hifi or "+".join(dict.fromkeys(names))

    @property
    def recordings(self) -> tuple[Recording | RawLatents, ...]:
        """What was sent inline."""
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
    """The rules by which text is cut.

    max_chars: longest segment, in code points
    max_wait: seconds of a pause after which a complete sentence is spoken; 0 for never
    language: primary subtag of the text's language, such as `de`; empty takes the rules of the script
    first_segment: whether the first sentence of a turn may be cut into clauses
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
    """Everything that one Generate stream decided, defaults filled in. Times in seconds."""

    request_id: str
    voice: VoiceChoice
    sampling: Sampling
    style: str
    output: AudioFormat
    segmentation: Segmentation
    continuity: Continuity
    max_lead: float
    max_queue: float


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
class Silence:
    """Not said, but noticed: the caller did not say anything for too long."""


GenerateInput = GenerateConfig | Text | Flush | Interrupt | Finish | Silence


class Role(Enum):
    PROMPT = "prompt"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceOptions:
    """`ttl` in seconds since the last use; None takes the server's default."""

    display_name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    ttl: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A recording to be uploaded on this stream. `transcript` belongs to prompts."""

    format: AudioFormat | None
    transcript: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadConfig:
    """What an upload stream makes.

    `prompt` and `reference` are an upload, the id of a stored voice, or None. `shared` lets the uploaded prompt
    recording be the reference too. `preview` None asks for none.
    """

    request_id: str
    prompt: Upload | str | None = None
    reference: Upload | str | None = None
    shared: bool = False
    options: VoiceOptions = field(default_factory=VoiceOptions)
    preview: AudioFormat | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        """The recordings that travel on this stream."""
        sources = {Role.PROMPT: self.prompt, Role.REFERENCE: self.reference}
        return tuple(role for role, source in sources.items() if isinstance(source, Upload))


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a recording at a position. `role` None: the only recording of the stream."""

    data: bytes
    offset: int
    role: Role | None


@dataclass(frozen=True, slots=True)
class Digest:
    total_bytes: int
    sha256: bytes
    role: Role | None


@dataclass(frozen=True, slots=True)
class Commit:
    digests: tuple[Digest, ...]


UploadInput = UploadConfig | Part | Commit
