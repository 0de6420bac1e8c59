"""LocalAI's Backend, spoken by VoxCPMService."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from voxcpm_grpc.audio.wav import header
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, NotFound, Reason, StartupError, VoxCPMError
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.contracts.errors import in_words_of
from voxcpm_server.contracts.localai import backend_pb2 as localai
from voxcpm_server.contracts.localai import mapping
from voxcpm_server.contracts.speech import ContractService, check_length, complete, each
from voxcpm_server.models import Models
from voxcpm_server.rpc.call import Call
from voxcpm_server.services.contract import Contract
from voxcpm_server.services.handler import rpc
from voxcpm_server.services.speech import VoxCPMService

FAULTS_OF_REQUESTS = (InvalidRequest, NotFound, FailedPrecondition)


class LocalAIService(ContractService):
    """`folder` has the files that TTS writes; None if it writes none."""

    def __init__(self, service: VoxCPMService, models: Models, folder: Path | None) -> None:
        super().__init__(service, models)
        self._folder = folder

    @rpc(stream=False, name="localai.Health")
    async def Health(self, request: localai.HealthMessage, call: Call) -> localai.Reply:
        return localai.Reply(message=b"OK")

    @rpc(stream=False, name="localai.Free")
    async def Free(self, request: localai.HealthMessage, call: Call) -> localai.Result:
        return localai.Result(success=True)

    @rpc(stream=False, name="localai.Status")
    async def Status(self, request: localai.HealthMessage, call: Call) -> localai.StatusResponse:
        return localai.StatusResponse(state=localai.StatusResponse.READY)

    @rpc(stream=False, name="localai.LoadModel")
    async def LoadModel(self, request: localai.ModelOptions, call: Call) -> localai.Result:
        try:
            with in_words_of({"model": "Model"}):
                mapping.check_model(request, self.models)
        except FAULTS_OF_REQUESTS as error:
            return _failed(error, call)
        return localai.Result(success=True)

    @rpc(stream=False, speaks=True, name="localai.TTS")
    async def TTS(self, request: localai.TTSRequest, call: Call) -> localai.Result:
        try:
            path = await asyncio.to_thread(mapping.destination, request.dst, self._folder)
            check_length(request.text, "text", "send it in parts, or ask for a stream")
            spoken = await self.speak_whole(self._messages(request), call, mapping.FIELDS)
            start = header(spoken.format.sample_rate_hz, data_bytes=len(spoken.audio))
            await asyncio.to_thread(_write, path, start + spoken.audio)
        except FAULTS_OF_REQUESTS as error:
            return _failed(error, call)
        return localai.Result(success=True)

    @rpc(stream=False, speaks=True, name="localai.TTSStream")
    async def TTSStream(self, request: localai.TTSRequest, call: Call) -> None:
        await self.speak(each(self._messages(request)), call, _reply, mapping.FIELDS)

    def _messages(self, request: localai.TTSRequest) -> Iterable[pb.GenerateRequest]:
        config = complete(mapping.config(request, self.models))
        return [config, pb.GenerateRequest(text=request.text)]


def _failed(error: VoxCPMError, call: Call) -> localai.Result:
    call.told = error
    return localai.Result(success=False, message=error.message)


def _reply(chunk: pb.AudioChunk) -> localai.Reply | None:
    if chunk.HasField("header"):
        rate = chunk.header.format.sample_rate_hz
        return localai.Reply(message=json.dumps({"sample_rate": rate}).encode(), audio=chunk.audio)
    return localai.Reply(audio=chunk.audio) if chunk.audio else None


def _write(path: Path, data: bytes) -> None:
    """Write a new file. Raises InvalidRequest if there is one, and FailedPrecondition if it cannot be written."""
    try:
        file = path.open("xb")
        try:
            with file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError:
        raise mapping.exists_error() from None
    except OSError:
        raise FailedPrecondition(
            "the server cannot write dst; look at the rights and the space of its folder",
            field="dst",
            reason=Reason.FILE_NOT_WRITTEN,
        ) from None


def contract(folder: Path | None) -> Contract:
    """The contract of LocalAI's backends, which write into `folder`. Raises StartupError."""
    if folder is not None and not folder.is_dir():
        raise StartupError(f"contracts.localai_folder is {folder}, which is no folder; make it, or name another one")
    return Contract("localai", localai.DESCRIPTOR.services_by_name["Backend"], partial(LocalAIService, folder=folder))
