"""Uploads: from messages to values, checked and with defaults filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import Role
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values import inputs
from voxcpm_server.values.inputs import PreviewMode
from voxcpm_server.wire.enums import PREVIEWS, ROLES
from voxcpm_server.wire.fields import inside, read_enum, read_tag
from voxcpm_server.wire.generate import RequestReader, empty_message
from voxcpm_server.wire.voices import options


class UploadReader:
    """Reads the messages of uploads, with the rules of `reader` for what a voice speaks while it is stored.

    Every method raises InvalidRequest with the path of the field at fault, FailedPrecondition or NotFound.
    """

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._recordings = reader.recordings
        self._info = reader.info

    def read(self, message: Any) -> inputs.UploadInput:
        """Read an AddPromptRequest, AddReferenceRequest, AddHifiRequest or EncodeLatentsRequest."""
        match message.WhichOneof("request"):
            case "config":
                with inside("config"):
                    return self._config(message.config)
            case "audio":
                part = message.audio
                return inputs.AudioPart(part.data, part.offset_bytes, read_enum(ROLES, part.role, "audio.role"))
            case "commit":
                if len(message.commit.digests) > len(Role):
                    raise InvalidRequest(
                        f"the commit has {len(message.commit.digests)} digests and the limit is {len(Role)}; "
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
                raise empty_message("config, audio or commit")

    def _config(self, config: Any) -> inputs.UploadConfig:
        if isinstance(config, pb.EncodeLatentsConfig):
            upload = self._recordings.upload(config, "source")
            prompt = read_enum(ROLES, config.role, "role") is Role.PROMPT
            if config.role == pb.AUDIO_ROLE_UNSPECIFIED:
                raise InvalidRequest(
                    "role is not set; set it, because the two roles pad a recording differently", field="role"
                )
            self._info.require("latents", "")
            self._info.require("prompt" if prompt else "reference", "role")
            return inputs.UploadConfig(prompt=upload if prompt else None, reference=None if prompt else upload)
        sources: dict[str, Any] = {}
        if isinstance(config, pb.AddPromptConfig):
            self._info.require("prompt", "")
            sources["prompt"] = self._recordings.upload(
                config, "source", self._recordings.transcript(config.transcript, "transcript")
            )
        elif isinstance(config, pb.AddReferenceConfig):
            self._info.require("reference", "")
            sources["reference"] = self._recordings.upload(config, "source")
        else:
            self._info.require("hifi", "")
            sources = self._hifi_sources(config)
        with inside("preview"):
            preview = self._preview(config.preview, has_prompt=not isinstance(config, pb.AddReferenceConfig))
        return inputs.UploadConfig(options=options(config.options, self._reader.adapter), preview=preview, **sources)

    def _preview(self, preview: pb.Preview, *, has_prompt: bool) -> inputs.Preview | None:
        mode = read_enum(PREVIEWS, preview.mode, "mode")
        if preview.text and mode is not PreviewMode.SYNTHESIS:
            raise InvalidRequest(
                f"text is set and the mode is {mode.name}, which says no text; set PREVIEW_MODE_SYNTHESIS", field="text"
            )
        if mode is PreviewMode.NONE and not preview.auditions:
            return None
        if mode is PreviewMode.RECONSTRUCTION and not has_prompt:
            self._info.require("reference_audio", "mode")
        speaks = mode is PreviewMode.SYNTHESIS or preview.auditions
        return inputs.Preview(
            mode=mode,
            text=self._text_to_speak(preview.text) if preview.text else "",
            config=replace(
                self._speech_of(preview.turn if speaks else pb.TurnConfig(), preview.output, has_prompt=has_prompt),
                word_timestamps=preview.word_timestamps,
            ),
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
        config = self._reader.generate_config(pb.GenerateConfig(turn=turn, output=output))
        if config.turn.style and has_prompt:
            self._info.require_style_with_prompt("turn.style")
        return config

    def _text_to_speak(self, text: str) -> str:
        """A text that is complete. Raises InvalidRequest if it is too long or cannot be spoken."""
        limit = self._reader.limits.max_text_chars
        if len(text) > limit:  # the length comes first, because the rest looks at every character
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
            transcript = self._recordings.transcript(config.uploaded_prompt.transcript, "uploaded_prompt.transcript")
            prompt = self._recordings.upload(config.uploaded_prompt, "uploaded_prompt.source", transcript)
        if not prompt:
            raise InvalidRequest("the prompt is missing; set prompt_id or uploaded_prompt", field="prompt_id")
        reference: Any = config.reference_id or None
        shared = config.WhichOneof("reference") == "same_as_prompt"
        if config.WhichOneof("reference") == "uploaded_reference":
            reference = self._recordings.upload(config.uploaded_reference, "uploaded_reference.source")
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
