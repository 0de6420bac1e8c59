"""Every error has its code, its field and the request id, and reveals nothing about the server."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import message_of
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

ID = "caller-1"
INVALID, PRECONDITION, NOT_FOUND = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
)


def sampling(**fields: Any) -> dict[str, Any]:
    return {"turn": pb.TurnConfig(sampling=pb.Sampling(**fields))}


def prompt_of(data: bytes, **format: Any) -> dict[str, Any]:
    audio = pb.EncodedAudio(data=data, format=pb.AudioFormat(**format) if format else None)
    return voice(inline_prompt=inline(audio=audio))


def voice(**fields: Any) -> dict[str, Any]:
    return {"conditioning": pb.Conditioning(**fields)}


def latents(**fields: Any) -> pb.Latents:
    return pb.Latents(**{"data": np.zeros((2, 4, 8), "<f4").tobytes(), "feat_dim": 8, **fields})


def inline(**fields: Any) -> pb.InlinePrompt:
    return pb.InlinePrompt(**{"transcript": "Hi.", **fields})


RECORDING = wav_bytes(np.random.default_rng(0).uniform(-0.5, 0.5, 1600).astype(np.float32), 16000)
LARGE = np.full((1, 4, 8), -1e30, "<f4").tobytes()
NAN = np.full((1, 4, 8), np.nan, "<f4").tobytes()

PROMPT, REFERENCE = "conditioning.inline_prompt", "conditioning.inline_reference"
BAD_CONFIGS: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    (sampling(cfg_value=11), INVALID, "turn.sampling.cfg_value"),
    (sampling(cfg_value=float("nan")), INVALID, "turn.sampling.cfg_value"),
    (sampling(temperature=-1), INVALID, "turn.sampling.temperature"),
    (sampling(seed=2**63), INVALID, "turn.sampling.seed"),
    (sampling(inference_timesteps=0), INVALID, "turn.sampling.inference_timesteps"),
    (sampling(inference_timesteps=5), PRECONDITION, ""),
    (sampling(min_steps=5, max_steps=4), INVALID, "turn.sampling.min_steps"),
    (sampling(max_steps=0), INVALID, "turn.sampling.max_steps"),
    ({"turn": pb.TurnConfig(speed=0.4)}, INVALID, "turn.speed"),
    ({"turn": pb.TurnConfig(speed=float("nan"))}, INVALID, "turn.speed"),
    ({"turn": pb.TurnConfig(volume_gain_db=20.1)}, INVALID, "turn.volume_gain_db"),
    ({"output": pb.AudioFormat(sample_rate_hz=12345)}, INVALID, "output.sample_rate_hz"),
    ({"output": pb.AudioFormat(encoding=77)}, INVALID, "output.encoding"),  # type: ignore[arg-type]
    ({"segmentation": pb.Segmentation(mode=9)}, INVALID, "segmentation.mode"),  # type: ignore[arg-type]
    ({"segmentation": pb.Segmentation(continuity=9)}, INVALID, "segmentation.continuity"),  # type: ignore[arg-type]
    ({"segmentation": pb.Segmentation(max_chars=0)}, INVALID, "segmentation.max_chars"),
    ({"pacing": pb.Pacing(max_lead=Duration(seconds=0))}, INVALID, "pacing.max_lead"),
    ({"max_queue_time": Duration(seconds=-1)}, INVALID, "max_queue_time"),
    ({"turn": pb.TurnConfig(style="x" * 501)}, INVALID, "turn.style"),
    ({"turn": pb.TurnConfig(style="sad"), **voice(inline_prompt=inline(latents=latents()))}, INVALID, "turn.style"),
    ({"turn": pb.TurnConfig(style="sad"), **voice(hifi_id="hifi_x")}, INVALID, "turn.style"),
    (voice(hifi_id="hifi_x", reference_id="ref_y"), INVALID, "conditioning.hifi_id"),
    (voice(preset="anna"), NOT_FOUND, ""),
    (voice(preset="anna", hifi_id="hifi_x"), INVALID, "conditioning.preset"),
    (voice(preset="anna", reference_id="ref_y"), INVALID, "conditioning.preset"),
    (voice(prompt_id=""), INVALID, "conditioning.prompt_id"),
    (voice(prompt_id="prm_" + "a" * 32), NOT_FOUND, ""),
    (voice(hifi_id="../../etc/passwd"), NOT_FOUND, ""),
    (voice(inline_prompt=inline()), INVALID, PROMPT),
    (voice(inline_reference=pb.InlineReference()), INVALID, REFERENCE),
    (voice(inline_prompt=inline(latents=latents(), transcript=" \x01")), INVALID, f"{PROMPT}.transcript"),
    (voice(inline_prompt=inline(latents=latents(feat_dim=9))), INVALID, f"{PROMPT}.latents"),
    (voice(inline_prompt=inline(latents=latents(data=b"abc"))), INVALID, f"{PROMPT}.latents"),
    (voice(inline_prompt=inline(latents=latents(data=b""))), INVALID, f"{PROMPT}.latents"),
    (voice(inline_prompt=inline(latents=latents(data=NAN))), INVALID, f"{PROMPT}.latents"),
    (voice(inline_prompt=inline(latents=latents(data=LARGE))), INVALID, f"{PROMPT}.latents"),
    (voice(inline_reference=pb.InlineReference(latents=latents(data=LARGE))), INVALID, f"{REFERENCE}.latents"),
    (voice(inline_prompt=inline(latents=latents(data=bytes(128 * 4000)))), INVALID, f"{PROMPT}.latents"),
    (voice(inline_reference=pb.InlineReference(latents=latents(model_fingerprint="e" * 40))), PRECONDITION, ""),
    (
        voice(inline_reference=pb.InlineReference(audio=pb.EncodedAudio(data=b"nonsense" * 9))),
        INVALID,
        f"{REFERENCE}.audio.data",
    ),
    (prompt_of(b""), INVALID, f"{PROMPT}.audio.data"),
    (prompt_of(b"abc", encoding=1, sample_rate_hz=16000), INVALID, f"{PROMPT}.audio.data"),
    (prompt_of(bytes(6 << 20) + b"x"), INVALID, f"{PROMPT}.audio.data"),
    (prompt_of(RECORDING, encoding=1, sample_rate_hz=3), INVALID, f"{PROMPT}.audio.format.sample_rate_hz"),
]


@pytest.mark.parametrize(("fields", "code", "field"), BAD_CONFIGS)
async def test_bad_configs(served, details_of, fields, code, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(pb.GenerateConfig(request_id=ID, **fields), "Hello.")
    error, details = caught.value, details_of(caught.value)
    assert error.code() is code
    assert details.request_id == ID
    assert details.field == (f"config.{field}" if field else "")
    assert 10 < len(message_of(error)) < 400
    assert not served.pool.requests


async def test_the_allowed_timesteps_are_named(served):
    with pytest.raises(grpc.aio.AioRpcError, match="4, 6, 10"):
        await served.generate(pb.GenerateConfig(**sampling(inference_timesteps=5)))


MANUAL = pb.GenerateConfig(segmentation=pb.Segmentation(mode=pb.SEGMENTATION_MODE_MANUAL))
BAD_STREAMS: list[tuple[list[Any], str]] = [
    (["Hello.", pb.GenerateConfig()], "config"),
    ([pb.GenerateConfig(), pb.GenerateConfig()], "config"),
    ([pb.GenerateRequest()], "request"),
    (["Hello.", pb.GenerateRequest()], "request"),
    ([""], "text"),
    (["\x00\x07 \n"], "text"),
    (["?!... 😀", pb.Flush()], "text"),
    (["x" * 1_000_000], "text"),
    ([MANUAL, "x" * 10_001, "x" * 10_001], "text"),
]


@pytest.mark.parametrize(("messages", "field"), BAD_STREAMS)
async def test_bad_streams(served, details_of, messages, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(*messages)
    assert caught.value.code() is INVALID
    assert details_of(caught.value).field == field
    assert details_of(caught.value).request_id
    await served.idle()
    await served.generate("Still serving.")


async def test_a_message_after_finish_is_refused_during_speech(serve_front, fake, details_of):
    async with serve_front(fake(hold_after=1)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate("Hello.", pb.Finish(), "Hello.")
        assert caught.value.code() is INVALID
        assert details_of(caught.value).field == "finish"
        await served.idle()


async def test_an_error_at_the_time_of_the_first_chunk_reaches_the_client(served):
    for _ in range(30):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate("?!", pb.Flush(), timeout=HANG_SECONDS)
        assert caught.value.code() is INVALID


async def test_an_error_frees_the_engine_if_the_client_does_not_read(served):
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(text=("a" * 390 + ". ") * 40))
    await served.pool.stalled()  # the front makes no more audio once a write waits for the client
    assert 100 < served.pool.steps < 40 * 390
    await call.write(pb.GenerateRequest(config=pb.GenerateConfig()))
    await served.idle()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert caught.value.code() is INVALID


async def test_a_request_id_is_bounded_and_echoed(served, details_of):
    chunks = await served.generate(pb.GenerateConfig(request_id=ID))
    assert chunks[0].header.request_id == ID
    for bad in ("x" * 129, "a\nb"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(pb.GenerateConfig(request_id=bad))
        assert details_of(caught.value).field == "config.request_id"


@pytest.mark.parametrize("message", [b"\xff\xff\xff\x12", b"\x12\x02\xff\xfe"])
async def test_malformed_messages(served, details_of, message):
    call = served.channel.stream_stream("/voxcpm_grpc.v1.VoxCPMService/Generate")()
    await call.write(message)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is INVALID
    assert details_of(caught.value).request_id
    assert "google" not in message_of(caught.value)


async def test_malformed_unary_requests(served, details_of):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.channel.unary_unary("/voxcpm_grpc.v1.VoxCPMService/GetVoice")(b"\xff\xff\xff\x12")
    assert caught.value.code() is INVALID
    assert details_of(caught.value).request_id
    assert "google" not in message_of(caught.value)


async def test_a_status_stays_small_and_printable(served, details_of):
    hostile = "汉\x00\x1b\n" * 300
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.GetVoice(pb.GetVoiceRequest(id=hostile))
    assert caught.value.code() is NOT_FOUND
    from voxcpm_grpc.errors import InvalidRequest
    from voxcpm_server.services.handler import status_of

    code, message, metadata = status_of(InvalidRequest(hostile * 50, field=hostile * 50), hostile * 50)
    assert code is INVALID
    assert message.isprintable()
    on_the_wire = sum(len(v) if isinstance(v, str) else 4 * len(v) // 3 for _, v in metadata) + 3 * len(
        message.encode()
    )
    assert on_the_wire < 8000


async def test_a_bug_is_logged_and_its_text_is_not_sent(served, details_of, monkeypatch, caplog):
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("/etc/secret.key is missing")

    monkeypatch.setattr(served.pool, "encode", broken)
    config = pb.GenerateConfig(
        request_id=ID, **voice(inline_reference=pb.InlineReference(audio=pb.EncodedAudio(data=RECORDING)))
    )
    with caplog.at_level(logging.INFO), pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(config, "Hello.")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in message_of(caught.value)
    assert details_of(caught.value).request_id == ID
    assert "secret" in caplog.text
    assert f"id={ID} method=Generate code=INTERNAL" in caplog.text


async def test_a_cancellation_inside_the_server_ends_the_call_with_a_status(served, monkeypatch):
    async def cancelled(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(served.pool, "encode", cancelled)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(pb.GenerateConfig(**prompt_of(RECORDING)), "Hello.", timeout=HANG_SECONDS)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_every_rpc_logs_one_line(served, caplog):
    with caplog.at_level(logging.INFO, "voxcpm_server.services.handler"):
        await served.generate(pb.GenerateConfig(request_id="a b\nc=d".replace("\n", " ")), "Hello.")
        await served.stub.GetModelInfo(pb.GetModelInfoRequest())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("rpc id=a_b_c_d method=Generate code=OK seconds=")
    assert lines[0].endswith("audio_seconds=0.120")
    assert "method=GetModelInfo code=OK" in lines[1]


async def test_a_server_that_shuts_down_sends_new_calls_elsewhere_at_once(served, details_of):
    served.rpc.calls.refuse("the server is shutting down; retry elsewhere", retry_after=0.0)
    for call in (served.generate("Hello."), served.stub.GetModelInfo(pb.GetModelInfoRequest())):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        details = details_of(caught.value)
        assert details.retry_seconds == details.pushback_ms == 0


async def test_other_streams_are_not_affected(served):
    good = [asyncio.create_task(served.generate("Hello there. How are you?")) for _ in range(4)]
    bad = [served.generate("x" * 30_000) for _ in range(4)]
    outcomes = await asyncio.gather(*bad, return_exceptions=True)
    assert all(isinstance(outcome, grpc.aio.AioRpcError) for outcome in outcomes)
    assert all(chunks[-1].summary.segments == 2 for chunks in await asyncio.gather(*good))
