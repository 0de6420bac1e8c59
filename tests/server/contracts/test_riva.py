"""Riva's RivaSpeechSynthesis over a fake pool: what each field does, and what is refused by name."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from support.clients.contract_calls import Stub, field_of
from support.servers.uploads import recording

from voxcpm_grpc.abilities import Option
from voxcpm_grpc.audio.uploads import decode
from voxcpm_server.contracts.riva import riva_audio_pb2 as audio
from voxcpm_server.contracts.riva import riva_common_pb2 as common
from voxcpm_server.contracts.riva import riva_tts_pb2 as riva
from voxcpm_server.voices.presets import Preset

ON = {"contracts": {"enabled": ("riva",)}}
SERVICE = riva.DESCRIPTOR.services_by_name["RivaSpeechSynthesis"]
ANNA = Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hello.")
TEXT = "Hello there."


def request(text: str = TEXT, **fields: Any) -> riva.SynthesizeSpeechRequest:
    """A request as nvidia-riva-client makes it."""
    usual = {"language_code": "en-US", "encoding": audio.LINEAR_PCM, "sample_rate_hz": 22050}
    return riva.SynthesizeSpeechRequest(text=text, **usual | fields)


def stub(served) -> Any:
    return Stub(served.channel, SERVICE)


async def streamed(served, *messages) -> list[riva.SynthesizeSpeechResponse]:
    return [reply async for reply in stub(served).SynthesizeOnline(iter(messages))]


async def error_of(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def seconds_of(served, *texts: str) -> float:
    info = served.pool.info
    return sum(map(len, texts)) * info.step_seconds


async def test_a_whole_text_is_samples_without_a_header(serve_front):
    async with serve_front(server=ON) as served:
        reply = await stub(served).Synthesize(request(id=common.RequestId(value="mine")))
        assert len(reply.audio) / 2 / 22050 == pytest.approx(seconds_of(served, TEXT), abs=0.01)
    assert (reply.id.value, reply.meta.text, reply.meta.processed_text) == ("mine", TEXT, TEXT)


@pytest.mark.parametrize(("name", "rate"), [("FLAC", 22050), ("OGGOPUS", 24000)])
async def test_compressed_audio_decodes(serve_front, name, rate):
    async with serve_front(server=ON) as served:
        asked = request(encoding=audio.AudioEncoding.Value(name), sample_rate_hz=rate)
        [whole, replies] = [await stub(served).Synthesize(asked), await streamed(served, asked)]
        made = seconds_of(served, TEXT)
    for data in (whole.audio, b"".join(reply.audio for reply in replies)):
        decoded = decode(data, target_rate=16000, max_seconds=60, max_bytes=1 << 24)
        assert len(decoded.waveform) / 16000 == pytest.approx(made, abs=0.1)


async def test_each_message_of_a_stream_is_spoken_at_once(serve_front):
    async with serve_front(server=ON) as served:
        call = stub(served).SynthesizeOnline()
        await call.write(request("One two", id=common.RequestId(value="mine")))
        first = await call.read()
        assert first.audio and first.meta.text == "One two" and first.id.value == "mine"
        await call.write(request("<speak>Three.<break time='100ms'/></speak>"))
        await call.done_writing()
        replies = [first]
        while isinstance(reply := await call.read(), riva.SynthesizeSpeechResponse):
            replies.append(reply)
        assert [one.text for one in served.pool.requests] == ["One two", "Three."]
        made = seconds_of(served, "One two", "Three.") + 0.1
    assert sum(len(reply.audio) for reply in replies) / 44100 == pytest.approx(made, abs=0.02)


async def test_options_and_recordings_become_those_of_a_stream(serve_front):
    async with serve_front(server=ON) as served:
        options = {"seed": "7", "cfg_value": "3.5", "style": "softly", "inference_timesteps": "6"}
        await stub(served).Synthesize(request(custom_configuration=options))
        cloned = riva.ZeroShotData(audio_prompt=recording(), quality=20, encoding=audio.LINEAR_PCM)
        await stub(served).Synthesize(request(zero_shot_data=cloned, voice_name="Magpie-ZeroShot.Female-1"))
        for transcript in ("The words of it.", "说的话。"):
            cloned.transcript = transcript
            await stub(served).Synthesize(request(zero_shot_data=cloned))
        styled, reference, prompt, chinese = served.pool.requests
    sampling = styled.sampling
    assert (sampling.seed, sampling.cfg_value, sampling.inference_timesteps) == (7, 3.5, 6)
    assert (styled.style, styled.text) == ("softly", TEXT)
    assert reference.conditioning.reference is not None and reference.conditioning.prompt is None
    transcripts = [one.conditioning.prompt and one.conditioning.prompt.text for one in (prompt, chinese)]
    assert transcripts == ["The words of it. ", "说的话。"]


async def test_the_options_of_a_model_of_codes_reach_it(serve_front, multilingual):
    option = Option(name="top_k", default=50, low=1, high=99, rule="it must be from 1 to 99")
    pool = multilingual(options=(option,))
    async with serve_front(pool, server=ON) as served:
        await stub(served).Synthesize(request(custom_configuration={"top_k": "7"}))
        await stub(served).Synthesize(request())
    assert [one.sampling.top_k for one in pool.requests] == [7, 50]


async def test_a_model_of_languages_speaks_the_language_of_the_request(serve_front, multilingual):
    pool = multilingual()
    asked = (
        (request(language_code="de-DE"), "de"),
        (request(), "en"),
        (request(language_code=""), ""),
        (request(custom_configuration={"language": "German"}), "de"),
        (request(custom_configuration={"language": "auto"}), ""),
    )
    async with serve_front(pool, server=ON) as served:
        for one, language in asked:
            await stub(served).Synthesize(one)
            await streamed(served, one)
            assert [made.language for made in pool.requests[-2:]] == [language] * 2
        swedish = request(language_code="sv-SE")
        for call in (stub(served).Synthesize(swedish), streamed(served, swedish)):
            error = await error_of(call)
            assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "language_code")
            assert error.details() == "language_code is 'sv'; it must be one of en, de"
        error = await error_of(stub(served).Synthesize(request(custom_configuration={"language": "sv"})))
        assert field_of(error) == "custom_configuration.language"


async def test_the_times_of_words_are_milliseconds_of_the_audio(serve_front):
    text = "Good morning to you. And a good night."
    seeded = {"custom_configuration": {"seed": "7"}}
    asked = request(text, enable_word_time_offsets=True, **seeded)
    async with serve_front(server=ON) as served:
        whole = await stub(served).Synthesize(asked)
        replies = await streamed(served, asked)
        plain = await streamed(served, request(text, **seeded))
    found = list(whole.meta.words)
    assert [word.word for word in found] == text.split()
    times = [time for word in found for time in (word.start_time, word.end_time)]
    assert times == sorted(times) and times[0] == 0
    assert times[-1] == pytest.approx(1000 * len(whole.audio) / 2 / 22050, abs=1)
    assert [word for reply in replies for word in reply.meta.words] == found
    assert b"".join(reply.audio for reply in replies) == b"".join(reply.audio for reply in plain)
    assert not any(reply.meta.words for reply in plain)


REFUSED: dict[str, dict[str, Any]] = {
    "custom_dictionary": {"custom_dictionary": "tomato  təˈmeɪˌtoʊ"},
    "custom_configuration.exaggeration_factor": {"custom_configuration": {"exaggeration_factor": "1.5"}},
    "custom_configuration.seed": {"custom_configuration": {"seed": "many"}},
    "custom_configuration.top_k": {"custom_configuration": {"top_k": "1.5"}},
    "custom_configuration.cfg_value": {"custom_configuration": {"cfg_value": "11"}},
    "custom_configuration.speed": {"custom_configuration": {"speed": "nan"}},
    "encoding": {"encoding": 9},
    "sample_rate_hz": {"sample_rate_hz": 7},
    "language_code": {"language_code": "nonsense!"},
    "voice_name": {"voice_name": "Magpie-Multilingual.EN-US.Aria"},
    "zero_shot_data.quality": {"zero_shot_data": riva.ZeroShotData(audio_prompt=b"x", quality=41)},
    "zero_shot_data.audio_prompt": {"zero_shot_data": riva.ZeroShotData(audio_prompt=b"x")},
    "id.value": {"id": common.RequestId(value="x" * 129)},
    "text": {"text": "a" * 5001},
}


async def test_what_the_models_cannot_do_is_refused_by_the_name_of_rivas_field(serve_front):
    async with serve_front(server=ON, presets=[(ANNA, recording())]) as served:
        for field, fields in REFUSED.items():
            error = await error_of(stub(served).Synthesize(request(**fields)))
            assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, field), error.details()
        for text in ("...", "<speak><prosody rate='slow'>Hi.</prosody></speak>", "<speak>Hi."):
            assert field_of(await error_of(stub(served).Synthesize(request(text)))) == "text"
        other = await error_of(streamed(served, request("Hi."), request("You.", sample_rate_hz=16000)))
        assert field_of(other) == "sample_rate_hz" and "first message" in (other.details() or "")
        await served.idle()


async def test_messages_of_a_stream_may_repeat_their_settings_and_not_change_them(serve_front):
    cloned = riva.ZeroShotData(audio_prompt=recording(), quality=20)
    same = {"custom_configuration": {"seed": "7"}, "zero_shot_data": cloned}
    async with serve_front(server=ON) as served:
        assert await streamed(served, request("One.", **same), request("Two.", **same))
        for field, fields in (
            ("custom_configuration", same | {"custom_configuration": {"seed": "8"}}),
            ("zero_shot_data", same | {"zero_shot_data": riva.ZeroShotData(audio_prompt=b"x")}),
            ("voice_name", same | {"voice_name": "anna"}),
        ):
            error = await error_of(streamed(served, request("One.", **same), request("Two.", **fields)))
            assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, field)


async def test_models_and_voices_are_listed_with_names_that_requests_take(serve_front):
    async with serve_front(server=ON, presets=[(ANNA, recording())]) as served:
        [config] = (await stub(served).GetRivaSynthesisConfig(riva.RivaSynthesisConfigRequest())).model_config
        model, subvoices = config.parameters["voice_name"], config.parameters["subvoices"]
        assert (model, subvoices) == (served.pool.info.name, "anna:0")
        for name in ("anna", f"{model}.anna", model, ""):
            await stub(served).Synthesize(request(voice_name=name))
        assert len({one.conditioning.prompt is None for one in served.pool.requests[:2]}) == 1
        unknown = riva.RivaSynthesisConfigRequest(model_name="other")
        error = await error_of(stub(served).GetRivaSynthesisConfig(unknown))
        assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "model_name")
