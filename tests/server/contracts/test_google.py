"""Google's TextToSpeech over a fake pool: what each field does, and what is refused by name."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from support.clients.contract_calls import Stub, field_of
from support.servers.uploads import recording

from voxcpm_grpc.audio import wav
from voxcpm_grpc.audio.uploads import decode
from voxcpm_server.contracts.google import cloud_tts_pb2 as google
from voxcpm_server.voices.presets import Preset

ON = {"contracts": {"enabled": ("google",)}}
SERVICE = google.DESCRIPTOR.services_by_name["TextToSpeech"]
TEXT = "Hello there."
IPA, PINYIN = "PHONETIC_ENCODING_IPA", "PHONETIC_ENCODING_PINYIN"
LONG = "One two three four five six seven eight nine ten."


def request(text: str = TEXT, **fields: Any) -> google.SynthesizeSpeechRequest:
    """A request for WAV, with other values for dotted fields such as audio_config__pitch."""
    found = google.SynthesizeSpeechRequest()
    found.input.text = text
    found.audio_config.audio_encoding = google.LINEAR16
    for path, value in fields.items():
        *holders, name = path.split("__")
        holder: Any = found
        for one in holders:
            holder = getattr(holder, one)
        if isinstance(value, list):
            getattr(holder, name).extend(value)
        elif hasattr(value, "DESCRIPTOR"):
            getattr(holder, name).CopyFrom(value)
        else:
            setattr(holder, name, value)
    return found


def stub(served) -> Any:
    return Stub(served.channel, SERVICE)


def measured(audio: bytes) -> tuple[float, float]:
    """The seconds and the mean level of a WAV file."""
    samples = np.frombuffer(audio[wav.HEADER_BYTES :], "<i2").astype(np.float64)
    return len(samples) / 24000, float(np.sqrt(np.mean(samples**2)))


async def error_of(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_wav_has_the_length_of_its_audio_and_the_rate_of_googles_voices(serve_front):
    async with serve_front(server=ON) as served:
        reply = await stub(served).SynthesizeSpeech(request())
        [ours] = served.pool.requests
    audio = reply.audio_content
    parsed = wav.parse(audio)
    assert parsed is not None and parsed.sample_rate == 24000
    assert parsed.declared == len(parsed.data) == len(audio) - wav.HEADER_BYTES
    assert ours.text == TEXT


@pytest.mark.parametrize("encoding", ["LINEAR16", "MP3", "OGG_OPUS", "MULAW", "ALAW"])
async def test_every_encoding_decodes(serve_front, encoding):
    async with serve_front(server=ON) as served:
        value = google.AudioEncoding.Value(encoding)
        reply = await stub(served).SynthesizeSpeech(request(audio_config__audio_encoding=value))
        made = len(TEXT) * served.pool.info.step_seconds
    decoded = decode(reply.audio_content, target_rate=16000, max_seconds=60, max_bytes=1 << 24)
    assert len(decoded.waveform) / 16000 == pytest.approx(made, abs=0.1)


async def test_fields_become_those_of_a_stream(serve_front):
    async with serve_front(server=ON) as served:
        fast = await stub(served).SynthesizeSpeech(request(LONG, audio_config__speaking_rate=2.0))
        slow = await stub(served).SynthesizeSpeech(request(LONG))
        quiet = await stub(served).SynthesizeSpeech(request(LONG, audio_config__volume_gain_db=-20.0))
        await stub(served).SynthesizeSpeech(request(input__prompt="a calm old man", voice__language_code="de-DE"))
        last = served.pool.requests[-1]
        assert (last.style, last.text) == ("a calm old man", TEXT)
    seconds, loudness = zip(*(measured(reply.audio_content) for reply in (fast, slow, quiet)), strict=True)
    assert seconds[0] == pytest.approx(seconds[1] / 2, rel=0.1) and seconds[2] == seconds[1]
    assert loudness[2] == pytest.approx(loudness[1] / 10, rel=0.1)


async def test_a_model_of_languages_speaks_the_language_of_the_voice(serve_front, multilingual):
    pool = multilingual()
    async with serve_front(pool, server=ON) as served:
        for code, language in (("de-DE", "de"), ("en-US", "en"), ("", "")):
            await stub(served).SynthesizeSpeech(request(voice__language_code=code))
            voice = google.VoiceSelectionParams(language_code=code)
            await streamed(served, config(voice=voice), piece("One.", prompt="softly"))
            assert [(made.language, made.style) for made in pool.requests[-2:]] == [
                (language, ""),
                (language, "softly"),
            ]
        swedish = google.VoiceSelectionParams(language_code="sv-SE")
        for path, call in (
            ("", stub(served).SynthesizeSpeech(request(voice=swedish))),
            ("streaming_config.", streamed(served, config(voice=swedish), piece("One."))),
        ):
            error = await error_of(call)
            assert (error.code(), field_of(error)) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{path}voice.language_code",
            )
            assert error.details() == "language_code is 'sv'; it must be one of en, de"


async def test_breaks_of_ssml_and_of_markup_are_silence_of_their_length(serve_front):
    spoken = '<speak version="1.1" xml:lang="en"><p><s>One.</s><break time="1.5s"/>Two &amp; three.</p></speak>'
    async with serve_front(server=ON) as served:
        with_break = await stub(served).SynthesizeSpeech(request(input__ssml=spoken))
        marked = await stub(served).SynthesizeSpeech(request(input__markup="One. [pause long] Two & three."))
        assert [one.text.strip() for one in served.pool.requests] == ["One.", "Two & three."] * 2
    for reply, seconds in ((with_break, 1.5), (marked, 1.0)):
        sound = np.flatnonzero(np.frombuffer(reply.audio_content[wav.HEADER_BYTES :], "<i2"))
        assert max(np.diff(sound)) == pytest.approx(seconds * 24000, abs=48)


REFUSED = {
    "audio_config.pitch": {"audio_config__pitch": 3.0},
    "audio_config.effects_profile_id": {"audio_config__effects_profile_id": ["headphone-class-device"]},
    "audio_config.audio_encoding": {"audio_config__audio_encoding": google.M4A},
    "audio_config.speaking_rate": {"audio_config__speaking_rate": 0.25},
    "audio_config.volume_gain_db": {"audio_config__volume_gain_db": -96.0},
    "audio_config.sample_rate_hertz": {"audio_config__sample_rate_hertz": 12345},
    "voice.custom_voice": {"voice__custom_voice": google.CustomVoiceParams(model="m")},
    "voice.voice_clone": {"voice__voice_clone": google.VoiceCloneParams(voice_cloning_key="k")},
    "voice.multi_speaker_voice_config": {
        "voice__multi_speaker_voice_config": google.MultiSpeakerVoiceConfig(
            speaker_voice_configs=[google.MultispeakerPrebuiltVoice(speaker_alias="a")]
        )
    },
    "voice.name": {"voice__name": "en-US-Chirp3-HD-Charon"},
    "voice.model_name": {"voice__model_name": "gemini-2.5-flash-tts"},
    "voice.language_code": {"voice__language_code": "nonsense!"},
    "input.multi_speaker_markup": {
        "input__multi_speaker_markup": google.MultiSpeakerMarkup(turns=[google.MultiSpeakerMarkup.Turn(text="a")])
    },
    "input.text": {"text": "a" * 5001},
    "input": {"text": "..."},
    "input.ssml": {"input__ssml": "<speak><prosody rate='slow'>Hi.</prosody></speak>"},
    "input.markup": {"input__markup": "Hi. [pause long]" + "[pause long]" * 60},
    "input.custom_pronunciations.pronunciations[0].phonetic_encoding": {
        "input__custom_pronunciations": google.CustomPronunciations(
            pronunciations=[google.CustomPronunciationParams(phrase="a", phonetic_encoding=IPA, pronunciation="ə")]
        )
    },
    "input.custom_pronunciations.pronunciations[1]": {
        "input__custom_pronunciations": google.CustomPronunciations(
            pronunciations=[
                google.CustomPronunciationParams(phrase=phrase, phonetic_encoding=PINYIN, pronunciation="ni3")
                for phrase in ("a", "a")
            ]
        )
    },
    "input.custom_pronunciations.pronunciations[0].pronunciation": {
        "input__custom_pronunciations": google.CustomPronunciations(
            pronunciations=[
                google.CustomPronunciationParams(phrase="a", phonetic_encoding=PINYIN, pronunciation="ni hao")
            ]
        )
    },
    "advanced_voice_options.relax_safety_filters": {"advanced_voice_options__relax_safety_filters": True},
    "advanced_voice_options.low_latency_journey_synthesis": {
        "advanced_voice_options__low_latency_journey_synthesis": True
    },
}


NAMED_BY_OTHERS = (  # words of their messages
    *("input", "voice.name", "voice.model_name", "voice.language_code"),
    "input.custom_pronunciations.pronunciations[1]",
)


async def test_what_the_models_cannot_do_is_refused_by_the_name_of_googles_field(serve_front):
    async with serve_front(server=ON) as served:
        for field, fields in REFUSED.items():
            error = await error_of(stub(served).SynthesizeSpeech(request(**fields)))
            assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, field), error.details()
            assert field in NAMED_BY_OTHERS or field.rpartition(".")[2] in (error.details() or ""), error.details()
        assert not served.pool.requests and not served.gate.streams


async def test_pinyin_becomes_the_phonemes_of_the_model(serve_front):
    pinyin = google.CustomPronunciationParams(phrase="你好", phonetic_encoding=PINYIN, pronunciation="ni3 hao3")
    async with serve_front(server=ON) as served:
        given = google.CustomPronunciations(pronunciations=[pinyin])
        await stub(served).SynthesizeSpeech(request("你好。", input__custom_pronunciations=given))
        assert [one.text for one in served.pool.requests] == ["{ni3}{hao3}。"]


def config(**fields: Any) -> google.StreamingSynthesizeRequest:
    return google.StreamingSynthesizeRequest(streaming_config=google.StreamingSynthesizeConfig(**fields))


def piece(text: str, **fields: Any) -> google.StreamingSynthesizeRequest:
    return google.StreamingSynthesizeRequest(input=google.StreamingSynthesisInput(text=text, **fields))


async def streamed(served, *messages) -> bytes:
    return b"".join([reply.audio_content async for reply in stub(served).StreamingSynthesize(iter(messages))])


async def test_a_stream_speaks_sentences_from_pieces_of_text(serve_front):
    async with serve_front(server=ON) as served:
        audio = await streamed(served, config(), piece("One two.", prompt="softly"), piece(" Thr"), piece("ee."))
        spoken = [(one.style, one.text) for one in served.pool.requests]
        assert spoken == [("softly", "One two."), ("", " Three.")]
        info = served.pool.info
        steps = sum(len(one.text) for one in served.pool.requests)
    assert len(audio) / 2 / 24000 == pytest.approx(steps * info.step_seconds, abs=0.05)


STREAM_FAULTS = {
    "streaming_config": [piece("Hi.")],
    "streaming_config.streaming_audio_config.audio_encoding": [
        config(streaming_audio_config=google.StreamingAudioConfig(audio_encoding=google.MP3))
    ],
    "streaming_config.streaming_audio_config.sample_rate_hertz": [
        config(streaming_audio_config=google.StreamingAudioConfig(audio_encoding=google.PCM, sample_rate_hertz=7))
    ],
    "streaming_config.voice.name": [config(voice=google.VoiceSelectionParams(name="nobody")), piece("Hi.")],
    "input.prompt": [config(), piece("Hi."), piece(" You.", prompt="softly")],
    "input.multi_speaker_markup": [
        config(),
        google.StreamingSynthesizeRequest(
            input=google.StreamingSynthesisInput(
                multi_speaker_markup=google.MultiSpeakerMarkup(turns=[google.MultiSpeakerMarkup.Turn(text="a")])
            )
        ),
    ],
}


async def test_faults_of_a_stream_name_its_fields(serve_front):
    async with serve_front(server=ON) as served:
        for field, messages in STREAM_FAULTS.items():
            error = await error_of(streamed(served, *messages))
            assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, field), error.details()
        second = await error_of(streamed(served, config(), config()))
        assert "first message" in (second.details() or "") and field_of(second) == "streaming_config"
        await served.idle()


async def test_voices_are_listed_with_names_that_requests_take(serve_front):
    anna = Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hello.")
    async with serve_front(server=ON, presets=[(anna, recording())]) as served:
        listed = (await stub(served).ListVoices(google.ListVoicesRequest())).voices
        assert [voice.name for voice in listed] == ["anna"]
        assert listed[0].natural_sample_rate_hertz == 24000 and list(listed[0].language_codes) == ["und"]
        await stub(served).SynthesizeSpeech(request(voice__name="anna"))
        assert served.pool.requests[-1].conditioning.prompt is not None
