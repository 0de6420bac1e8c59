"""Contracts share the operation of the server: start, health, reflection, keys, limits, quotas, log and metrics."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from support.clients.contract_calls import Stub
from support.hostile.frames import DATA, END_STREAM, PREFACE, SETTINGS, call, frame, grpc_message
from support.servers.waiting import until

from voxcpm_grpc.errors import StartupError, Unavailable
from voxcpm_grpc.settings.contracts import ContractSettings
from voxcpm_grpc.settings.operation import TracingSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.sources import from_values
from voxcpm_server.auth import keys
from voxcpm_server.contracts.google import cloud_tts_pb2 as google
from voxcpm_server.contracts.known import contracts
from voxcpm_server.contracts.riva import riva_tts_pb2 as riva
from voxcpm_server.operation.metrics import Metrics
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.services.handler import SERVICE
from voxcpm_server.services.server import RpcServer

BOTH: dict[str, Any] = {"contracts": {"enabled": ("google", "riva")}}
GOOGLE = google.DESCRIPTOR.services_by_name["TextToSpeech"]
RIVA = riva.DESCRIPTOR.services_by_name["RivaSpeechSynthesis"]
CLOSED = frame(SETTINGS, struct.pack(">HI", 4, 0))  # an initial window of 0
WITHOUT = (
    "import sys;"
    "from voxcpm_server.contracts.known import contracts;"
    "from voxcpm_grpc.settings.contracts import ContractSettings;"
    "contracts(ContractSettings());"
    "print([name for name in sys.modules if name.startswith('voxcpm_server.contracts.')])"
)


def asked(text: str = "Hello.") -> google.SynthesizeSpeechRequest:
    return google.SynthesizeSpeechRequest(
        input=google.SynthesisInput(text=text), audio_config=google.AudioConfig(audio_encoding="LINEAR16")
    )


def spoken(text: str = "Hello.") -> riva.SynthesizeSpeechRequest:
    return riva.SynthesizeSpeechRequest(text=text)


async def code_of(calling) -> grpc.StatusCode:
    try:
        await calling
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def names(channel) -> set[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    [answer] = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    return {service.name for service in answer.list_services_response.service}


async def test_contracts_that_are_off_are_not_served(serve_front):
    async with serve_front() as served:
        assert await code_of(Stub(served.channel, GOOGLE).SynthesizeSpeech(asked())) is grpc.StatusCode.UNIMPLEMENTED
        assert not {GOOGLE.full_name, RIVA.full_name} & await names(served.channel)


def test_contracts_that_are_off_are_not_imported():
    found = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "['voxcpm_server.contracts.known']"


def test_an_unknown_contract_is_refused_with_those_that_there_are():
    with pytest.raises(StartupError, match=r"'google'.*'riva'"):
        from_values({"contracts.enabled": "gogle"})


async def test_reflection_and_health_have_the_contracts_that_are_on(serve_front):
    async with serve_front(server=BOTH) as served:
        assert {GOOGLE.full_name, RIVA.full_name} <= await names(served.channel)
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{RIVA.full_name}.Synthesize")
        [answer] = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
        files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
        assert {one.package for one in files} == {"nvidia.riva.tts", "nvidia.riva"}
        health: Any = health_pb2_grpc.HealthStub(served.channel)
        for service in (GOOGLE, RIVA):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service.full_name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_calls_during_the_start_are_refused_with_a_time_to_wait():
    rpc = RpcServer(Settings(listen="127.0.0.1:0"), contracts=contracts(ContractSettings(enabled=("google",))))
    async with grpc.aio.insecure_channel(await rpc.open()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stub(channel, GOOGLE).SynthesizeSpeech(asked())
    await rpc.stop()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "not ready yet" in (caught.value.details() or "")


async def test_keys_are_those_of_the_server_and_google_may_send_them_in_its_header(serve_front, tmp_path):
    path = tmp_path / "keys.toml"
    key = keys.create("anna", path)
    async with serve_front(server={**BOTH, "auth": {"keys": path}}) as served:
        speak = Stub(served.channel, GOOGLE).SynthesizeSpeech
        assert await code_of(speak(asked())) is grpc.StatusCode.UNAUTHENTICATED
        for header in (("authorization", f"Bearer {key}"), ("x-goog-api-key", key)):
            assert await code_of(speak(asked(), metadata=(header,))) is grpc.StatusCode.OK
        both = (("authorization", "Bearer wrong"), ("x-goog-api-key", key))
        assert await code_of(speak(asked(), metadata=both)) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_whole_text_counts_as_a_stream_and_its_audio_as_memory(serve_front, fake):
    pool = fake(hold_after=0)
    async with serve_front(pool, server=BOTH, max_streams=1) as served:
        speak = Stub(served.channel, GOOGLE).SynthesizeSpeech
        first = asyncio.ensure_future(speak(asked()))
        await until(lambda: served.gate.streams == 1)
        assert await code_of(speak(asked())) is grpc.StatusCode.RESOURCE_EXHAUSTED
        pool.release()
        assert (await first).audio_content
    async with serve_front(server=BOTH, max_upload_bytes_total=1000) as served:
        assert await code_of(Stub(served.channel, GOOGLE).SynthesizeSpeech(asked())) is not grpc.StatusCode.OK
        await until(lambda: not served.uploads.held)


async def test_a_cancelled_whole_text_frees_its_slot(serve_front, fake):
    pool = fake(hold_after=1)
    async with serve_front(pool, server=BOTH) as served:
        call = Stub(served.channel, RIVA).Synthesize(spoken())
        await until(lambda: pool.running)
        call.cancel()
        await served.idle()


async def test_speech_that_breaks_off_may_be_asked_for_again_if_it_is_one_reply(serve_front, fake):
    pool = fake(failures={"Hello.": (3, Unavailable("the engine was lost"))})
    async with serve_front(pool, server=BOTH) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stub(served.channel, GOOGLE).SynthesizeSpeech(asked())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "the engine was lost; no audio was sent, retry"
        pool.failures.clear()
        assert await code_of(Stub(served.channel, GOOGLE).SynthesizeSpeech(asked())) is grpc.StatusCode.OK
        await until(lambda: not served.uploads.held)


async def test_a_whole_text_that_the_end_of_the_server_cuts_off_has_sent_no_audio(serve_front, fake):
    pool = fake(hold_after=3)
    async with serve_front(pool, server={**BOTH, "drain_seconds": 0.01, "drain_delay_seconds": 0}) as served:
        call = asyncio.ensure_future(code_of(Stub(served.channel, RIVA).Synthesize(spoken())))
        await until(lambda: pool.steps == 3)
        await served.rpc.drain()
        assert await call is grpc.StatusCode.UNAVAILABLE


async def test_a_whole_text_that_nobody_reads_keeps_its_memory_in_the_budget(serve_front):
    path = f"/{GOOGLE.full_name}/SynthesizeSpeech"
    async with serve_front(server=BOTH) as served:
        host, _, port = served.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        message = grpc_message(asked("A text of a few words.").SerializeToString())
        writer.write(PREFACE + CLOSED + call(path) + frame(DATA, message, flags=END_STREAM, stream=1))
        await until(lambda: served.uploads.held > 10_000 and not served.gate.streams)  # the text is spoken
        writer.close()
        await until(lambda: not served.uploads.held)


async def test_the_quota_of_text_holds_for_contracts(serve_front):
    async with serve_front(server=BOTH, max_chars_per_minute_per_caller=10) as served:
        speak = Stub(served.channel, RIVA).Synthesize
        assert await code_of(speak(spoken("Twelve chars"))) is grpc.StatusCode.OK
        assert await code_of(speak(spoken("Twelve chars"))) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_log_and_the_metrics_name_the_contract(serve_front, caplog):
    metrics = Metrics()
    with caplog.at_level("INFO"):
        async with serve_front(server=BOTH, metrics=metrics) as served:
            await Stub(served.channel, GOOGLE).SynthesizeSpeech(asked())
            stream = Stub(served.channel, RIVA).SynthesizeOnline(iter([spoken()]))
            assert [reply async for reply in stream]
    page = generate_latest(metrics.registry).decode()
    for method in ("google.SynthesizeSpeech", "riva.SynthesizeOnline"):
        assert f'voxcpm_rpcs_total{{code="OK",method="{method}"}} 1.0' in page
        assert f"method={method} code=OK" in caplog.text


async def test_spans_have_the_service_of_the_contract(serve_front):
    memory = InMemorySpanExporter()
    services = {"google": GOOGLE.full_name}
    tracing = Tracing(TracingSettings(endpoint="http://unused:1"), SERVICE, memory, services)
    async with serve_front(server=BOTH, tracing=tracing) as served:
        await Stub(served.channel, GOOGLE).SynthesizeSpeech(asked())
    await tracing.close()
    names = {span.name for span in memory.get_finished_spans()}
    assert f"{GOOGLE.full_name}/SynthesizeSpeech" in names and "segment" in names


async def test_bytes_that_are_no_message_are_an_error_of_the_caller(serve_front):
    async with serve_front(server=BOTH) as served:
        for service, method in ((GOOGLE, "SynthesizeSpeech"), (RIVA, "Synthesize")):
            call = served.channel.unary_unary(f"/{service.full_name}/{method}")
            assert await code_of(call(b"\xff\xff")) is grpc.StatusCode.INVALID_ARGUMENT
