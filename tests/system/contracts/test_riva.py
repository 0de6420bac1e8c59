"""The published client of Riva, and Pipecat's service that uses it, unchanged."""

from __future__ import annotations

import grpc
import pytest
import riva.client
from riva.client import AudioEncoding
from riva.client.proto import riva_tts_pb2
from support.clients.ears import RATE, SENTENCE, resampled, samples


@pytest.fixture
def service(server):
    auth = riva.client.Auth(uri=server.address)
    yield riva.client.SpeechSynthesisService(auth)
    auth.channel.close()


def test_a_whole_text_is_understood(service, understood):
    reply = service.synthesize(SENTENCE, voice_name="miles", language_code="en-US")
    assert 1.2 < len(reply.audio) / 2 / 22050 < 4
    assert reply.meta.text == reply.meta.processed_text == SENTENCE
    understood(resampled(reply.audio, 22050))


@pytest.mark.parametrize(("encoding", "rate"), [(AudioEncoding.FLAC, 22050), (AudioEncoding.OGGOPUS, 24000)])
def test_compressed_audio_is_understood(service, understood, encoding, rate):
    reply = service.synthesize(SENTENCE, voice_name="miles", encoding=encoding, sample_rate_hz=rate)
    understood(samples(reply.audio))


def test_a_stream_is_understood_and_as_long_as_the_whole(service, understood):
    seeded = {"custom_configuration": {"seed": "1"}, "voice_name": "miles", "sample_rate_hz": RATE}
    whole = service.synthesize(SENTENCE, **seeded).audio
    parts = [reply.audio for reply in service.synthesize_online(SENTENCE, **seeded)]
    assert len(parts) > 3
    assert len(b"".join(parts)) == len(whole)
    understood(resampled(b"".join(parts), RATE))


def test_several_texts_are_spoken_in_one_stream(service, understood):
    half = len(SENTENCE.split()) // 2
    texts = [" ".join(SENTENCE.split()[:half]), " ".join(SENTENCE.split()[half:])]
    replies = list(service.synthesize_online(texts, voice_name="hazel", sample_rate_hz=RATE))
    assert [reply.meta.text.strip() for reply in replies if reply.meta.text] == texts


def test_the_voice_of_a_recording_is_taken(service, tmp_path):
    recorded = service.synthesize(SENTENCE, voice_name="hazel", encoding=AudioEncoding.FLAC, sample_rate_hz=RATE).audio
    path = tmp_path / "prompt.flac"
    path.write_bytes(recorded)
    reply = service.synthesize(SENTENCE, zero_shot_audio_prompt_file=path, zero_shot_transcript=f"{SENTENCE} ")
    assert len(reply.audio) > 22050


def test_the_times_of_words_lie_in_the_audio(service):
    reply = service.synthesize(SENTENCE, voice_name="hazel", sample_rate_hz=RATE, enable_word_time_offsets=True)
    assert [word.word for word in reply.meta.words] == SENTENCE.split()
    assert reply.meta.words[-1].end_time <= 1000 * len(reply.audio) / 2 / RATE + 1


def test_the_listed_voices_can_be_spoken_with(service):
    """As NVIDIA's program talk.py puts the names together."""
    request = riva_tts_pb2.RivaSynthesisConfigRequest()
    [model] = service.stub.GetRivaSynthesisConfig(request).model_config
    names = [one.partition(":")[0] for one in model.parameters["subvoices"].split(",")]
    assert {"hazel", "miles", "george"} <= set(names)
    reply = service.synthesize("Hello.", voice_name=f"{model.parameters['voice_name']}.{names[0]}")
    assert reply.audio


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("voice", {"voice_name": "Magpie-Multilingual.EN-US.Aria"}),
        ("custom_dictionary", {"custom_dictionary": {"tomato": "təˈmeɪˌtoʊ"}}),
        ("exaggeration_factor", {"custom_configuration": {"exaggeration_factor": "1.5"}}),
        ("sample_rate_hz", {"sample_rate_hz": 12345}),
    ],
)
def test_what_is_refused_is_an_invalid_argument_that_names_it(service, name, options):
    for call in (service.synthesize, lambda *args, **options: list(service.synthesize_online(*args, **options))):
        with pytest.raises(grpc.RpcError) as caught:
            call("Hello.", **options)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert name in caught.value.details()


@pytest.mark.parametrize("mode", ["per_sentence", "stitched"])
async def test_pipecat_s_service_speaks(server, understood, mode):
    from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
    from pipecat.services.nvidia.tts import NvidiaTTSService
    from pipecat.tests.utils import run_test

    service = NvidiaTTSService(
        api_key="none",
        server=server.address,
        use_ssl=False,
        sample_rate=RATE,
        settings=NvidiaTTSService.Settings(voice="miles", synthesis_mode=mode),
    )
    down, up = await run_test(service, frames_to_send=[TTSSpeakFrame(text=SENTENCE)])
    assert not [frame for frame in (*down, *up) if isinstance(frame, ErrorFrame)]
    understood(resampled(b"".join(frame.audio for frame in down if isinstance(frame, TTSAudioRawFrame)), RATE))
