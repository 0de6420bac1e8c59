"""The plan of a request, as an engine has it from a model."""

from __future__ import annotations

from voxcpm_grpc.models.base import Plan, SpeechModel
from voxcpm_grpc.request import Request


def plan_of(model: SpeechModel, request: Request) -> Plan:
    return model.plan(model.info.checked(request))
