"""The RPCs that find, list, change and delete voices."""

from __future__ import annotations

from collections.abc import Sequence

from voxcpm_grpc.errors import AlreadyExists, InvalidRequest, NotFound
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.auth.principal import Caller
from voxcpm_server.models import Models
from voxcpm_server.rpc.call import Call
from voxcpm_server.services.handler import rpc
from voxcpm_server.voices.catalog import VoiceCatalog, VoiceRef
from voxcpm_server.wire import replies, voices


class VoiceRpcs:
    """The part of `VoxCPMService` about voices that are stored already."""

    _models: Models

    @rpc(stream=False)
    async def GetVoice(self, request: pb.GetVoiceRequest, call: Call) -> pb.GetVoiceResponse:
        call.voice = voices.voice_id(request)
        catalog = self._models.find(voices.model(request)).catalog
        voice = await catalog.find(await _resolved(catalog, call.voice, call.caller), call.caller)
        model = self._models.name_of(voice.fingerprint)
        return replies.get_voice(voice, model=model, with_owner=call.caller.admin)

    @rpc(stream=False)
    async def ListVoices(self, request: pb.ListVoicesRequest, call: Call) -> pb.ListVoicesResponse:
        kind, labels, size, token = voices.listing(request)
        name = voices.model(request)
        model = self._models.find(name)
        others = [] if name else [voice for one in self._models for voice in one.catalog.preset_voices]
        page = await model.catalog.page(
            call.caller, kind=kind, labels=labels, size=size, token=token, others=others, own=bool(name)
        )
        return replies.voice_page(*page, model_of=self._models.name_of, with_owner=call.caller.admin)

    @rpc(stream=False)
    async def UpdateVoice(self, request: pb.UpdateVoiceRequest, call: Call) -> pb.UpdateVoiceResponse:
        name, change = voices.update(request)
        call.voice = name
        catalog = self._models.find(voices.model(request)).catalog
        ref = await _resolved(catalog, name, call.caller)
        if change.lora:
            voice = await catalog.find(ref, call.caller)
            if model := self._models.name_of(voice.fingerprint):
                self._models.find(model).builder.check_lora(change.lora)
        try:
            voice = await catalog.update(ref, change, call.caller)
        except AlreadyExists as error:
            error.field = "display_name"
            raise
        model = self._models.name_of(voice.fingerprint)
        return replies.update_voice(voice, model=model, with_owner=call.caller.admin)

    @rpc(stream=False)
    async def DeleteVoice(self, request: pb.DeleteVoiceRequest, call: Call) -> pb.DeleteVoiceResponse:
        name, cascade, allow_missing = voices.deletion(request)
        call.voice = name
        catalog = self._models.find(voices.model(request)).catalog
        kept: Sequence[str] = ()
        try:
            kept = await catalog.delete(await _resolved(catalog, name, call.caller), call.caller, cascade=cascade)
        except NotFound:
            if not allow_missing:
                raise
        return replies.delete_voice(kept)


async def _resolved(catalog: VoiceCatalog, name: str, caller: Caller) -> VoiceRef:
    """The voice of an id or a name in the field `id`."""
    try:
        return await catalog.resolve(name, caller)
    except (InvalidRequest, NotFound) as error:
        error.field = "id"
        raise
