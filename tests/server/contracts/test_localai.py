"""LocalAI's Backend over a fake pool: health, models, files that only lie in one folder, streams and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.clients.contract_calls import Stub, field_of
from support.servers.uploads import recording

from voxcpm_grpc.audio import wav
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.contracts import ContractSettings
from voxcpm_server.contracts.known import contracts
from voxcpm_server.contracts.localai import backend_pb2 as localai
from voxcpm_server.voices.presets import Preset

ANNA = Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hello.")
SERVICE = localai.DESCRIPTOR.services_by_name["Backend"]
TEXT = "Hello there."


def settings(folder: Path | None = None) -> dict[str, Any]:
    return {"contracts": {"enabled": ("localai",), "localai_folder": folder}}


def stub(served) -> Any:
    return Stub(served.channel, SERVICE)


def request(**fields: Any) -> localai.TTSRequest:
    """A request as LocalAI makes it, which always sends a language."""
    usual: dict[str, Any] = {"text": TEXT, "language": ""}
    return localai.TTSRequest(**usual | fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "content/audio").mkdir(parents=True)
    return tmp_path / "content"


async def test_a_text_becomes_a_wav_file_of_the_length_of_its_audio(serve_front, folder):
    path = folder / "audio/tts.wav"
    async with serve_front(server=settings(folder), presets=[(ANNA, recording())]) as served:
        result = await stub(served).TTS(request(dst=str(path), voice="anna", params={"seed": "3"}))
        info, [ours] = served.pool.info, served.pool.requests
    assert result.success and not result.message
    parsed = wav.parse(path.read_bytes())
    assert parsed is not None and parsed.sample_rate == info.output_sample_rate
    assert parsed.declared == len(parsed.data) == 2 * len(TEXT) * info.samples_per_step
    assert ours.sampling.seed == 3 and ours.conditioning.prompt is not None


async def test_a_stream_begins_with_the_rate_of_its_samples(serve_front):
    async with serve_front(server=settings()) as served:
        first, *others = [reply async for reply in stub(served).TTSStream(request(instructions="softly"))]
        info, [ours] = served.pool.info, served.pool.requests
    assert json.loads(first.message) == {"sample_rate": info.output_sample_rate}
    assert (ours.style, ours.text) == ("softly", TEXT)
    assert sum(len(reply.audio) for reply in others) == 2 * len(ours.text) * info.samples_per_step


async def test_health_models_and_state_are_those_of_the_server(serve_front):
    async with serve_front(server=settings()) as served:
        name = served.pool.info.name
        assert (await stub(served).Health(localai.HealthMessage())).message == b"OK"
        assert (await stub(served).Status(localai.HealthMessage())).state == localai.StatusResponse.READY
        assert (await stub(served).Free(localai.HealthMessage())).success
        for model in ("", name, f"/models/{name}"):
            assert (await stub(served).LoadModel(localai.ModelOptions(Model=model))).success
            assert [reply async for reply in stub(served).TTSStream(request(model=model))]
        for options, fault in (
            (localai.ModelOptions(Model="kokoro"), "there is no model 'kokoro'"),
            (localai.ModelOptions(Options=["cfg_value:2"]), "Options is not supported"),
            (localai.ModelOptions(AudioPath="a.wav"), "AudioPath is not supported"),
        ):
            result = await stub(served).LoadModel(options)
            assert not result.success and fault in result.message


async def test_a_model_of_languages_speaks_the_language_of_the_request(serve_front, multilingual):
    pool = multilingual()
    asked = (
        (request(language="de"), "de"),
        (request(language="en", params={"language": "de"}), "de"),
        (request(), ""),
    )
    async with serve_front(pool, server=settings()) as served:
        for one, language in asked:
            assert [reply async for reply in stub(served).TTSStream(one)]
            assert pool.requests[-1].language == language
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            assert not [reply async for reply in stub(served).TTSStream(request(language="Swedish"))]
    assert (caught.value.code(), field_of(caught.value)) == (grpc.StatusCode.INVALID_ARGUMENT, "language")


async def test_files_lie_below_the_folder_and_replace_none(serve_front, folder, tmp_path, caplog):
    kept = folder / "kept.wav"
    kept.write_bytes(b"kept")
    (folder / "out").symlink_to(tmp_path)
    (folder / "link.wav").symlink_to(tmp_path / "linked.wav")
    with caplog.at_level("INFO"):
        async with serve_front(server=settings(folder)) as served:
            for dst in (
                *("", "tts.wav", str(tmp_path / "outside.wav"), str(folder / "../outside.wav")),
                *(str(folder / "out/outside.wav"), str(folder / "missing/tts.wav"), str(folder / "tts.sh")),
                *(str(kept), str(folder / "link.wav"), "/\0.wav", str(folder / f"{'a' * 300}.wav")),
            ):
                result = await stub(served).TTS(request(dst=dst))
                assert not result.success and "dst" in result.message, dst
                assert str(tmp_path) not in result.message
            assert kept.read_bytes() == b"kept"
            assert sorted(path.name for path in tmp_path.rglob("*.wav")) == ["kept.wav", "link.wav"]
            result = await stub(served).TTS(request(dst=str(folder / "audio/good.wav")))
            assert result.success
    assert "method=localai.TTS code=INVALID_ARGUMENT" in caplog.text


async def test_without_a_folder_no_file_is_written(serve_front, tmp_path):
    async with serve_front(server=settings()) as served:
        result = await stub(served).TTS(request(dst=str(tmp_path / "tts.wav")))
    assert not result.success and "contracts.localai_folder" in result.message
    assert not (tmp_path / "tts.wav").exists()


def test_a_folder_that_is_missing_stops_the_start(tmp_path):
    with pytest.raises(StartupError, match="no folder"):
        contracts(ContractSettings(enabled=("localai",), localai_folder=tmp_path / "missing"))


FAULTS = {
    "text": {"text": "..."},
    "voice": {"voice": "nobody"},
    "language": {"language": "nonsense!"},
    "ModelIdentity": {"ModelIdentity": "kokoro"},
    "params.exaggeration": {"params": {"exaggeration": "1"}},
    "params.cfg_value": {"params": {"cfg_value": "11"}},
}


async def test_bad_requests_fail_as_results_of_files_and_as_statuses_of_streams(serve_front, folder):
    async with serve_front(server=settings(folder)) as served:
        for field, fields in FAULTS.items():
            result = await stub(served).TTS(request(dst=str(folder / "tts.wav"), **fields))
            assert not result.success and result.message
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                assert not [reply async for reply in stub(served).TTSStream(request(**fields))]
            assert (caught.value.code(), field_of(caught.value)) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert not list(folder.rglob("*.wav"))
