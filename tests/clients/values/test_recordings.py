"""Recordings can be files, bytes and samples; speech can be saved to paths and open files."""

import io
import wave

import numpy as np
import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, AudioFormat, Client, Encoding, InvalidArgument, Prompt
from voxcpm_grpc.audio.uploads import decode

RATE = 16000
TONE = np.sin(np.arange(1600) / 7).astype(np.float32) / 2
PCM = (TONE * 32767).astype(np.int16)


@pytest.fixture
async def client(server):
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        yield client


def decoded(data: bytes, rate: int = RATE) -> np.ndarray:
    """A recording as the server decodes it."""
    done = decode(data, target_rate=rate, max_seconds=10.0, max_bytes=1 << 20)
    assert done.source_rate == rate
    return done.waveform


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (TONE, TONE),
        (TONE.astype(np.float64), TONE),
        (TONE.astype(np.float16), TONE.astype(np.float16)),
        (PCM, PCM / np.float32(32768)),
        (np.stack([TONE, -TONE / 2], 1), TONE / 4),
        (np.stack([TONE, -TONE / 2]), TONE / 4),
        (np.stack([PCM, PCM], 1), PCM / np.float32(32768)),
        (TONE[:, None], TONE),
        (PCM[None], PCM / np.float32(32768)),
        (TONE.astype(">f4"), TONE),
        (np.stack([TONE, TONE], 1)[:, 0], TONE),
    ],
    ids=["f32", "f64", "f16", "s16", "[n, 2]", "[2, n]", "s16 [n, 2]", "[n, 1]", "s16 [1, n]", "big-endian", "strided"],
)
async def test_samples_reach_the_server_as_they_are(client, server, array, expected):
    voice = await client.add_reference((array, RATE))
    np.testing.assert_allclose(decoded(server.recordings[voice.id]), expected, atol=1e-6)


async def test_samples_serve_everywhere(client, server):
    wav = (PCM, RATE)
    stored = [await client.add_prompt(wav, "a"), await client.add_hifi(wav, "b", reference=(TONE, 8000))]
    assert all(server.recordings[voice.id].startswith(b"RIFF") for voice in stored)
    assert (await client.encode_latents(wav, role="prompt")).data.shape == (4, 16)
    await client.say("a", prompt=Prompt(wav, "c"), reference=wav)
    conditioning = server.streams[-1].config.conditioning
    np.testing.assert_array_equal(decoded(conditioning.inline_prompt.audio.data) * 32768, PCM)
    np.testing.assert_array_equal(decoded(conditioning.inline_reference.audio.data) * 32768, PCM)


async def test_files_and_speech_serve_everywhere(client, server, tmp_path):
    speech = await client.say("abc")
    path = tmp_path / "abc.wav"
    speech.save(path)
    with path.open("rb") as file:
        opened = await client.add_reference(file)
    data = path.read_bytes()
    for recording in (speech, path, str(path), data, bytearray(data), io.BytesIO(data)):
        assert (await client.add_reference(recording)).id == opened.id


@pytest.mark.parametrize(
    ("recording", "error", "message"),
    [
        (TONE, TypeError, r"an array without a sample rate; give \(array, rate\)"),
        ((RATE, TONE), TypeError, r"this tuple is \(rate, array\)"),
        ((TONE, RATE, 1), TypeError, "this tuple has 3 items"),
        (([0.0], RATE), TypeError, "the array is list"),
        ((TONE, "16000"), TypeError, "the sample rate is '16000'"),
        ((TONE, 22050.5), TypeError, "a whole number of Hz"),
        ((TONE, 0), InvalidArgument, "the sample rate is 0"),
        ((TONE.astype(np.int32), RATE), TypeError, "the samples are int32; they must be float in -1 to 1, or int16"),
        ((np.zeros((40, 50), np.float32), RATE), InvalidArgument, r"shape \(40, 50\), and its shorter side"),
        ((np.zeros((2, 2), np.float32), RATE), InvalidArgument, r"shape \(2, 2\)"),
        ((np.zeros((1, 2, 900), np.float32), RATE), InvalidArgument, r"it must be \[n\]"),
        ((TONE[:0], RATE), InvalidArgument, r"shape \(0,\)"),
        (io.StringIO("RIFF"), TypeError, "a text file; open it with mode 'rb'"),
    ],
)
async def test_samples_that_cannot_be_sent_are_an_error_with_the_remedy(client, server, recording, error, message):
    with pytest.raises(error, match=message):
        await client.add_reference(recording)
    assert not server.calls


