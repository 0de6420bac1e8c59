"""Requests for speech: from messages to values, checked and with defaults filled in."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from voxcpm_grpc.audio import NO_EFFECTS, AudioFormat, Effects
from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import MAX_DRAWN_SEED, Adapter, ModelInfo, Priority, Sampling
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.types import MAX_SECONDS
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.text.normalize import packages
from voxcpm_server.values import inputs
from voxcpm_server.values.languages import read_language
from voxcpm_server.wire.enums import CONTINUITIES, FIRST_SEGMENTS, MODES, PRIORITIES
from voxcpm_server.wire.fields import inside, read_enum, read_float, read_format, read_seconds, read_tag
from voxcpm_server.wire.recordings import RecordingReader
from voxcpm_server.wire.texts import (
    bare_style,
    check_streamed,
    read_ends,
    read_lexicon,
    read_max_attempts,
    read_pause,
    read_trim,
)

MAX_REQUEST_ID = 128
ALONE = ("no_voice", "preset", "voice")  # each of these fields of a conditioning excludes all others


class RequestReader:
    """Reads the messages of streams for one model and one set of limits.

    Every method raises InvalidRequest with the path of the field at fault, or FailedPrecondition. `find_lora` raises
    NotFound for the name of a LoRA adapter that the model does not have. `style_in_text` is the default of that field.
    """

    def __init__(
        self,
        info: ModelInfo,
        limits: LimitSettings,
        find_lora: Callable[[str], Adapter],
        *,
        style_in_text: bool = False,
    ) -> None:
        self.info = info
        self.limits = limits
        self._find_lora = find_lora
        self.style_in_text = style_in_text
        self.recordings = RecordingReader(info, limits)

    def generate(self, message: pb.GenerateRequest) -> inputs.GenerateInput:
        match message.WhichOneof("request"):
            case "config":
                with inside("config"):
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
                raise empty_message("config, text, flush, interrupt, turn, pause or finish")

    def generate_config(self, config: pb.GenerateConfig) -> inputs.GenerateConfig:
        voice = self._voice(config.conditioning)
        turn = self._turn(config.turn)
        if turn.style and (voice.hifi or voice.prompt):
            self.info.require_style_with_prompt("turn.style")
        priority = read_enum(PRIORITIES, config.priority, "priority")
        segmentation = self._segmentation(config.segmentation)
        if segmentation.mode is inputs.SegmentationMode.TOKENS:
            with inside("turn"):
                check_streamed(turn)
        lead, queue = self.limits.max_lead_seconds, self.limits.max_queue_seconds
        trim = self.limits.trim_leading_silence_seconds
        if priority is Priority.BATCH:
            queue, trim = self.limits.max_batch_queue_seconds, 0.0  # nobody waits for it to be heard
        return inputs.GenerateConfig(
            voice=voice,
            turn=turn,
            output=read_format(config.output, pb.AUDIO_ENCODING_PCM_S16LE, self.info.output_sample_rate, "output"),
            segmentation=segmentation,
            continuity=read_enum(CONTINUITIES, config.segmentation.continuity, "segmentation.continuity"),
            asks_to_carry=config.segmentation.continuity == pb.CONTINUITY_MODE_CARRY,
            max_lead=min(read_seconds(config.pacing, "max_lead", "pacing.max_lead") or lead, lead),
            max_queue=min(read_seconds(config, "max_queue_time") or queue, queue),
            priority=priority,
            lexicon=read_lexicon(config.lexicon),
            trim_leading_silence=read_trim(config, trim),
            word_timestamps=config.word_timestamps,
        )

    def _segmentation(self, segmentation: pb.Segmentation) -> inputs.Segmentation:
        with inside("segmentation"):
            limit = self.limits.max_segment_chars
            chars = segmentation.max_chars if segmentation.HasField("max_chars") else limit
            if chars < 1:
                raise InvalidRequest("max_chars is 0; it must be 1 or more", field="max_chars")
            wait = read_seconds(segmentation, "max_wait", or_zero=True)
            mode = read_enum(MODES, segmentation.mode, "mode")
            if mode is inputs.SegmentationMode.TOKENS:
                self.info.require("text_streaming", "mode")
            return inputs.Segmentation(
                mode=mode,
                max_chars=min(chars, limit),
                max_wait=inputs.DEFAULT_MAX_WAIT if wait is None else min(wait, MAX_SECONDS),
                language=read_language(segmentation.language),
                first_segment=read_enum(FIRST_SEGMENTS, segmentation.first_segment, "first_segment"),
            )

    def _interrupt(self, interrupt: pb.Interrupt) -> inputs.Interrupt:
        played = interrupt.played_samples if interrupt.HasField("played_samples") else None
        return inputs.Interrupt(read_tag(interrupt.tag, "interrupt.tag"), played)

    def _turn(self, turn: pb.TurnConfig) -> inputs.TurnConfig:
        with inside("turn"):
            if turn.normalize:
                packages.check()
            return inputs.TurnConfig(
                sampling=read_ends(turn, self._sampling(turn.sampling), self.info),
                style=self._style(turn.style),
                style_in_text=self._style_in_text(turn),
                language=self._language(turn.language),
                effects=self._effects(turn),
                normalize=turn.normalize,
                max_attempts=read_max_attempts(turn),
                adapter=self.adapter(turn),
                has_adapter=turn.HasField("lora"),
            )

    def adapter(self, message: pb.TurnConfig | pb.VoiceOptions) -> Adapter | None:
        """The LoRA adapter that a message names; None if it names none. Raises NotFound."""
        if not message.lora:
            return None
        self.info.require("lora", "lora")
        return self._find_lora(message.lora)

    def _effects(self, turn: pb.TurnConfig) -> Effects:
        effects = Effects(
            speed=read_float(turn, "speed", NO_EFFECTS.speed),
            gain_db=read_float(turn, "volume_gain_db", NO_EFFECTS.gain_db),
        )
        effects.check(self.info.output_sample_rate)
        return effects

    def _sampling(self, sampling: pb.Sampling) -> Sampling:
        given = {field.name: value for field, value in sampling.ListFields()}
        if "seed" not in given:
            given["seed"] = secrets.randbelow(MAX_DRAWN_SEED + 1)
        with inside("sampling"):
            return self.info.completed(Sampling(**given))

    def _style(self, style: str) -> str:
        limit = self.limits.max_style_chars
        if len(style) > limit:  # the length comes first, because the rest looks at every character
            raise InvalidRequest(
                f"the style has {len(style)} characters and the limit is {limit}; shorten it", field="style"
            )
        kept = bare_style(style)
        if kept:
            self.info.require("style", "style")
        return kept

    def _language(self, name: str) -> str:
        language = read_language(name)
        if language:
            self.info.require_language(language)
        return language

    def _style_in_text(self, turn: pb.TurnConfig) -> bool:
        if turn.style_in_text:
            self.info.require("style", "style_in_text")
        if turn.HasField("style_in_text"):
            return turn.style_in_text
        return self.style_in_text and self.info.can("style")

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
            if prompt:
                self.info.require("prompt", prompt)
            if reference:
                self.info.require("reference", reference)
            if conditioning.hifi_id or (prompt and reference):
                self.info.require("hifi", reference or "hifi_id")
            inline = conditioning.inline_prompt
            return inputs.VoiceChoice(
                voice=conditioning.voice,
                prompt=conditioning.prompt_id or (self._inline_prompt(inline) if prompt == "inline_prompt" else None),
                reference=conditioning.reference_id
                or (
                    self.recordings.inline(conditioning.inline_reference, "inline_reference")
                    if reference == "inline_reference"
                    else None
                ),
                hifi=conditioning.hifi_id,
                preset=conditioning.preset,
                no_voice=conditioning.no_voice,
            )

    def _inline_prompt(self, prompt: pb.InlinePrompt) -> inputs.InlinePrompt:
        return inputs.InlinePrompt(
            source=self.recordings.inline(prompt, "inline_prompt"),
            transcript=self.recordings.transcript(prompt.transcript, "inline_prompt.transcript"),
        )

    @property
    def default_output(self) -> AudioFormat:
        """The format of audio if the caller does not set one."""
        return self.generate_config(pb.GenerateConfig()).output


def empty_message(choices: str) -> InvalidRequest:
    """The error for a message that sets no field of its oneof, which all streams name `request`."""
    return InvalidRequest(f"a message of the stream is empty; set {choices}", field="request")


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
