"""Google's TextToSpeech, spoken by VoxCPMService."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.audio.wav import header
from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.auth.authenticator import Authenticator, Certificate, Metadata
from voxcpm_server.auth.principal import Principal
from voxcpm_server.contracts.errors import in_words_of, refused
from voxcpm_server.contracts.google import cloud_tts_pb2 as google
from voxcpm_server.contracts.google import mapping
from voxcpm_server.contracts.speech import ContractService, complete
from voxcpm_server.models import Models
from voxcpm_server.rpc.call import Call
from voxcpm_server.services.contract import Contract
from voxcpm_server.services.handler import rpc
from voxcpm_server.services.speech import VoxCPMService
from voxcpm_server.values.languages import primary, read_language

KEY, AUTHORIZATION = "x-goog-api-key", "authorization"
NO_CLAIM = "und"  # voices whose model claims no language have this one
IN_WAV: Mapping[int, Encoding] = {
    google.LINEAR16: Encoding.PCM_S16LE,
    google.MULAW: Encoding.MULAW,
    google.ALAW: Encoding.ALAW,
}


class GoogleService(ContractService):
    def __init__(self, service: VoxCPMService, models: Models) -> None:
        super().__init__(service, models)
        self.authenticator = _KeyHeader(service.authenticator)

    @rpc(stream=False, name="google.ListVoices")
    async def ListVoices(self, request: google.ListVoicesRequest, call: Call) -> google.ListVoicesResponse:
        with in_words_of({"language": "language_code"}):
            wanted = read_language(request.language_code)
        languages = self.models.default.info.languages
        if wanted and languages and wanted not in map(primary, languages):
            return google.ListVoicesResponse()
        return google.ListVoicesResponse(
            voices=[
                google.Voice(
                    language_codes=languages or (NO_CLAIM,),
                    name=voice.display_name or voice.id,
                    natural_sample_rate_hertz=mapping.RATE,
                )
                for model, voice in await self.voices(call)
                if model is self.models.default
            ]
        )

    @rpc(stream=False, speaks=True, name="google.SynthesizeSpeech")
    async def SynthesizeSpeech(
        self, request: google.SynthesizeSpeechRequest, call: Call
    ) -> google.SynthesizeSpeechResponse:
        config = complete(mapping.config(request, self.models))
        spoken = await self.speak_whole([config, *mapping.texts(request.input)], call, mapping.FIELDS)
        encoding = IN_WAV.get(request.audio_config.audio_encoding)
        start = b"" if encoding is None else header(spoken.format.sample_rate_hz, encoding, len(spoken.audio))
        return google.SynthesizeSpeechResponse(audio_content=start + spoken.audio)

    @rpc(stream=True, name="google.StreamingSynthesize")
    async def StreamingSynthesize(self, stream: AsyncIterator[google.StreamingSynthesizeRequest], call: Call) -> None:
        await self.speak(_messages(stream, self.models), call, _audio, mapping.STREAM_FIELDS)


async def _messages(
    stream: AsyncIterator[google.StreamingSynthesizeRequest], models: Models
) -> AsyncIterator[pb.GenerateRequest]:
    """The messages of a stream for VoxCPMService. Raises InvalidRequest."""
    config: pb.GenerateConfig | None = None
    has_input = False
    async for message in stream:
        kind = message.WhichOneof("streaming_request")
        if kind is None:
            raise InvalidRequest("a message of the stream is empty; set streaming_config or input")
        if (kind == mapping.CONFIG) != (config is None):
            raise InvalidRequest("streaming_config must be in the first message and in no other", field=mapping.CONFIG)
        if config is None:
            config = mapping.streaming_config(message.streaming_config, models)
            yield pb.GenerateRequest(config=config)
            continue
        if message.input.prompt and has_input:
            raise refused("input.prompt", "only the first message with input may have a prompt; open another stream")
        if message.input.prompt:
            yield mapping.restyled(config.turn, message.input.prompt)
        has_input = True
        for request in mapping.streaming_texts(message.input):
            yield request


def _audio(chunk: pb.AudioChunk) -> google.StreamingSynthesizeResponse | None:
    return google.StreamingSynthesizeResponse(audio_content=chunk.audio) if chunk.audio else None


class _KeyHeader:
    """Finds a key of this server also in the header in which Google's clients send one."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def principal(self, metadata: Metadata, certificate: Callable[[], Certificate]) -> Principal | None:
        """The same as `Authenticator.principal`. The header `authorization` precedes."""
        given = list(metadata)
        if not any(name == AUTHORIZATION for name, _ in given):
            given += [(AUTHORIZATION, f"Bearer {value}") for name, value in given if name == KEY]
        return await self._authenticator.principal(given, certificate)


CONTRACT = Contract("google", google.DESCRIPTOR.services_by_name["TextToSpeech"], GoogleService)
