"""The published client of Google for Python, unchanged, before a server with the bundled voice."""

from __future__ import annotations

import os
import subprocess
import sys

import grpc
import pytest
import trustme
from google.api_core.exceptions import InvalidArgument
from google.auth.credentials import AnonymousCredentials
from google.cloud import texttospeech as tts  # pyright: ignore[reportAttributeAccessIssue]
from google.cloud.texttospeech_v1.services.text_to_speech import transports
from google.rpc.error_details_pb2 import BadRequest
from support.clients.ears import RATE, SENTENCE, resampled, samples
from support.servers.running import serving

from voxcpm_server.auth import keys

MILES = tts.VoiceSelectionParams(name="miles", language_code="en-US")
WAV_HEADER = 44
# As a user writes it whose server has a certificate that the host trusts, and API keys.
WITH_KEY = """
import sys
from google.cloud import texttospeech
client = texttospeech.TextToSpeechClient(client_options={"api_endpoint": sys.argv[1], "api_key": sys.argv[2]})
response = client.synthesize_speech(
    input=texttospeech.SynthesisInput(text="Hello."),
    voice=texttospeech.VoiceSelectionParams(language_code="en-US"),
    audio_config=texttospeech.AudioConfig(audio_encoding=texttospeech.AudioEncoding.MP3),
)
sys.stdout.buffer.write(response.audio_content)
"""


@pytest.fixture
def client(server):
    channel = grpc.insecure_channel(server.address)
    with tts.TextToSpeechClient(transport=transports.TextToSpeechGrpcTransport(channel=channel)) as client:
        yield client


def speak(client, encoding=tts.AudioEncoding.LINEAR16, voice=MILES, text=SENTENCE, **config) -> bytes:
    return client.synthesize_speech(
        input=tts.SynthesisInput(text=text),
        voice=voice,
        audio_config=tts.AudioConfig(audio_encoding=encoding, **config),
    ).audio_content


@pytest.mark.parametrize("encoding", ["LINEAR16", "MP3", "OGG_OPUS", "MULAW", "ALAW"])
def test_every_encoding_is_understood(client, understood, encoding):
    understood(samples(speak(client, tts.AudioEncoding[encoding])))


def test_the_lengths_of_the_encodings_agree(client):
    whole = speak(client)
    assert int.from_bytes(whole[40:44], "little") == len(whole) - WAV_HEADER
    seconds = (len(whole) - WAV_HEADER) / 2 / 24000
    assert 1.2 < seconds < 4
    assert len(speak(client, speaking_rate=2.0)) == pytest.approx(len(whole) / 2, rel=0.35)
    assert int.from_bytes(speak(client, sample_rate_hertz=48000)[24:28], "little") == 48000


def test_a_stream_is_understood(client, understood):
    """As Google's documentation shows it: a config, and then text in pieces."""

    def requests():
        yield tts.StreamingSynthesizeRequest(streaming_config=tts.StreamingSynthesizeConfig(voice=MILES))
        for word in SENTENCE.split():
            yield tts.StreamingSynthesizeRequest(input=tts.StreamingSynthesisInput(text=f"{word} "))

    parts = [response.audio_content for response in client.streaming_synthesize(requests())]
    assert len(parts) > 3
    understood(resampled(b"".join(parts), 24000))


async def test_the_asynchronous_client_speaks_and_streams(server, understood):
    channel = grpc.aio.insecure_channel(server.address)
    transport = transports.TextToSpeechGrpcAsyncIOTransport(channel=channel, credentials=AnonymousCredentials())
    client = tts.TextToSpeechAsyncClient(transport=transport)
    response = await client.synthesize_speech(
        input=tts.SynthesisInput(ssml=f"<speak>{SENTENCE}<break time='1s'/></speak>"),
        voice=MILES,
        audio_config=tts.AudioConfig(audio_encoding=tts.AudioEncoding.LINEAR16, sample_rate_hertz=RATE),
    )
    audio = samples(response.audio_content)
    assert not audio[-RATE + 20 :].any()
    understood(audio)
    await channel.close()


def test_voices_are_those_of_the_server(client):
    voices = client.list_voices().voices
    assert {"hazel", "miles", "george"} <= {voice.name for voice in voices}
    assert [voice.name for voice in client.list_voices(language_code="en-GB").voices] == [one.name for one in voices]


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("audio_config.pitch", {"pitch": 4.0}),
        ("audio_config.effects_profile_id", {"effects_profile_id": ["telephony-class-application"]}),
        ("voice.name", {"voice": tts.VoiceSelectionParams(name="en-US-Chirp3-HD-Charon")}),
        ("input", {"text": "?"}),
        ("input.text", {"text": "a" * 5001}),
    ],
)
def test_what_is_refused_arrives_as_googles_error_with_the_field(client, field, config):
    with pytest.raises(InvalidArgument) as caught:
        speak(client, **config)
    [fault] = [detail for detail in caught.value.details if isinstance(detail, BadRequest)]
    assert fault.field_violations[0].field == field
    assert caught.value.reason in ("INVALID_REQUEST", "VOICE_NOT_FOUND") and caught.value.domain == "voxcpm_grpc"


def test_ssml_beyond_breaks_is_refused_by_the_name_of_the_element(client):
    with pytest.raises(InvalidArgument, match="<prosody> is not supported"):
        client.synthesize_speech(
            input=tts.SynthesisInput(ssml="<speak><prosody rate='slow'>Hi.</prosody></speak>"),
            voice=MILES,
            audio_config=tts.AudioConfig(audio_encoding=tts.AudioEncoding.LINEAR16),
        )


def test_an_endpoint_and_an_api_key_are_all_that_a_program_changes(tmp_path):
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    key = keys.create("anna", tmp_path / "keys.toml")
    flags = {
        "--contracts.enabled": "google",
        "--tls.cert": tmp_path / "cert.pem",
        "--tls.key": tmp_path / "key.pem",
        "--auth.keys": tmp_path / "keys.toml",
    }
    with serving(tmp_path / "voices", *(str(part) for pair in flags.items() for part in pair)) as server:
        endpoint = server.address.replace("127.0.0.1", "localhost")
        program = (sys.executable, "-c", WITH_KEY, endpoint)
        environment = os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "ca.pem")}
        good = subprocess.run((*program, key), env=environment, capture_output=True, timeout=240)
        assert samples(good.stdout).size, good.stderr.decode()
        bad = subprocess.run((*program, "vxk_wrong"), env=environment, capture_output=True, timeout=240, text=True)
        assert "Unauthenticated" in bad.stderr and bad.returncode
