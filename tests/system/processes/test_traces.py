"""Traces and logs of a server with several fronts."""

from __future__ import annotations

import json

import grpc
import pytest
from support import marked_calls
from support.collector import Collector, collecting
from support.servers import serving

from voxcpm_client import Client
from voxcpm_client.errors import InvalidArgument
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

CONNECTIONS = 32  # the probability that one of two fronts gets all of them is 1 in 2 * 10**9
GENERATE = "voxcpm_grpc.v1.VoxCPMService/Generate"

pytestmark = pytest.mark.timeout(400)  # several engines and fronts start at once


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


def test_no_process_logs_text_or_audio(collected):
    *_, lines = collected
    output = json.dumps(lines, ensure_ascii=False)
    assert [mark for mark in marked_calls.MARKS if mark in output] == []
