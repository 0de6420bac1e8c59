"""No line of the log of a server has the text or the audio of a user, and each line is an object with typed fields."""

from __future__ import annotations

import json
import re

import pytest
from support import marked_calls
from support.collector import Collector, collecting
from support.servers import serving

from voxcpm_client import Client, InvalidArgument


@pytest.fixture(scope="module")
def ended_server(tmp_path_factory) -> tuple[list[str], Collector]:
    """The lines of a server after all calls, and the collector of its traces."""
    with collecting() as collector:
        flags = ("--log-format", "json", "--log-level", "debug", "--tracing.endpoint", collector.endpoint)
        with serving(tmp_path_factory.mktemp("voices"), *flags) as server:
            marked_calls.call_all(server.address)
            with Client(server.address, retries=0) as client, pytest.raises(InvalidArgument) as error:
                client.say("Hi.", request_id="mine-7", cfg_value=99.0)
            assert error.value.request_id == "mine-7"
            server.terminate()
            server.process.wait()
            return server.log.splitlines(), collector


@pytest.fixture
def log_of_a_server(ended_server) -> list[str]:
    return ended_server[0]


def test_a_server_that_ends_has_sent_the_spans_of_all_calls_without_text_or_audio(ended_server):
    lines, collector = ended_server
    rpcs = [line for line in map(json.loads, lines) if line["message"] == "rpc"]
    sent = {span.trace_id.hex() for span in collector.spans if span.name.startswith("voxcpm_grpc.v1.VoxCPMService/")}
    assert sent == {line["trace_id"] for line in rpcs}
    [segment] = [span for span in collector.spans if span.name == "segment"][:1]
    attributes = {pair.key: pair.value for pair in segment.attributes}
    assert attributes["voxcpm.engine"].string_value == "auto" and attributes["voxcpm.steps"].int_value == 3
    output = "".join(map(str, collector.received))
    assert [mark for mark in marked_calls.MARKS if mark in output] == []


def test_every_line_of_every_process_is_an_object_with_time_level_logger_and_message(log_of_a_server):
    found = [json.loads(line) for line in log_of_a_server]
    for line in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["level"] in ("debug", "info", "warning", "error")
        assert line["logger"] and line["message"]
    assert {line.get("process") for line in found} >= {None, "engine auto"}


def test_a_server_logs_no_text_and_no_audio(log_of_a_server):
    output = "\n".join(log_of_a_server)
    assert [mark for mark in marked_calls.MARKS if mark in output] == []


def test_the_object_of_an_rpc_has_typed_fields(log_of_a_server):
    rpcs = [line for line in map(json.loads, log_of_a_server) if line["message"] == "rpc"]
    spoken = next(line for line in rpcs if line["request_id"] == marked_calls.REQUEST_ID)
    assert (spoken["method"], spoken["code"], spoken["caller"]) == ("Generate", "OK", "127.0.0.1")
    assert spoken["characters"] == 2 * len(f"{marked_calls.TEXT}. ")
    assert all(isinstance(spoken[key], float) for key in ("seconds", "queue_seconds", "first_audio_seconds"))
    assert spoken["audio_seconds"] > 0
    refused = next(line for line in rpcs if line["request_id"] == "mine-7")
    assert refused["code"] == "INVALID_ARGUMENT" and "cfg_value" in refused["field"] and "99" in refused["error"]
    assert "characters" not in next(line for line in rpcs if line["method"] == "GetModelInfo")


def test_the_request_id_of_the_caller_is_in_the_lines_of_the_front_and_of_the_engine(log_of_a_server):
    mine = [line for line in map(json.loads, log_of_a_server) if line.get("request_id") == marked_calls.REQUEST_ID]
    events = {line["message"] for line in mine if line.get("process", "").startswith("engine")}
    assert events >= {"admitted", "finished"}
    assert {line["message"] for line in mine if "process" not in line} >= {"rpc", "stream", "slot", "replica"}
