"""Riva's RivaSpeechSynthesis, spoken by VoxCPMService."""

from __future__ import annotations

from collections.abc import AsyncIterator

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.contracts.errors import in_words_of
from voxcpm_server.contracts.riva import mapping
from voxcpm_server.contracts.riva import riva_tts_pb2 as riva
from voxcpm_server.contracts.speech import ContractService, begun, check_length, complete
from voxcpm_server.rpc.call import Call
from voxcpm_server.services.contract import Contract
from voxcpm_server.services.handler import rpc

SEPARATORS = ",:"  # these characters separate the voices of a list


class RivaService(ContractService):
    @rpc(stream=False, speaks=True, name="riva.Synthesize")
    async def Synthesize(self, request: riva.SynthesizeSpeechRequest, call: Call) -> riva.SynthesizeSpeechResponse:
        check_length(request.text, "text", "send it in parts, or by SynthesizeOnline")
        config = complete(mapping.config(request, self.models))
        spoken = await self.speak_whole([config, *mapping.texts(request.text)], call, mapping.FIELDS)
        meta = riva.SynthesizeSpeechResponseMetadata(
            text=request.text,
            processed_text=" ".join(spoken.texts),
            words=mapping.words(spoken.words, spoken.format.sample_rate_hz),
        )
        return riva.SynthesizeSpeechResponse(audio=spoken.audio, meta=meta, id=request.id)

    @rpc(stream=True, name="riva.SynthesizeOnline")
    async def SynthesizeOnline(self, stream: AsyncIterator[riva.SynthesizeSpeechRequest], call: Call) -> None:
        first: riva.SynthesizeSpeechRequest | None = None
        rate = 0

        async def messages() -> AsyncIterator[pb.GenerateRequest]:
            nonlocal first
            async for message in stream:
                if first is None:
                    first = message
                    yield pb.GenerateRequest(config=mapping.config(message, self.models))
                else:
                    mapping.check_same(first, message)
                for request in mapping.texts(message.text):
                    yield request
                yield pb.GenerateRequest(flush=pb.Flush())

        def reply(chunk: pb.AudioChunk) -> riva.SynthesizeSpeechResponse | None:
            nonlocal rate
            rate = chunk.header.format.sample_rate_hz or rate
            if first is None or not (chunk.audio or chunk.words):
                return None
            text, words = " ".join(begun(chunk)), mapping.words(chunk.words, rate)
            meta = riva.SynthesizeSpeechResponseMetadata(text=text, processed_text=text, words=words)
            return riva.SynthesizeSpeechResponse(audio=chunk.audio, meta=meta, id=first.id)

        await self.speak(messages(), call, reply, mapping.FIELDS)

    @rpc(stream=False, name="riva.GetRivaSynthesisConfig")
    async def GetRivaSynthesisConfig(
        self, request: riva.RivaSynthesisConfigRequest, call: Call
    ) -> riva.RivaSynthesisConfigResponse:
        with in_words_of({"model": "model_name"}):
            wanted = [self.models.find(request.model_name)] if request.model_name else list(self.models)
        names: dict[str, list[str]] = {model.name: [] for model in wanted}
        for model, voice in await self.voices(call):
            name = voice.display_name
            if model.name in names and name and not set(SEPARATORS) & set(name):
                names[model.name].append(name)
        return riva.RivaSynthesisConfigResponse(
            model_config=[
                riva.RivaSynthesisConfigResponse.Config(
                    model_name=model.name,
                    parameters={
                        "language_code": ",".join(model.info.languages),
                        "sample_rate": str(model.info.output_sample_rate),
                        "voice_name": model.name,
                        "subvoices": ",".join(f"{name}:{index}" for index, name in enumerate(names[model.name])),
                    },
                )
                for model in wanted
            ]
        )


CONTRACT = Contract("riva", riva.DESCRIPTOR.services_by_name["RivaSpeechSynthesis"], RivaService)
