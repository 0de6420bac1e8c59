"""Traces and logs of a server with several fronts: no text, no audio, and each line is an object with typed fields."""

from __future__ import annotations

import json
import re

import grpc
import pytest
from support.clients import marked_calls
from support.servers.collector import Collector, collecting
from support.servers.running import serving

from voxcpm_client import Client
from voxcpm_client.errors import InvalidArgument
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

CONNECTIONS = 32  # the probability that one of two fronts gets all of them is 1 in 2 * 10**9
GENERATE = "voxcpm_grpc.v1.VoxCPMService/Generate"


@pytest.fixture(scope="module")
def collected(tmp_path_factory) -> tuple[Collector, set[str], list[dict]]:
    """The spans of a server that has ended, the ids of the clients' traces, and its log."""
    traces = {f"{number + 1:032x}" for number in range(CONNECTIONS)}
    with collecting() as collector:
        flags = ("--fronts", "2", "--tracing.endpoint", collector.endpoint)
        flags += ("--log-format", "json", "--log-level", "debug")
        with serving(tmp_path_factory.mktemp("voices"), *flags) as server:
            for trace in traces:
                speak_on_new_connection(server.address, trace)
            with Client(server.address) as client, pytest.raises(InvalidArgument) as error:
                client.say("Good morning.", cfg_value=99.0, request_id="wrong-8")
            assert error.value.request_id == "wrong-8"
            marked_calls.call_all(server.address)
            server.terminate()
            server.process.wait()
            lines = [json.loads(line) for line in server.log.splitlines()]
        return collector, traces, lines


def speak_on_new_connection(address: str, trace: str) -> None:
    """Speak on a connection of its own, which the system assigns to one of the fronts."""
    config = pb.GenerateConfig(request_id="mine-7", turn=pb.TurnConfig(sampling=pb.Sampling(max_steps=3)))
    messages = [pb.GenerateRequest(config=config), pb.GenerateRequest(text="Good morning.")]
    metadata = (("traceparent", f"00-{trace}-00f067aa0ba902b7-01"),)
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        assert list(tts_pb2_grpc.VoxCPMServiceStub(channel).Generate(iter(messages), metadata=metadata))


def test_every_front_sends_its_spans_before_it_ends(collected):
    collector, traces, _ = collected
    generated = [span for span in collector.spans if span.name == GENERATE]
    assert {span.trace_id.hex() for span in generated} >= traces
    instances = {resource["service.instance.id"] for resource in collector.resources}
    assert len(instances) == 2
    engines = {
        pair.value.string_value
        for span in collector.spans
        if span.name == "segment"
        for pair in span.attributes
        if pair.key == "voxcpm.engine"
    }
    assert engines == {"auto"}


def test_every_process_writes_objects_with_the_request_id(collected):
    *_, lines = collected
    processes = {line.get("process") for line in lines if line.get("request_id") == "mine-7"}
    assert processes == {"front 0", "front 1", "engine auto"}
    assert None in {line.get("process") for line in lines}
    [refused] = [line for line in lines if line["message"] == "rpc" and line["request_id"] == "wrong-8"]
    assert refused["code"] == "INVALID_ARGUMENT"
    found = [line["trace_id"] for line in lines if line["message"] == "rpc" and line["request_id"] == "mine-7"]
    assert set(found) == collected[1]


def test_no_process_logs_or_traces_text_or_audio(collected):
    collector, _, lines = collected
    output = json.dumps(lines, ensure_ascii=False) + "".join(map(str, collector.received))
    assert [mark for mark in marked_calls.MARKS if mark in output] == []


def test_the_spans_of_all_calls_are_sent(collected):
    collector, _, lines = collected
    rpcs = [line for line in lines if line["message"] == "rpc"]
    sent = {span.trace_id.hex() for span in collector.spans if span.name.startswith("voxcpm_grpc.v1.VoxCPMService/")}
    assert sent == {line["trace_id"] for line in rpcs}
    [segment] = [span for span in collector.spans if span.name == "segment"][:1]
    attributes = {pair.key: pair.value for pair in segment.attributes}
    assert attributes["voxcpm.engine"].string_value == "auto" and attributes["voxcpm.steps"].int_value == 3


def test_every_line_of_every_process_is_an_object_with_time_level_logger_and_message(collected):
    for line in collected[2]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["level"] in ("debug", "info", "warning", "error")
        assert line["logger"] and line["message"]


def test_the_object_of_an_rpc_has_typed_fields(collected):
    rpcs = [line for line in collected[2] if line["message"] == "rpc"]
    spoken = next(line for line in rpcs if line["request_id"] == marked_calls.REQUEST_ID)
    assert (spoken["method"], spoken["code"], spoken["caller"]) == ("Generate", "OK", "127.0.0.1")
    assert spoken["characters"] == 2 * len(f"{marked_calls.TEXT}. ")
    assert all(isinstance(spoken[key], float) for key in ("seconds", "queue_seconds", "first_audio_seconds"))
    assert spoken["audio_seconds"] > 0
    refused = next(line for line in rpcs if line["request_id"] == "wrong-8")
    assert refused["code"] == "INVALID_ARGUMENT" and "cfg_value" in refused["field"] and "99" in refused["error"]
    assert "characters" not in next(line for line in rpcs if line["method"] == "GetModelInfo")


def test_the_request_id_of_the_caller_is_in_the_lines_of_the_front_and_of_the_engine(collected):
    mine = [line for line in collected[2] if line.get("request_id") == marked_calls.REQUEST_ID]
    events = {line["message"] for line in mine if line["process"].startswith("engine")}
    assert events >= {"admitted", "finished"}
    assert {line["message"] for line in mine if line["process"].startswith("front")} >= {
        *("rpc", "stream", "slot", "replica"),
    }
