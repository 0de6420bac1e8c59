"""Requests: from messages to values, checked and with defaults filled in."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

from voxcpm_grpc.audio import NO_EFFECTS, AudioFormat, Effects
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest
from voxcpm_grpc.request import MAX_SEED, ModelInfo, Priority, Sampling
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.types import MAX_SECONDS
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.text import packages
from voxcpm_server.wire import inputs
from voxcpm_server.wire.enums import CONTINUITIES, FIRST_SEGMENTS, MODES, PREVIEWS, PRIORITIES, ROLES
from voxcpm_server.wire.fields import inside, read_cleaning, read_enum, read_float, read_format, read_seconds, read_tag
from voxcpm_server.wire.inputs import AudioRole, PreviewMode
from voxcpm_server.wire.text_requests import read_ends, read_lexicon, read_lora, read_max_attempts, read_pause
from voxcpm_server.wire.voice_requests import options

MAX_REQUEST_ID = 128
ALONE = ("no_voice", "preset", "voice")  # fields of a conditioning that exclude all others
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

    Every method raises InvalidRequest with the path of the field at fault, or FailedPrecondition. `find_lora` raises
    NotFound for the name of a LoRA adapter that the model does not have.
    """

    def __init__(self, info: ModelInfo, limits: LimitSettings, find_lora: Callable[[str], object]) -> None:
        self._info = info
        self._limits = limits
        self._find_lora = find_lora

    def generate(self, message: pb.GenerateRequest) -> inputs.GenerateInput:
        match message.WhichOneof("request"):
            case "config":
                return self.generate_config(message.config)
            case "text":
                return inputs.Text(message.text)
            case "flush":
                return inputs.Flush(read_tag(message.flush.tag, "flush.tag"), message.flush.end_turn)
            case "interrupt":
                return self._interrupt(message.interrupt)
            case "pause":
                return read_pause(message.pause)
            case "turn":
                turn = message.turn
                return inputs.TurnChange(self._turn(turn), has_seed=turn.sampling.HasField("seed"))
            case "finish":
                return inputs.Finish()
            case _:
                raise _empty_message("config, text, flush, interrupt, turn, pause or finish")

    def generate_config(self, config: pb.GenerateConfig) -> inputs.GenerateConfig:
        with inside("config"):
            return self._generate_config(config)

    def _generate_config(self, config: pb.GenerateConfig) -> inputs.GenerateConfig:
        voice = self._voice(config.conditioning)
        turn = self._turn(config.turn)
        if turn.style and (voice.hifi or voice.prompt):
            raise style_with_prompt_error("turn.style")
        priority = read_enum(PRIORITIES, config.priority, "priority")
        lead, queue = self._limits.max_lead_seconds, self._limits.max_queue_seconds
        if priority is Priority.BATCH:
            queue = self._limits.max_batch_queue_seconds
        return inputs.GenerateConfig(
            voice=voice,
            turn=turn,
            output=self._output(config.output, "output"),
            segmentation=self._segmentation(config.segmentation),
            continuity=read_enum(CONTINUITIES, config.segmentation.continuity, "segmentation.continuity"),
            max_lead=min(read_seconds(config.pacing, "max_lead", "pacing.max_lead") or lead, lead),
            max_queue=min(read_seconds(config, "max_queue_time") or queue, queue),
            priority=priority,
            lexicon=read_lexicon(config.lexicon),
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

    def _interrupt(self, interrupt: pb.Interrupt) -> inputs.Interrupt:
        played = interrupt.played_samples if interrupt.HasField("played_samples") else None
        return inputs.Interrupt(read_tag(interrupt.tag, "interrupt.tag"), played)

    def _turn(self, turn: pb.TurnConfig) -> inputs.TurnConfig:
        with inside("turn"):
            if turn.normalize:
                packages.check()
            lora = read_lora(turn, self._find_lora)
            return inputs.TurnConfig(
                sampling=read_ends(turn, self._sampling(turn.sampling), self._info),
                style=self._style(turn.style),
                effects=self._effects(turn),
                normalize=turn.normalize,
                max_attempts=read_max_attempts(turn),
                lora=lora or "",
                has_lora=lora is not None,
            )

    def _effects(self, turn: pb.TurnConfig) -> Effects:
        effects = Effects(
            speed=read_float(turn, "speed", NO_EFFECTS.speed),
            gain_db=read_float(turn, "volume_gain_db", NO_EFFECTS.gain_db),
        )
        effects.check(self._info.output_sample_rate)
        return effects

    def _sampling(self, sampling: pb.Sampling) -> Sampling:
        allowed = self._info.timesteps
        given = {field.name: value for field, value in sampling.ListFields()}
        given.setdefault("seed", secrets.randbelow(MAX_SEED + 1))
        given.setdefault("inference_timesteps", default_timesteps(self._info))
        given.setdefault("min_steps", min(Sampling().min_steps, given.get("max_steps", MAX_SEED)))
        with inside("sampling"):
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
                f"the style has {len(style)} characters and the limit is {limit}; shorten it", field="style"
            )
        bare = " ".join(style.translate(str.maketrans("", "", "()（）")).split())
        kept = "".join(c for c in bare if c.isprintable())
        if kept:
            self._info.require_styles("style")
        return kept

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
            if reference or conditioning.hifi_id:
                self._info.require_references(reference or "hifi_id")
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
                return inputs.Recording(
                    data=data, format=format, name=f"{field}.audio.data", cleaning=read_cleaning(holder.audio)
                )
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

    def _upload(self, holder: Any, name: str, transcript: str = "") -> inputs.Upload:
        return inputs.Upload(
            format=self._upload_format(holder.source, name), transcript=transcript, cleaning=read_cleaning(holder)
        )

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
            case "audition":
                with inside("audition"):
                    return self._audition(message)
            case _:
                raise _empty_message("config, audio or commit")

    def _upload_config(self, config: Any) -> inputs.UploadConfig:
        if isinstance(config, pb.EncodeLatentsConfig):
            upload = self._upload(config, "source")
            prompt = read_enum(ROLES, config.role, "role") is AudioRole.PROMPT
            if config.role == pb.AUDIO_ROLE_UNSPECIFIED:
                raise InvalidRequest(
                    "role is not set; set it, because the two roles pad a recording differently", field="role"
                )
            if not prompt:
                self._info.require_references("role")
            return inputs.UploadConfig(prompt=upload if prompt else None, reference=None if prompt else upload)
        sources: dict[str, Any] = {}
        if isinstance(config, pb.AddPromptConfig):
            sources["prompt"] = self._upload(config, "source", self._transcript(config.transcript, "transcript"))
        elif isinstance(config, pb.AddReferenceConfig):
            self._info.require_references("")
            sources["reference"] = self._upload(config, "source")
        else:
            self._info.require_references("")
            sources = self._hifi_sources(config)
        with inside("preview"):
            preview = self._preview(config.preview, has_prompt=not isinstance(config, pb.AddReferenceConfig))
        return inputs.UploadConfig(options=options(config.options, self._find_lora), preview=preview, **sources)

    def _preview(self, preview: pb.Preview, *, has_prompt: bool) -> inputs.Preview | None:
        mode = read_enum(PREVIEWS, preview.mode, "mode")
        if preview.text and mode is not PreviewMode.SYNTHESIS:
            raise InvalidRequest(
                f"text is set and the mode is {mode.name}, which says no text; set PREVIEW_MODE_SYNTHESIS", field="text"
            )
        if mode is PreviewMode.NONE and not preview.auditions:
            return None
        speaks = mode is PreviewMode.SYNTHESIS or preview.auditions
        return inputs.Preview(
            mode=mode,
            text=self._text_to_speak(preview.text) if preview.text else "",
            config=self._speech_of(preview.turn if speaks else pb.TurnConfig(), preview.output, has_prompt=has_prompt),
            auditions=preview.auditions,
        )

    def _audition(self, message: Any) -> inputs.Audition:
        audition = message.audition
        return inputs.Audition(
            text=self._text_to_speak(audition.text),
            tag=read_tag(audition.tag, "tag"),
            config=self._speech_of(
                audition.turn, pb.AudioFormat(), has_prompt=not isinstance(message, pb.AddReferenceRequest)
            ),
            has_seed=audition.turn.sampling.HasField("seed"),
        )

    def _speech_of(self, turn: pb.TurnConfig, output: pb.AudioFormat, *, has_prompt: bool) -> inputs.GenerateConfig:
        """The config of a stream that speaks one turn with a voice that is being stored."""
        config = self._generate_config(pb.GenerateConfig(turn=turn, output=output))
        if config.turn.style and has_prompt:
            raise style_with_prompt_error("turn.style")
        return config

    def _text_to_speak(self, text: str) -> str:
        """A text that is complete. Raises InvalidRequest if it is too long or cannot be spoken."""
        limit = self._limits.max_text_chars
        if len(text) > limit:  # first, because the rest looks at every character
            raise InvalidRequest(
                f"the text to speak has {len(text)} characters and the limit is {limit}; send a shorter text",
                field="text",
            )
        if not any(c.isalnum() for c in text):
            raise InvalidRequest("there is nothing to speak: the text has no letter and no digit", field="text")
        return text

    def _hifi_sources(self, config: pb.AddHifiConfig) -> dict[str, Any]:
        prompt: Any = config.prompt_id
        if config.WhichOneof("prompt") == "uploaded_prompt":
            transcript = self._transcript(config.uploaded_prompt.transcript, "uploaded_prompt.transcript")
            prompt = self._upload(config.uploaded_prompt, "uploaded_prompt.source", transcript)
        if not prompt:
            raise InvalidRequest("the prompt is missing; set prompt_id or uploaded_prompt", field="prompt_id")
        reference: Any = config.reference_id or None
        shared = config.WhichOneof("reference") == "same_as_prompt"
        if config.WhichOneof("reference") == "uploaded_reference":
            reference = self._upload(config.uploaded_reference, "uploaded_reference.source")
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


def model(request: Any) -> str:
    """The name of the model in a config message of any stream; "" for none, and for every other message."""
    return request.config.model if request.WhichOneof("request") == "config" else ""


def default_timesteps(info: ModelInfo) -> int:
    """The official number of timesteps, or the nearest one that the server runs."""
    return min(info.timesteps, key=lambda count: abs(count - Sampling().inference_timesteps))