async def test_a_file_at_its_end_is_an_error(client):
    file = io.BytesIO()
    file.write(b"recording")
    with pytest.raises(InvalidArgument, match=r"at its end; rewind it with seek\(0\)"):
        await client.add_reference(file)


async def test_samples_need_no_source(client):
    with pytest.raises(InvalidArgument, match="source is for raw PCM"):
        await client.add_reference((TONE, RATE), source=AudioFormat(Encoding.PCM_S16LE, 16000))


# ------------------------------------------------------------ results


@pytest.mark.parametrize("format", ["pcm_s16le", "pcm_f32le"])
def test_speech_saves_to_paths_and_open_files(server, tmp_path, format):
    with Client(server.target, timeout=HANG_SECONDS) as client:
        speech = client.say("abc", format=format)
    samples = speech.samples.tobytes()
    wav, plain, raw, opened = (tmp_path / name for name in ("a.wav", "plain", "a.raw", "b.PCM"))
    speech.save(wav)
    speech.save(str(plain))
    speech.save(raw)
    with opened.open("wb") as file:
        speech.save(file)
    memory = io.BytesIO()
    speech.save(memory)
    assert raw.read_bytes() == opened.read_bytes() == samples
    assert wav.read_bytes() == plain.read_bytes() == memory.getvalue()
    np.testing.assert_array_equal(decoded(memory.getvalue()), decoded(wav.read_bytes()))
    assert memory.getvalue().endswith(samples)
    if format == "pcm_s16le":
        with wave.open(str(wav)) as parsed:
            assert (parsed.getframerate(), parsed.getnframes()) == (16000, 480)


@pytest.mark.parametrize(("format", "suffix"), [("mp3", "mp3"), ("ogg_opus", "opus"), ("flac", "flac")])
def test_compressed_speech_is_saved_as_it_arrived(server, tmp_path, format, suffix):
    with Client(server.target, timeout=HANG_SECONDS) as client:
        speech = client.say("abc", format=format, compression_level=1)
    assert not len(speech.samples) and speech.sample_count == len(server.samples("abc"))
    assert speech.seconds == speech.sample_count / speech.sample_rate
    memory = io.BytesIO()
    speech.save(memory)
    speech.save(tmp_path / f"a.{suffix}")
    assert memory.getvalue() == (tmp_path / f"a.{suffix}").read_bytes() == speech.audio == server.compressed("abc")


def test_speech_saves_to_no_other_format(server, tmp_path):
    with Client(server.target, timeout=HANG_SECONDS) as client:
        speech = client.say("abc")
        compressed = client.say("abc", format="mp3")
        with client.speak("abc", format="mp3") as stream:
            chunk = next(chunk for chunk in stream if chunk.audio)
    with pytest.raises(InvalidArgument, match=r"a\.mp3 must end in \.wav, \.pcm or \.raw"):
        speech.save(tmp_path / "a.mp3")
    with pytest.raises(InvalidArgument, match=r"a\.wav must end in \.mp3"):
        compressed.save(tmp_path / "a.wav")
    with pytest.raises(InvalidArgument, match="mp3, which the client does not decode"):
        _ = chunk.samples
    with pytest.raises(TypeError, match="binary writing"):
        speech.save(io.StringIO())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="binary writing"):
        speech.save(None)  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []
