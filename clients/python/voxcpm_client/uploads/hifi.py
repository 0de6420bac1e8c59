"""The recordings of an upload: read from their sources, and combined to a hifi voice."""

from __future__ import annotations

import asyncio

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.messages.requests import PROMPT_ID, REFERENCE_ID
from voxcpm_client.uploads import upload
from voxcpm_client.uploads.upload import Upload
from voxcpm_client.values.arguments import check_string
from voxcpm_client.values.options import VoiceOptions
from voxcpm_client.values.recordings import Recording, has_samples, read
from voxcpm_grpc.audio import AudioFormat
from voxcpm_grpc.v1 import tts_pb2 as pb


async def load(audio: Recording, source: AudioFormat | None) -> bytes:
    """The bytes of a recording, read in a thread. Raises InvalidArgument, and OSError for a file."""
    if source is not None and has_samples(audio):
        raise InvalidArgument("source is for raw PCM; samples with their rate need none: leave it out", field="source")
    return await asyncio.to_thread(read, audio)


async def hifi_upload(
    prompt: Recording, transcript: str, reference: Recording | None, options: VoiceOptions
) -> tuple[pb.AddHifiConfig, list[Upload]]:
    """The config and the recordings of an AddHifi stream. Raises InvalidArgument, and OSError for a file."""
    config = pb.AddHifiConfig(
        options=upload.stored_as(options), preview=upload.preview(options), model=options.get("model") or ""
    )
    source, cleaning = upload.source_format(options), upload.cleaning(options)
    uploads: list[Upload] = []
    for name, recording, begin in (("prompt", prompt, PROMPT_ID), ("reference", reference, REFERENCE_ID)):
        if isinstance(recording, str) and recording.startswith(begin):
            check_string(recording, name)
    if isinstance(prompt, str) and prompt.startswith(PROMPT_ID):
        config.prompt_id = prompt
    else:
        config.uploaded_prompt.CopyFrom(pb.UploadedPrompt(source=source, transcript=transcript, **cleaning))
        uploads.append(Upload(await load(prompt, options.get("source")), pb.AUDIO_ROLE_PROMPT))
    if reference is None and not uploads:
        raise InvalidArgument("a stored prompt needs a reference: its recording is not kept", field="reference")
    if reference is None:
        config.same_as_prompt.SetInParent()
    elif isinstance(reference, str) and reference.startswith(REFERENCE_ID):
        config.reference_id = reference
    else:
        config.uploaded_reference.CopyFrom(pb.UploadedReference(source=source, **cleaning))
        uploads.append(Upload(await load(reference, options.get("source")), pb.AUDIO_ROLE_REFERENCE))
    return config, uploads
