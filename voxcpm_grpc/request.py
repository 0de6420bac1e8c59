"""Requests, and the models that they are for: frozen values with numpy arrays, shared by fronts and engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

import numpy as np

from voxcpm_grpc.abilities import Abilities, AbilityName, Ends, LatentShape, Option, unknown_speaker
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason

Arrays = Mapping[str, np.ndarray]
"""The content of a part of a voice: names, shapes and dtypes are the model's."""
RISE_CHUNKS = 6
"""The limit of a request rises when a front has sent so many chunks, at the latest: about a second of speech."""
MAX_SEED = 2**63 - 1
MAX_DRAWN_SEED = 2**53 - 1
"""The largest seed that a server draws, which clients read exactly whose numbers are doubles, as in JavaScript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling parameters of a segment; None takes the default of the model. Raises InvalidRequest.

    The first ones are options that a model may have: `ModelInfo.options` has their ranges. The others are the engine's.
    """

    cfg_value: float | None = None
    inference_timesteps: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    code_temperature: float | None = None  # the codes of a step but its first have it, and the next ones
    code_top_k: int | None = None
    code_top_p: float | None = None
    seed: int = 0
    min_steps: int | None = None  # the speech cannot end before
    max_steps: int | None = None  # steps, at most; None: only the text length limits them
    steps_per_token: float | None = None  # steps for each token, above which speech runs on; the limit is a bit higher
    max_silent_steps: int | None = None  # silent steps after speech that end it; without a default any number

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise _out_of_range("seed", self.seed, "it must be from 0 to 2**63 - 1")
        least, most = self.min_steps, self.max_steps
        if least is not None and not least >= 0:
            raise _out_of_range("min_steps", least, "it must be 0 or more")
        if most is not None and not most >= 1:
            raise _out_of_range("max_steps", most, "it must be 1 or more")
        if least is not None and most is not None and not least <= most:
            raise _out_of_range("min_steps", least, f"it must not exceed max_steps, {most}")
        if (ratio := self.steps_per_token) is not None and not 0 < ratio <= 100:
            raise _out_of_range("steps_per_token", ratio, "it must be above 0, up to 100")
        if (silent := self.max_silent_steps) is not None and not silent >= 1:
            raise _out_of_range("max_silent_steps", silent, "it must be 1 or more")


OWN = ("seed", "min_steps", "max_steps", "steps_per_token", "max_silent_steps")
"""The fields of Sampling that are the engine's, and not options of a model."""
OPTIONS = tuple(field.name for field in fields(Sampling) if field.name not in OWN)
"""The fields of Sampling that are options of a model."""


def _out_of_range(name: str, value: float, rule: str) -> InvalidRequest:
    """The error for a value that does not satisfy a comparison; NaN satisfies none."""
    return InvalidRequest(f"{name} is {value}; {rule}", field=name)


class Role(StrEnum):
    """The role of a recording in a voice."""

    PROMPT = "prompt"  # the speech continues it
    REFERENCE = "reference"  # the speech takes its timbre


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VoicePart:
    """A recording, or generated speech, as a model has encoded it. Raises InvalidRequest.

    Only the model knows what the arrays mean. Those named in `tracks` have an entry for each step of the speech; the
    others describe the whole of it.
    """

    content: Arrays
    tracks: tuple[str, ...]
    text: str = ""  # a prompt has a transcript

    def __post_init__(self) -> None:
        lengths = [self.content[name].shape[:1] for name in self.tracks if name in self.content]
        if not self.content:
            fault = "no content"
        elif any(array.dtype.hasobject for array in self.content.values()):
            fault = "an array of objects"
        elif len(lengths) < len(self.tracks) or () in lengths or len({*lengths}) > 1:
            fault = "tracks that are missing or differ in length"
        else:
            return
        raise InvalidRequest(f"a part of the voice has {fault}; encode a recording that is not empty")

    @property
    def steps(self) -> int:
        """Its length in steps; 0 without tracks."""
        return len(self.content[self.tracks[0]]) if self.tracks else 0

    @property
    def nbytes(self) -> int:
        """Size of the arrays."""
        return sum(array.nbytes for array in self.content.values())

    def first(self, steps: int) -> VoicePart:
        """The first steps, with the arrays of the whole."""
        cut = {name: self.content[name][:steps] for name in self.tracks}
        return replace(self, content={**self.content, **cut})


