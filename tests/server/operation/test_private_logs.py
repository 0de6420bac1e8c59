"""No line of the log has the text or the audio of a user, and as JSON each line is an object with typed fields."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.clients import marked_calls

from voxcpm_grpc import logs
from voxcpm_grpc.logs import JsonFormatter, LogLine


@pytest.fixture
def json_lines() -> Iterator[io.StringIO]:
    """The log of this process as JSON, of all packages at the level debug."""
    written = io.StringIO()
    handler, root = logging.StreamHandler(written), logging.getLogger()
    handler.setFormatter(JsonFormatter())
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield written
    root.removeHandler(handler)
    root.setLevel(before)


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_a_front_logs_no_text_and_no_audio_in_any_call_or_error(serve_front, caplog, json_lines, level):
    caplog.set_level(level, "voxcpm_server")
    caplog.set_level(level, "voxcpm_grpc")
    async with serve_front(max_message_bytes=1 << 20) as served:
        codes = await asyncio.to_thread(marked_calls.call_all, served.address)
        await served.idle()
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"} <= set(codes)
    for output in (caplog.text, json_lines.getvalue()):
        assert output.count(marked_calls.REQUEST_ID) >= 3
        assert [mark for mark in marked_calls.MARKS if mark in output] == []
    for line in json_lines.getvalue().splitlines():
        json.loads(line)


def test_control_characters_are_escaped_and_a_line_stays_one_line():
    record = logging.LogRecord(
        "x", logging.INFO, "", 0, LogLine("rpc", voice='a\n"\x1b[2J\u2028\u202e\x9b\x7fé'), (), None
    )
    line = JsonFormatter("engine").format(record)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u202e]", line)
    assert json.loads(line)["voice"] == 'a\n"\x1b[2J\u2028\u202e\x9b\x7fé'


def test_an_exception_is_a_field_of_its_line():
    try:
        raise ValueError("broken")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    line = json.loads(JsonFormatter().format(logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), info)))
    assert line["message"] == "failed" and line["error_trace"].endswith("ValueError: broken")


def test_a_line_outside_a_request_has_no_request_id():
    assert logs.request_id.get() == ""
    line = json.loads(JsonFormatter().format(logging.LogRecord("x", logging.INFO, "", 0, "a %s", ("word",), None)))
    assert line.keys() == {"time", "level", "logger", "message"} and line["message"] == "a word"


def test_a_start_that_fails_ends_with_an_object_and_status_1():
    command = [sys.executable, "-m", "voxcpm_client", "serve", "--log-format", "json", "--model", "/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["level"] == "error" and "/nowhere" in last["message"]
