"""Requests: from messages to values, checked and with defaults filled in."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from voxcpm_grpc.audio import AudioFormat
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest
from voxcpm_grpc.request import MAX_SEED, ModelInfo, Priority, Sampling
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.types import MAX_SECONDS
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.wire import inputs
from voxcpm_server.wire.enums import CONTINUITIES, FIRST_SEGMENTS, KINDS, MODES, PREVIEWS, PRIORITIES, ROLES
from voxcpm_server.wire.fields import inside, read_enum, read_format, read_seconds, read_tag, refuse_control_characters
from voxcpm_server.wire.inputs import MAX_NAME, AudioRole
from voxcpm_server.wire.voice import VoiceKind

MAX_REQUEST_ID = 128
ALONE = ("no_voice", "preset", "voice")  # fields of a conditioning that exclude all others
MAX_LABELS, MAX_LABEL = 32, 200
MAX_LANGUAGE = 35
DETECTED = {  # recordings that name their format themselves
    pb.AUDIO_ENCODING_UNSPECIFIED,
    pb.AUDIO_ENCODING_WAV,
    pb.AUDIO_ENCODING_MP3,
    pb.AUDIO_ENCODING_OGG_OPUS,
    pb.AUDIO_ENCODING_FLAC,
}
LANGUAGE_TAG = re.compile(rf"(?=.{{0,{MAX_LANGUAGE}}}$)([A-Za-z]{{2,8}}(-[A-Za-z0-9]{{1,8}})*)?")


class RequestReader:
    """Reads the messages of streams for one model and one set of limits.

    Every method raises InvalidRequest with the path of the field at fault, or FailedPrecondition.
    """

    def __init__(self, info: ModelInfo, limits: LimitSettings) -> None:
        self._info = info
        self._limits = limits

    def generate(self, message: pb.GenerateRequest) -> inputs.GenerateInput:
        match message.WhichOneof("request"):
            case "config":
                return self.generate_config(message.config)
            case "text":
                return inputs.Text(message.text)
            case "flush":
                return inputs.Flush(read_tag(message.flush.tag, "flush.tag"), message.flush.end_turn)
            case "interrupt":
                return inputs.Interrupt(read_tag(message.interrupt.tag, "interrupt.tag"))
            case "finish":
                return inputs.Finish()
            case _:
                raise _empty_message("config, text, flush, interrupt or finish")

    def generate_config(self, config: pb.GenerateConfig) -> inputs.GenerateConfig:
        with inside("config"):
            voice = self._voice(config.conditioning)
            style = self._style(config.turn.style)
            if style and (voice.hifi or voice.prompt):
                raise style_with_prompt_error("turn.style")
            priority = read_enum(PRIORITIES, config.priority, "priority")
            lead, queue = self._limits.max_lead_seconds, self._limits.max_queue_seconds
            if priority is Priority.BATCH:
                queue = self._limits.max_batch_queue_seconds
            return inputs.GenerateConfig(
                voice=voice,
                sampling=self._sampling(config.turn.sampling),
                style=style,
                output=self._output(config.output, "output"),
                segmentation=self._segmentation(config.segmentation),
                continuity=read_enum(CONTINUITIES, config.segmentation.continuity, "segmentation.continuity"),
                max_lead=min(read_seconds(config.pacing, "max_lead", "pacing.max_lead") or lead, lead),
                max_queue=min(read_seconds(config, "max_queue_time") or queue, queue),
                priority=priority,
            )

    def _segmentation(self, segmentation: pb.Segmentation) -> inputs.Segmentation:
        with inside("segmentation"):
            limit = self._limits.max_segment_chars
            chars = segmentation.max_chars if segmentation.HasField("max_chars") else limit
            if chars < 1:
                raise InvalidRequest("max_chars is 0; it must be 1 or more", field="max_chars")
            if not LANGUAGE_TAG.fullmatch(segmentation.language):
                raise InvalidRequest(
                    f"language is {segmentation.language[:MAX_LANGUAGE]!r}; it must be a BCP 47 tag such as de or "
                    f"pt-BR, of at most {MAX_LANGUAGE} characters",
                    field="language",
                )
            wait = read_seconds(segmentation, "max_wait", or_zero=True)
            return inputs.Segmentation(
                mode=read_enum(MODES, segmentation.mode, "mode"),
                max_chars=min(chars, limit),
                max_wait=inputs.DEFAULT_MAX_WAIT if wait is None else min(wait, MAX_SECONDS),
                language=segmentation.language.partition("-")[0].lower(),
                first_segment=read_enum(FIRST_SEGMENTS, segmentation.first_segment, "first_segment"),
            )

    def _sampling(self, sampling: pb.Sampling) -> Sampling:
        allowed = self._info.timesteps
        given = {field.name: value for field, value in sampling.ListFields()}
        given.setdefault("seed", secrets.randbelow(MAX_SEED + 1))
        given.setdefault("inference_timesteps", default_timesteps(self._info))
        given.setdefault("min_steps", min(Sampling().min_steps, given.get("max_steps", MAX_SEED)))
        with inside("turn.sampling"):
            checked = Sampling(**given)
            if checked.inference_timesteps not in allowed:
                raise FailedPrecondition(
                    f"inference_timesteps is {checked.inference_timesteps} and this server runs "
                    f"{', '.join(map(str, allowed))}",
                    field="inference_timesteps",
                )
        return checked

    def _style(self, style: str) -> str:
        limit = self._limits.max_style_chars
        if len(style) > limit:  # first, because the rest looks at every character
            raise InvalidRequest(
                f"the style has {len(style)} characters and the limit is {limit}; shorten it", field="turn.style"
            )
        bare = " ".join(style.translate(str.maketrans("", "", "()（）")).split())
        return "".join(c for c in bare if c.isprintable())

    def _voice(self, conditioning: pb.Conditioning) -> inputs.VoiceChoice:
        prompt, reference = conditioning.WhichOneof("prompt"), conditioning.WhichOneof("reference")
        with inside("conditioning"):
            given = [field for field in ALONE if getattr(conditioning, field)]
            if given and (len(given) > 1 or prompt or reference or conditioning.hifi_id):
                alone = given[0]
                raise InvalidRequest(f"{alone} excludes every other voice; drop {alone} or the others", field=alone)
            if conditioning.hifi_id and (prompt or reference):
                raise InvalidRequest(
                    "hifi_id replaces prompt and reference; drop hifi_id or the others", field="hifi_id"
                )
            for field in ("prompt_id", "reference_id"):
                if field in (prompt, reference) and not getattr(conditioning, field):
                    raise InvalidRequest(f"{field} is empty; set the id or name of a stored voice", field=field)
            inline = conditioning.inline_prompt
            return inputs.VoiceChoice(
                voice=conditioning.voice,
                prompt=conditioning.prompt_id or (self._inline_prompt(inline) if prompt == "inline_prompt" else None),
                reference=conditioning.reference_id
                or (
                    self._source(conditioning.inline_reference, "inline_reference")
                    if reference == "inline_reference"
                    else None
                ),
                hifi=conditioning.hifi_id,
                preset=conditioning.preset,
                no_voice=conditioning.no_voice,
            )

    def _inline_prompt(self, prompt: pb.InlinePrompt) -> inputs.InlinePrompt:
        return inputs.InlinePrompt(
            source=self._source(prompt, "inline_prompt"),
            transcript=self._transcript(prompt.transcript, "inline_prompt.transcript"),
        )

    def _source(self, holder: Any, name: str) -> inputs.Recording | inputs.RawLatents:
        field = f"config.conditioning.{name}"
        match holder.WhichOneof("source"):
            case "audio":
                data, limit = holder.audio.data, self._limits.max_inline_audio_bytes
                if len(data) > limit:
                    raise InvalidRequest(
                        f"the inline audio has {len(data)} bytes and the limit is {limit}; upload it as a voice",
                        field=f"{name}.audio.data",
                    )
                format = self._upload_format(holder.audio.format, f"{name}.audio.format")
                return inputs.Recording(data=data, format=format, name=f"{field}.audio.data")
            case "latents":
                latents = holder.latents
                return inputs.RawLatents(
                    data=latents.data,
                    dim=latents.feat_dim,
                    fingerprint=latents.model_fingerprint,
                    name=f"{field}.latents",
                )
            case _:
                raise InvalidRequest(f"{name} is empty; set audio or latents", field=name)

    def _transcript(self, transcript: str, field: str) -> str:
        """The transcript without control characters. White space at its end counts: the text follows directly."""
        limit = self._limits.max_transcript_chars
        if len(transcript) > limit:  # first, because the rest looks at every character
            raise InvalidRequest(
                f"the transcript has {len(transcript)} characters and the limit is {limit}; use a shorter recording",
                field=field,
            )
        kept = "".join(c for c in transcript if c.isspace() or c.isprintable() or c in "\u200c\u200d")
        if not any(c.isalnum() for c in kept):
            raise InvalidRequest("the transcript is empty; write the text of the recording", field=field)
        return kept

    def _output(self, format: pb.AudioFormat, name: str) -> AudioFormat:
        return read_format(format, pb.AUDIO_ENCODING_PCM_S16LE, self._info.output_sample_rate, name)

    def _upload_format(self, format: pb.AudioFormat, name: str) -> AudioFormat | None:
        """The format of raw PCM; None for a file, which has a header with its format."""
        if format.encoding in DETECTED:
            return None
        return read_format(format, format.encoding, self._info.input_sample_rate, name)

    @property
    def default_output(self) -> AudioFormat:
        """The format of audio if the caller does not set one."""
        return self._output(pb.AudioFormat(), "output")

    # ---- uploads

    def upload(self, message: Any) -> inputs.UploadInput:
        """Read an AddPromptRequest, AddReferenceRequest, AddHifiRequest or EncodeLatentsRequest."""
        match message.WhichOneof("request"):
            case "config":
                with inside("config"):
                    return self._upload_config(message.config)
            case "audio":
                part = message.audio
                return inputs.AudioPart(part.data, part.offset_bytes, read_enum(ROLES, part.role, "audio.role"))
            case "commit":
                if len(message.commit.digests) > len(AudioRole):
                    raise InvalidRequest(
                        f"the commit has {len(message.commit.digests)} digests and the limit is {len(AudioRole)}; "
                        "send one for each recording",
                        field="commit.digests",
                    )
                return inputs.Commit(
                    tuple(
                        inputs.Digest(d.total_bytes, d.sha256, read_enum(ROLES, d.role, "commit.digests.role"))
                        for d in message.commit.digests
                    )
                )
            case _:
                raise _empty_message("config, audio or commit")

    def _upload_config(self, config: Any) -> inputs.UploadConfig:
        if isinstance(config, pb.EncodeLatentsConfig):
            upload = inputs.Upload(format=self._upload_format(config.source, "source"))
            prompt = read_enum(ROLES, config.role, "role") is AudioRole.PROMPT
            if config.role == pb.AUDIO_ROLE_UNSPECIFIED:
                raise InvalidRequest(
                    "role is not set; set it, because the two roles pad a recording differently", field="role"
                )
            return inputs.UploadConfig(prompt=upload if prompt else None, reference=None if prompt else upload)
        sources: dict[str, Any] = {}
        if isinstance(config, pb.AddPromptConfig):
            sources["prompt"] = inputs.Upload(
                format=self._upload_format(config.source, "source"),
                transcript=self._transcript(config.transcript, "transcript"),
            )
        elif isinstance(config, pb.AddReferenceConfig):
            sources["reference"] = inputs.Upload(format=self._upload_format(config.source, "source"))
        else:
            sources = self._hifi_sources(config)
        preview = read_enum(PREVIEWS, config.preview.mode, "preview.mode")
        return inputs.UploadConfig(
            options=_options(config.options),
            preview=self._output(config.preview.output, "preview.output") if preview else None,
            **sources,
        )

    def _hifi_sources(self, config: pb.AddHifiConfig) -> dict[str, Any]:
        prompt: Any = config.prompt_id
        if config.WhichOneof("prompt") == "uploaded_prompt":
            prompt = inputs.Upload(
                format=self._upload_format(config.uploaded_prompt.source, "uploaded_prompt.source"),
                transcript=self._transcript(config.uploaded_prompt.transcript, "uploaded_prompt.transcript"),
            )
        if not prompt:
            raise InvalidRequest("the prompt is missing; set prompt_id or uploaded_prompt", field="prompt_id")
        reference: Any = config.reference_id or None
        shared = config.WhichOneof("reference") == "same_as_prompt"
        if config.WhichOneof("reference") == "uploaded_reference":
            reference = inputs.Upload(
                format=self._upload_format(config.uploaded_reference.source, "uploaded_reference.source")
            )
        if shared and not isinstance(prompt, inputs.Upload):
            raise InvalidRequest(
                "same_as_prompt needs the prompt's recording; upload it, or name a stored reference",
                field="same_as_prompt",
            )
        if not shared and reference is None:
            raise InvalidRequest(
                "the reference is missing; set reference_id, uploaded_reference or same_as_prompt", field="reference_id"
            )
        return {"prompt": prompt, "reference": reference, "shared": shared}


def _empty_message(choices: str) -> InvalidRequest:
    """The error for a message that sets no field of its oneof, which all streams name `request`."""
    return InvalidRequest(f"a message of the stream is empty; set {choices}", field="request")


def style_with_prompt_error(field: str) -> InvalidRequest:
    """The error for a stream with a style and a prompt."""
    return InvalidRequest(
        "a style cannot be combined with a prompt, because the model would read it aloud; drop one of them", field=field
    )


def voice_id(request: pb.GetVoiceRequest) -> str:
    """The id or name of the voice."""
    return request.id


def deletion(request: pb.DeleteVoiceRequest) -> tuple[str, bool, bool]:
    """The id or name of the voice, `cascade` and `allow_missing`."""
    return request.id, request.cascade, request.allow_missing


def listing(request: pb.ListVoicesRequest) -> tuple[VoiceKind | None, dict[str, str], int, str]:
    """Kind, labels, page size and page token."""
    return read_enum(KINDS, request.kind, "kind"), dict(request.labels), request.page_size, request.page_token


def request_id(request: Any) -> str:
    """The request id in a config message of any stream; "" for every other message. Raises InvalidRequest."""
    if request.WhichOneof("request") != "config":
        return ""
    has_options = hasattr(request.config, "options")
    id = request.config.options.request_id if has_options else request.config.request_id
    if len(id) > MAX_REQUEST_ID or not id.isprintable():
        raise InvalidRequest(
            f"request_id must be at most {MAX_REQUEST_ID} printable characters; it has {len(id)}",
            field="config.options.request_id" if has_options else "config.request_id",
        )
    return id


def default_timesteps(info: ModelInfo) -> int:
    """The official number of timesteps, or the nearest one that the server runs."""
    return min(info.timesteps, key=lambda count: abs(count - Sampling().inference_timesteps))


def update(request: pb.UpdateVoiceRequest) -> tuple[str, inputs.VoiceChange]:
    """The voice and its change."""
    name = request.display_name if request.HasField("display_name") else None
    change = inputs.VoiceChange(
        display_name=None if name is None else _display_name(name, "display_name"),
        labels=_labels(request.labels.labels, "labels") if request.HasField("labels") else None,
        ttl=_ttl(request, "ttl"),
    )
    if change == inputs.VoiceChange():
        raise InvalidRequest("there is nothing to change; set display_name, labels or ttl", field="display_name")
    return request.id, change


def _options(options: pb.VoiceOptions) -> inputs.VoiceOptions:
    return inputs.VoiceOptions(
        display_name=_display_name(options.display_name, "options.display_name"),
        labels=_labels(options.labels, "options.labels"),
        ttl=_ttl(options, "options.ttl"),
    )


def _display_name(name: str, field: str) -> str:
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"display_name has {len(name)} characters and the limit is {MAX_NAME}", field=field)
    refuse_control_characters("display_name", name, field)
    return name


def _labels(given: Mapping[str, str], field: str) -> dict[str, str]:
    if len(given) > MAX_LABELS or any(len(text) > MAX_LABEL for pair in given.items() for text in pair):
        raise InvalidRequest(
            f"the limit is {MAX_LABELS} labels, with keys and values of at most {MAX_LABEL} characters", field=field
        )
    for text in (*given, *given.values()):
        refuse_control_characters("labels", text, field)
    return dict(given)


def _ttl(message: Any, field: str) -> float | None:
    ttl = read_seconds(message, "ttl", field)
    if ttl is not None and ttl > MAX_SECONDS:
        raise InvalidRequest(f"ttl is {ttl:g} s and the limit is {MAX_SECONDS:g}", field=field)
    return ttl
