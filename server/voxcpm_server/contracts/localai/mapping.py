"""Requests of LocalAI as messages of VoxCPMService. Every function raises InvalidRequest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.contracts import options
from voxcpm_server.contracts.errors import refused
from voxcpm_server.contracts.languages import set_language
from voxcpm_server.contracts.localai import backend_pb2 as localai
from voxcpm_server.models import Models

PARAMS = "params"
FIELDS: Mapping[str, str] = {
    "text": "text",
    "model": "ModelIdentity",
    "config.model": "ModelIdentity",
    "config.conditioning.voice": "voice",
    **options.paths(PARAMS),
}
"""The paths of our fields, and those of LocalAI's, for errors."""
SUFFIX = ".wav"


def config(request: localai.TTSRequest, models: Models) -> pb.GenerateConfig:
    """The config that speaks as a request says, as 16-bit samples."""
    found = pb.GenerateConfig(
        model=model_name(request.ModelIdentity or request.model, models),
        conditioning=pb.Conditioning(voice=request.voice),
    )
    options.set_options(found.turn, request.params, PARAMS)
    set_language(found, request.language, "language", models)
    if request.instructions:
        found.turn.style = request.instructions
    return found


def check_model(request: localai.ModelOptions, models: Models) -> None:
    """Raise an error for a model that the server does not have, and for options that it takes with each request."""
    if request.AudioPath:
        raise refused("AudioPath", "store the recording as a voice, and name it in the field voice of a request")
    if request.Options:
        raise refused("Options", "send them as params of each request")
    models.find(model_name(request.Model, models))


def model_name(name: str, models: Models) -> str:
    """The name of a model that LocalAI may have joined to the path of its models."""
    known = [model.name for model in models]
    return name if name in known or PurePath(name).name not in known else PurePath(name).name


def destination(dst: str, folder: Path | None) -> Path:
    """The path of the file to write. Raises FailedPrecondition if the server writes none."""
    if folder is None:
        raise FailedPrecondition(
            "this server writes no files; set contracts.localai_folder to the folder of LocalAI's generated content, "
            "or ask LocalAI for a stream",
            field="dst",
            reason=Reason.FILE_NOT_WRITTEN,
        )
    try:
        path = Path(dst)
        found = path.parent.resolve(strict=True) / path.name
        inside = path.is_absolute() and found.is_relative_to(folder.resolve())
    except (OSError, ValueError):
        inside, found = False, folder
    if not inside or found.suffix != SUFFIX:
        raise InvalidRequest(
            f"dst must be a path of a new {SUFFIX} file in the folder of contracts.localai_folder, or in an existing "
            "folder below it",
            field="dst",
        )
    if os.path.lexists(found):  # a wrong path fails before anything is spoken
        raise exists_error()
    return found


def exists_error() -> InvalidRequest:
    return InvalidRequest("dst is a file that exists; name a new one", field="dst")