def joined(parts: Sequence[VoicePart], text: str) -> VoicePart:
    """The steps of all parts one after the other, with the first array of each other name."""
    tracks = parts[0].tracks
    content = {name: array for part in reversed(parts) for name, array in part.content.items()}
    content |= {name: np.concatenate([part.content[name] for part in parts]) for name in tracks}
    return VoicePart(content=content, tracks=tracks, text=text)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Adapter:
    """A LoRA adapter. Its content is its identity: engines share memory and cached prompts by the fingerprint."""

    fingerprint: str  # the fingerprint is a hash of the files
    directory: str  # the directory has the files, where the engine runs
    name: str  # requests choose the adapter by it
    source: str  # the operator names the files so


def content_of(adapter: Adapter | None) -> str:
    """The fingerprint of an adapter; empty for none, the model alone."""
    return "" if adapter is None else adapter.fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """The voice: a prompt to continue, a reference for the timbre, or both (HiFi), or the name of a voice of the model.

    And the adapter that speaks.
    """

    prompt: VoicePart | None = None
    reference: VoicePart | None = None
    speaker: str = ""  # ModelInfo.speakers has it, in any case of letters
    adapter: Adapter | None = None  # None: the model speaks alone


class Priority(StrEnum):
    """The priority of a request for the slots and the memory of an engine."""

    INTERACTIVE = "interactive"  # somebody listens
    BATCH = "batch"  # the request runs when no interactive one needs its slot or its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A segment of text to speak.

    `style` describes the voice or the delivery, and `language` is that of the text, a BCP 47 tag; both may be empty.
    The noise depends on seed, `turn` and `segment`, so that segments differ and a repeated request sounds the same.
    `keep_speech` requests the speech at the end, with which the next segment can continue. `continues` means that audio
    of an earlier segment was sent, and a full queue accepts the request; `lead_seconds` of that audio are still to be
    played, and its speech is heard at `speed`. A batch request gets a slot after all interactive ones, and gives it up
    to them. `log_id` is the RPC's id. More text follows an `open` request. A text that `arrives` is read while it is
    spoken, also where it comes whole.
    """

    id: str
    text: str
    style: str = ""
    language: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    conditioning: Conditioning = field(default_factory=Conditioning)
    turn: int = 0
    segment: int = 0
    keep_speech: bool = False
    continues: bool = False
    lead_seconds: float = 0.0
    speed: float = 1.0
    log_id: str = ""
    priority: Priority = Priority.INTERACTIVE
    open: bool = False
    arrives: bool = False

    @property
    def is_batch(self) -> bool:
        return self.priority is Priority.BATCH

    def heard(self, seconds: float) -> float:
        """The seconds for which so many seconds of its speech are heard."""
        return seconds / self.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model of an engine, as fronts need to know it: they check requests by it."""

    name: str
    architecture: str
    fingerprint: str  # it is a hash of the checkpoint; voices belong to models with the same one
    input_sample_rate: int
    output_sample_rate: int
    samples_per_step: int  # samples of one step of output
    input_samples_per_step: int  # samples of one step of a recording
    max_model_len: int  # positions of a sequence
    max_slots: int
    max_queue: int | None = None  # requests that may wait for a slot; None: the engine alone knows
    options: tuple[Option, ...]
    ends: Ends
    abilities: Abilities
    latents: LatentShape | None = None  # None: the model has no latents
    tracks: tuple[str, ...]  # these arrays of a voice have an entry for each step
    speech_languages: tuple[str, ...] = ()  # a request may name these BCP 47 tags
    speakers: tuple[str, ...] = ()  # the built-in voices have these names, in lower case and in order
    reads_transcripts: bool = False  # a transcript of other words makes the speech of a prompt fail
    device: str
    dtype: str
    codec_dtype: str
    languages: tuple[str, ...] = ()  # the model claims to speak these BCP 47 tags; empty: it makes no claim

    @property
    def step_seconds(self) -> float:
        """Seconds of audio of a step."""
        return self.samples_per_step / self.output_sample_rate

    def can(self, ability: AbilityName) -> bool:
        return not getattr(self.abilities, ability)

    def require(self, ability: AbilityName, field: str) -> None:
        """Raise FailedPrecondition, for a field of a request, unless the model can do what it needs."""
        if self.can(ability):
            return
        reason = {
            "reference": Reason.REFERENCES_NOT_SUPPORTED,
            "hifi": Reason.REFERENCES_NOT_SUPPORTED,
            "style": Reason.STYLES_NOT_SUPPORTED,
            "language": Reason.LANGUAGES_NOT_SUPPORTED,
        }.get(ability, Reason.NOT_SUPPORTED_BY_MODEL)
        raise FailedPrecondition(self._sentence(ability), field=field, reason=reason, model=self.name)

    def require_style_with_prompt(self, field: str) -> None:
        """Raise InvalidRequest, for the style of a request with a prompt, unless the model can combine them."""
        if not self.can("style_with_prompt"):
            raise InvalidRequest(self._sentence("style_with_prompt"), field=field)

    def require_language(self, language: str) -> None:
        """Raise an error unless the model can be told to speak this language, a BCP 47 tag."""
        self.require("language", "language")
        if language not in self.speech_languages:
            allowed = ", ".join(self.speech_languages)
            raise InvalidRequest(f"language is {language!r}; it must be one of {allowed}", field="language")

    def _sentence(self, ability: AbilityName) -> str:
        return getattr(self.abilities, ability).replace("{model}", self.name)

    def option(self, name: str) -> Option | None:
        """The option of this name; None if the model lacks it."""
        return next((option for option in self.options if option.name == name), None)

    def completed(self, sampling: Sampling) -> Sampling:
        """The parameters with the defaults of the model. Raises InvalidRequest or FailedPrecondition."""
        has = [option.name for option in self.options]
        for name in OPTIONS:
            if getattr(sampling, name) is not None and name not in has:
                raise FailedPrecondition(
                    f"{self.name}, the model of this server, has no {name}; "
                    f"its sampling options are {', '.join(has) or 'none'}",
                    field=name,
                    reason=Reason.OPTION_NOT_SUPPORTED,
                    option=name,
                    allowed=", ".join(has),
                )
        missing: dict[str, float] = {}
        values = [getattr(sampling, name) for name in has]
        for index, option in enumerate(self.options):
            if values[index] is None:
                missing[option.name] = values[index] = option.default
            if not option.low <= values[index] <= option.high:
                raise _out_of_range(option.name, values[index], option.rule)
        for option, value in zip(self.options, values, strict=True):
            option.check_choice(value)
        ends, most = self.ends, sampling.max_steps
        if sampling.min_steps is None:
            missing["min_steps"] = ends.min_steps if most is None else min(ends.min_steps, most)
        if not sampling.steps_per_token:
            missing["steps_per_token"] = ends.steps_per_token
        if sampling.max_silent_steps is None and ends.max_silent_steps is not None:
            missing["max_silent_steps"] = ends.max_silent_steps
        return replace(sampling, **missing) if missing else sampling  # an engine gets what a front has completed

    def checked(self, request: Request) -> Request:
        """The request with the defaults of the model.

        Whether it may have no voice is for fronts to check: the first request of an engine has none with any model.
        Raises InvalidRequest, or FailedPrecondition for what the model or the server lacks.
        """
        voice = request.conditioning
        prompt, reference = voice.prompt is not None, voice.reference is not None
        needs: tuple[tuple[bool, AbilityName, str], ...] = (
            (prompt, "prompt", "prompt"),
            (reference, "reference", "reference"),
            (prompt and reference, "hifi", "reference"),
            (bool(voice.speaker), "speaker", "speaker"),
            (bool(request.style), "style", "style"),
            (voice.adapter is not None, "lora", "lora"),
            (request.open, "text_streaming", "text"),
        )
        for needed, ability, name in needs:
            if needed:
                self.require(ability, name)
        if request.style and prompt:
            self.require_style_with_prompt("style")
        if request.language:
            self.require_language(request.language)
        if voice.speaker and voice.speaker.lower() not in self.speakers:
            raise unknown_speaker(voice.speaker, self.speakers)
        sampling = self.completed(request.sampling)
        return request if sampling is request.sampling else replace(request, sampling=sampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The load of an engine, and its counters since its start."""

    running: int = 0
    waiting: int = 0
    swapped: int = 0  # streams that have given their slot up, and wait for a higher limit or for a slot
    slots_used: int = 0
    slots_total: int = 0
    pages_used: int = 0
    pages_total: int = 0
    page_size: int = 0  # positions of a page
    steps: int = 0
    chunks: int = 0  # chunks of audio that were made
    preemptions: int = 0
    swaps: int = 0  # times that a stream has given its slot up
    prefix_hit_tokens: int = 0
    prefill_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
