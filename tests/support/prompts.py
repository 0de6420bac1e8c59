"""The prompt of a request, as an engine has it from a model."""

from __future__ import annotations

from voxcpm_grpc.models.base import PromptRows, SpeechModel
from voxcpm_grpc.request import Request


def prompt_rows(model: SpeechModel, request: Request) -> PromptRows:
    return model.prompt(model.info.checked(request))
