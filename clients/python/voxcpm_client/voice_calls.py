"""The calls of a client about voices."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Literal, Unpack, get_args

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.messages import responses
from voxcpm_client.messages.requests import duration
from voxcpm_client.transport.connection import Connection
from voxcpm_client.transport.retry import Attempts
from voxcpm_client.uploads import upload
from voxcpm_client.uploads.hifi import hifi_upload, load
from voxcpm_client.uploads.upload import Upload
from voxcpm_client.values.arguments import check_labels, check_options, check_string, check_strings
from voxcpm_client.values.options import SpeechOptions, VoiceKind, VoiceOptions
from voxcpm_client.values.recordings import Recording
from voxcpm_client.values.voices import Latents, Voice
from voxcpm_grpc.audio import AudioFormat
from voxcpm_grpc.v1 import tts_pb2 as pb

SHORT_TIMEOUT = 30.0  # seconds, for calls that do not use the model
MAX_PAGES = 1000


class VoiceCalls:
    """The calls of `AsyncClient` that store, list, change and delete voices."""

    _connection: Connection
    _timeout: float | None

    async def add_prompt(self, audio: Recording, transcript: str, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording and its transcript, which later speech continues.

        `ModelInfo.limits` has the limits of a recording: `max_upload_bytes` and `max_prompt_seconds`. The server limits
        the transcript, by default to 2000 characters. The new text follows the transcript without a separator: end the
        transcript with a space if the language uses spaces.

        Args:
            audio: Path, bytes or open file of a recording in any common format, or samples: `(array, rate)`, a Speech.
            transcript: The words of the recording, exactly as spoken.
            options: See VoiceOptions.
        """
        check_options("add_prompt", options, VoiceOptions)
        check_string(transcript, "transcript")
        config = pb.AddPromptConfig(
            model=options.get("model") or "",
            options=upload.stored_as(options),
            transcript=transcript,
            source=upload.source_format(options),
            preview=upload.preview(options),
            **upload.cleaning(options),
        )
        return await self._add(pb.AddPromptRequest, config, [Upload(await load(audio, options.get("source")))], options)

    async def add_reference(self, audio: Recording, **options: Unpack[VoiceOptions]) -> Voice:
        """Store a recording whose voice (timbre) later speech takes. It needs no transcript.

        `ModelInfo.limits` has the limits of a recording: `max_upload_bytes` and `max_reference_seconds`.

        Args:
            audio: Path, bytes or open file of a recording in any common format, or samples: `(array, rate)`, a Speech.
            options: See VoiceOptions.
        """
        check_options("add_reference", options, VoiceOptions)
        config = pb.AddReferenceConfig(
            model=options.get("model") or "",
            options=upload.stored_as(options),
            source=upload.source_format(options),
            preview=upload.preview(options),
            **upload.cleaning(options),
        )
        return await self._add(
            pb.AddReferenceRequest, config, [Upload(await load(audio, options.get("source")))], options
        )

    async def add_hifi(
        self,
        prompt: Recording,
        transcript: str = "",
        *,
        reference: Recording | None = None,
        **options: Unpack[VoiceOptions],
    ) -> Voice:
        """Store one voice that combines a prompt and a reference. The limits are those of the two.

        A string that starts with `prm_` or `ref_` is an id; write the path of a file with such a name as a Path.

        Args:
            prompt: A recording, or the id of a stored prompt (`prm_...`).
            transcript: The words of the prompt, as for `add_prompt`; not used for a stored prompt. Default: `""`.
            reference: A recording, or the id of a stored reference. Default: `None`, the recording of the prompt.
            options: See VoiceOptions.
        """
        check_options("add_hifi", options, VoiceOptions)
        check_string(transcript, "transcript")
        config, uploads = await hifi_upload(prompt, transcript, reference, options)
        return await self._add(pb.AddHifiRequest, config, uploads, options)

    async def encode_latents(
        self,
        audio: Recording,
        *,
        role: Literal["prompt", "reference"],
        source: AudioFormat | None = None,
        denoise: bool = False,
        trim_silence_vad: bool = False,
        model: str = "",
    ) -> Latents:
        """Encode a recording without storing it. The result serves as `reference`, or in a Prompt.

        `ModelInfo.limits` has the limits of a recording, as for `add_prompt` and `add_reference`.

        Args:
            audio: Path, bytes or open file of a recording in any common format, or samples: `(array, rate)`, a Speech.
            role: `prompt` or `reference`: the later use of the latents. They do not fit the other use.
            source: Encoding and sample rate of raw PCM without a header. Default: `None`, for audio files.
            denoise: True reduces steady noise, by up to 20 dB. Default: `False`.
            trim_silence_vad: True cuts the silence at both ends down to 0.2 s. Default: `False`.
            model: Name of the model that the latents are for, one of `list_models`. Default: `""`, the default model.
        """
        roles = {"prompt": pb.AUDIO_ROLE_PROMPT, "reference": pb.AUDIO_ROLE_REFERENCE}
        if role not in roles:
            raise InvalidArgument(f"role is {role!r}; it must be one of {', '.join(roles)}", field="role")
        check_string(model, "model")
        config = pb.EncodeLatentsConfig(
            source=upload.source_format({"source": source} if source else {}),
            role=roles[role],
            request_id=uuid.uuid4().hex,
            denoise=denoise,
            trim_silence_vad=trim_silence_vad,
            model=model,
        )
        attempts = self._connection.attempts(self._timeout)
        response = await upload.encode(self._connection, config, Upload(await load(audio, source)), attempts)
        return responses.latents(response, config.request_id)

    async def voices(
        self, *, kind: VoiceKind | None = None, labels: Mapping[str, str] | None = None, model: str = ""
    ) -> list[Voice]:
        """List voices: stored ones, newest first, and then the presets.

        Args:
            kind: Only voices of this kind: `prompt`, `reference`, `hifi` or `speaker`. Default: `None`, all kinds.
            labels: Only voices with a name that has all of these labels. Default: `None`.
            model: Only voices of this model, one of `list_models`. Default: `""`, the voices of all models.
        """
        if kind is not None and kind not in get_args(VoiceKind):
            raise InvalidArgument(f"kind is {kind!r}; it must be one of {', '.join(get_args(VoiceKind))}", field="kind")
        check_string(model, "model")
        check_labels(labels)
        number: Any = pb.VoiceKind.Value(f"VOICE_KIND_{kind.upper()}") if kind else pb.VOICE_KIND_UNSPECIFIED
        found: list[Voice] = []
        token = ""
        for _ in range(MAX_PAGES):
            page = await self._unary(
                "ListVoices", pb.ListVoicesRequest(kind=number, labels=labels or {}, page_token=token, model=model)
            )
            found += map(responses.voice, page.handles)
            token = page.next_page_token
            if not token:
                break
        return found

    async def get_voice(self, id: str, *, model: str = "") -> Voice:
        """Describe one voice. Its time to live starts again.

        Raises NotFound, and InvalidArgument for a name of several voices.

        Args:
            id: Id or name of the voice, or the name of a preset.
            model: Name of the model whose presets and voices are meant first. Default: `""`, the default model.
        """
        check_string(id, "id")
        check_string(model, "model")
        return responses.voice((await self._unary("GetVoice", pb.GetVoiceRequest(id=id, model=model))).handle)

    async def update_voice(
        self,
        id: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: float | None = None,
        lora: str | None = None,
        model: str = "",
    ) -> Voice:
        """Change a stored voice and return it as it is now. The options that are given replace those of the voice.

        Raises NotFound, AlreadyExists if another voice has the new name, InvalidArgument for a name of several voices,
        and FailedPrecondition for a preset of the model.

        Args:
            id: Id or name of the voice. The id stays.
            name: New name in place of the one in `id`, or else the newest; an empty one removes it. Default: `None`.
            labels: New labels of that name, which replace all its labels, as in VoiceOptions. Default: `None`.
            ttl: New time to live in seconds, as in VoiceOptions. Default: `None`.
            lora: New LoRA adapter, as in VoiceOptions; an empty string removes it. Default: `None`.
            model: As for `get_voice`. Default: `""`.
        """
        check_string(id, "id")
        check_string(model, "model")
        check_strings(name=name, lora=lora)
        check_labels(labels)
        request = pb.UpdateVoiceRequest(id=id, display_name=name, lora=lora, model=model)
        if labels is not None:
            request.labels.CopyFrom(pb.VoiceLabels(labels=labels))
        if ttl is not None:
            request.ttl.CopyFrom(duration("ttl", ttl))
        return responses.voice((await self._unary("UpdateVoice", request)).handle)

    async def delete_voice(
        self, id: str, *, missing_ok: bool = False, cascade: bool = False, model: str = ""
    ) -> tuple[str, ...]:
        """Delete a stored voice, or one of its names. Streams that use it continue.

        Returns the names that the voice keeps: none if it is deleted. Raises NotFound, InvalidArgument for a name of
        several voices, and FailedPrecondition for a preset of the model.

        Args:
            id: Id of the voice, or a name: if the voice has others, this name alone is deleted.
            missing_ok: True does not raise NotFound. Default: `False`.
            cascade: True also deletes members of a hifi voice without another use or another name. Default: `False`.
            model: As for `get_voice`. Default: `""`.
        """
        check_string(id, "id")
        check_string(model, "model")
        request = pb.DeleteVoiceRequest(id=id, allow_missing=missing_ok, cascade=cascade, model=model)
        return tuple((await self._unary("DeleteVoice", request)).kept_names)

    async def _unary(self, method: str, request: Any) -> Any:
        return await self._connection.unary(method, request, self._short())

    async def _add(self, kind: Any, config: Any, uploads: list[Upload], options: VoiceOptions) -> Voice:
        attempts = self._connection.attempts(self._long_timeout(options))
        return await upload.add_voice(self._connection, kind, config, uploads, upload.auditions(options), attempts)

    def _long_timeout(self, options: SpeechOptions | VoiceOptions) -> float | None:
        return options.get("timeout", self._timeout)

    def _short(self) -> Attempts:
        return self._connection.attempts(min(SHORT_TIMEOUT, self._timeout or SHORT_TIMEOUT))
