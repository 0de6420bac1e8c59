"""Traces: a span for each RPC under the caller's span, with a span for each segment and its phases."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.servers.collector import collecting
from support.servers.uploads import add_reference

from voxcpm_client import AsyncClient, Client
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings import sources
from voxcpm_grpc.settings.operation import TracingSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.rpc.tracing import Tracing

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=abc"))
NOT_SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
TEXT = "First one. And the second one."


class Traced:
    """Tracing whose spans stay in memory."""

    def __init__(self, **settings: Any) -> None:
        self.memory = InMemorySpanExporter()
        self.tracing = Tracing(TracingSettings(endpoint="http://unused:1", **settings), SERVICE, self.memory)

    async def spans(self) -> list[Any]:
        """All spans, in the order of their begin. The end of the tracing."""
        await self.tracing.close()
        return sorted(self.memory.get_finished_spans(), key=lambda span: (span.start_time, -span.end_time))


@pytest.fixture
def traced() -> Traced:
    return Traced()


def id_of(span: Any) -> str:
    return f"{span.context.span_id:016x}"


def children(spans: list[Any], parent: Any) -> list[Any]:
    return [span for span in spans if span.parent and span.parent.span_id == parent.context.span_id]


def named(spans: list[Any], name: str) -> list[Any]:
    return [span for span in spans if span.name == name]


async def test_the_span_of_an_rpc_continues_the_trace_of_the_caller(serve_front, traced):
    async with serve_front(tracing=traced.tracing) as served:
        await served.generate(pb.GenerateConfig(request_id="mine-7"), TEXT, metadata=SAMPLED)
    spans = await traced.spans()
    [span] = named(spans, f"{SERVICE}/Generate")
    assert span.kind is SpanKind.SERVER and span.status.status_code is StatusCode.UNSET
    assert {f"{one.context.trace_id:032x}" for one in spans} == {TRACE}
    assert f"{span.parent.span_id:016x}" == PARENT and span.context.trace_state["vendor"] == "abc"
    found = dict(span.attributes)
    assert (
        found.items()
        >= {
            "rpc.system": "grpc",
            "rpc.service": SERVICE,
            "rpc.method": "Generate",
            "rpc.grpc.status_code": 0,
            "voxcpm.request_id": "mine-7",
            "voxcpm.characters": len(TEXT),
            "voxcpm.queue_seconds": 0.01,
        }.items()
    )
    assert found["voxcpm.audio_seconds"] == pytest.approx(0.58, abs=0.2)


async def test_each_segment_has_a_span_with_its_engine_and_its_phases(serve_front, fake, traced):
    pool = fake(step_seconds=0.015)  # longer than the wait for a slot that the pool reports
    async with serve_front(pool, tracing=traced.tracing) as served:
        await served.generate(TEXT)
    spans = await traced.spans()
    [rpc] = named(spans, f"{SERVICE}/Generate")
    segments = children(spans, rpc)
    assert [span.name for span in segments] == ["segment", "segment"]
    assert [span.attributes["voxcpm.segment"] for span in segments] == [0, 1]
    for span in segments:
        assert span.attributes["voxcpm.engine"] == "fake"
        assert span.attributes["voxcpm.steps"] > 0 and span.attributes["voxcpm.characters"] > 0
        queue, first, generation = children(spans, span)
        assert [queue.name, first.name, generation.name] == ["queue", "first audio", "generation"]
        assert queue.start_time == span.start_time and generation.end_time == span.end_time
        assert queue.end_time == first.start_time and first.end_time == generation.start_time
        assert rpc.start_time <= span.start_time <= span.end_time <= rpc.end_time


async def test_an_error_is_recorded_with_its_code(serve_front, traced, fake):
    pool = fake()
    pool.failures["Broken."] = (2, RuntimeError("a secret"))
    async with serve_front(pool, tracing=traced.tracing) as served:
        with pytest.raises(grpc.aio.AioRpcError):
            await served.generate(pb.GenerateConfig(turn=pb.TurnConfig(sampling=pb.Sampling(cfg_value=11))), TEXT)
        with pytest.raises(grpc.aio.AioRpcError):
            await served.generate("Broken.")
        with pytest.raises(grpc.aio.AioRpcError):
            await served.stub.GetVoice(pb.GetVoiceRequest(id="prm_" + "a" * 32))
    spans = await traced.spans()
    refused, broken = named(spans, f"{SERVICE}/Generate")
    [missing] = named(spans, f"{SERVICE}/GetVoice")
    codes = [span.attributes["rpc.grpc.status_code"] for span in (refused, broken, missing)]
    assert codes == [3, 13, 5]
    assert refused.attributes["error.type"] == "INVALID_ARGUMENT" and refused.status.status_code is StatusCode.UNSET
    [event] = refused.events
    assert event.name == "exception" and "cfg_value" in event.attributes["exception.message"]
    assert broken.attributes["error.type"] == "INTERNAL" and broken.status.status_code is StatusCode.ERROR
    [segment] = named(spans, "segment")
    assert segment.attributes["error.type"] == "INTERNAL" and segment.status.status_code is StatusCode.ERROR
    assert "secret" not in "".join(span.to_json() for span in spans)


async def test_a_cancelled_call_ends_its_spans(serve_front, traced, fake):
    pool = fake(hold_after=2, step_seconds=0.015)
    async with serve_front(pool, tracing=traced.tracing) as served:
        call = served.stub.Generate(iter([pb.GenerateRequest(text=TEXT)]))
        async for chunk in call:
            if chunk.audio:
                break
        call.cancel()
        await served.idle()
    spans = await traced.spans()
    [rpc], [segment] = named(spans, f"{SERVICE}/Generate"), named(spans, "segment")
    assert rpc.attributes["rpc.grpc.status_code"] == grpc.StatusCode.CANCELLED.value[0]
    assert rpc.attributes["error.type"] == segment.attributes["error.type"] == "CANCELLED"
    assert [span.name for span in children(spans, segment)] == ["queue", "first audio", "generation"]


async def test_an_upload_has_a_span(serve_front, traced):
    async with serve_front(tracing=traced.tracing) as served:
        await add_reference(served)
    [span] = await traced.spans()
    assert span.name == f"{SERVICE}/AddReference" and span.attributes["rpc.grpc.status_code"] == 0


async def test_a_refused_call_before_the_server_is_ready_has_a_span(traced):
    from voxcpm_grpc.settings.schema import Settings
    from voxcpm_grpc.v1 import tts_pb2_grpc
    from voxcpm_server.services.server import RpcServer

    rpc = RpcServer(Settings(listen="127.0.0.1:0"), tracing=traced.tracing)
    async with grpc.aio.insecure_channel(await rpc.open()) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="starting"):
            await tts_pb2_grpc.VoxCPMServiceStub(channel).GetModelInfo(pb.GetModelInfoRequest())
    await rpc.stop()
    [span] = await traced.spans()
    assert span.attributes["rpc.grpc.status_code"] == grpc.StatusCode.UNAVAILABLE.value[0]


@pytest.mark.parametrize(
    ("ratio", "metadata", "expected"),
    [("1", NOT_SAMPLED, False), ("0", SAMPLED, True), ("0", (), False), ("1", (), True), (None, (), True)],
    ids=["unsampled caller", "sampled caller", "ratio 0", "ratio 1", "no ratio"],
)
@pytest.mark.parametrize("deprecated", [False, True], ids=["variables", "setting"])
async def test_the_caller_decides_about_the_sample_and_else_the_ratio(
    serve_front, monkeypatch, ratio, metadata, expected, deprecated
):
    if ratio is not None and not deprecated:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    traced = Traced(sample_ratio=ratio if deprecated else None)
    async with serve_front(tracing=traced.tracing) as served:
        await served.generate(TEXT, metadata=metadata)
    assert bool(await traced.spans()) is expected


@pytest.mark.parametrize("state", ["=,=;", "a=1,a=2", "A B=1", 100 * "a=b,", 600 * "x"])
async def test_a_wrong_tracestate_costs_neither_the_trace_nor_a_line_of_the_log(serve_front, traced, caplog, state):
    caplog.set_level("WARNING")
    async with serve_front(tracing=traced.tracing) as served:
        metadata = (SAMPLED[0], ("tracestate", state))
        await served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata)
    [span] = await traced.spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert not caplog.records


@pytest.mark.parametrize("header", ["", "00-0-0-01", "00-" + "g" * 32 + "-" + "0" * 16 + "-01", "x" * 2000])
async def test_a_wrong_traceparent_begins_a_new_trace(serve_front, traced, header):
    async with serve_front(tracing=traced.tracing) as served:
        await served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=(("traceparent", header),))
    [span] = await traced.spans()
    assert span.parent is None


async def test_the_line_of_a_traced_rpc_has_the_id_of_its_trace(serve_front, traced, caplog):
    caplog.set_level("INFO", "voxcpm_server")
    async with serve_front(tracing=traced.tracing) as served:
        await served.generate(TEXT, metadata=SAMPLED)
    assert f" trace_id={TRACE}" in caplog.text
    await traced.tracing.close()


async def test_a_collector_receives_the_spans_of_a_server_that_ends(serve_front, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "speech")
    with collecting() as collector:
        tracing = Tracing(TracingSettings(endpoint=collector.endpoint), SERVICE)
        async with serve_front(tracing=tracing) as served:
            await served.generate(TEXT, metadata=SAMPLED)
        await tracing.close()
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
        assert sorted({span.name for span in collector.spans}) == sorted(
            [f"{SERVICE}/Generate", "segment", "queue", "first audio", "generation"]
        )
        [resource] = collector.resources
        assert resource["service.name"] == "speech" and resource["service.version"]


async def test_calls_succeed_and_the_server_ends_without_a_collector(serve_front):
    tracing = Tracing(TracingSettings(endpoint="http://127.0.0.1:1"), SERVICE)
    async with serve_front(tracing=tracing) as served:
        for _ in range(3):
            assert await served.generate(TEXT)
    await tracing.close()


async def test_the_python_client_continues_the_current_span(serve_front, traced):
    tracer = TracerProvider().get_tracer("test")
    async with serve_front(tracing=traced.tracing) as served:
        with tracer.start_as_current_span("asynchronous") as first:
            async with AsyncClient(served.address) as client:
                await client.say(TEXT)

        def blocking() -> Any:
            with Client(served.address) as client, tracer.start_as_current_span("blocking") as span:
                client.model_info()
            return span

        second = await asyncio.to_thread(blocking)
        given = dict(SAMPLED)
        with tracer.start_as_current_span("overridden"):
            async with AsyncClient(served.address, metadata={"Traceparent": given["traceparent"]}) as client:
                await client.model_info()
        async with AsyncClient(served.address) as client:
            await client.health()
            await client.voices()
    spans = await traced.spans()
    [generate] = named(spans, f"{SERVICE}/Generate")
    by_blocking, by_metadata = named(spans, f"{SERVICE}/GetModelInfo")[-2:]
    assert generate.parent.span_id == first.get_span_context().span_id
    assert by_blocking.parent.span_id == second.get_span_context().span_id
    assert f"{by_metadata.parent.span_id:016x}" == PARENT
    assert [span.parent for span in named(spans, f"{SERVICE}/ListVoices")] == [None]


def test_neither_a_server_nor_a_client_imports_opentelemetry_without_the_setting(tmp_path):
    script = (
        "import sys, asyncio, voxcpm_server.main, voxcpm_client\n"
        "from voxcpm_grpc.settings.schema import Settings\n"
        "from voxcpm_server.services.server import RpcServer\n"
        "async def serve():\n"
        "    server = RpcServer(Settings(listen='127.0.0.1:0'))\n"
        "    client = voxcpm_client.AsyncClient(await server.open(), retries=0)\n"
        "    try: await client.model_info()\n"
        "    except voxcpm_client.SpeechError: pass\n"
        "    await client.aclose(); await server.stop()\n"
        "asyncio.run(serve())\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartupError, match=r"pip install 'voxcpm-grpc\[tracing\]'"):
        Tracing(TracingSettings(endpoint="http://127.0.0.1:4317"), SERVICE)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "grpc://host:4317", "http://", "http://a b:1"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint):
    with pytest.raises(StartupError, match=r"tracing\.endpoint is .*; it must be http:// or https://"):
        sources.load(["--tracing.endpoint", endpoint], {})
