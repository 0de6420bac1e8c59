"""The lines of the log: one for each RPC, and with the level debug the decisions of the server."""

from __future__ import annotations

import logging
import re
import subprocess
import sys

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from support.servers.uploads import add_reference, conditioned, recording

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.voices.presets import Preset

ANNA = (Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hi there. "), recording(0))
TEXT = "A secret. Told twice."
SECONDS = r"\d+\.\d{3}"
PEER = r"127\.0\.0\.1:\d+"
CALLER = r"127\.0\.0\.1"


@pytest.fixture
def lines(caplog):
    """Sets the level of our lines, and returns a function that returns those so far."""

    def lines_from(level: int):
        caplog.set_level(level, "voxcpm_server")
        return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("voxcpm_server")]

    return lines_from


async def test_the_line_of_a_stream_has_its_peer_voice_characters_and_times(serve_front, lines):
    logged = lines(logging.INFO)
    async with serve_front(presets=[ANNA]) as served:
        await served.generate(conditioned(preset="anna"), TEXT)
    [line] = logged()
    assert re.fullmatch(
        rf"rpc id=\w+ method=Generate code=OK seconds={SECONDS} peer={PEER} caller={CALLER} voice=anna characters=21 "
        rf"queue_seconds=0\.010 first_audio_seconds={SECONDS} audio_seconds=0\.420",
        line,
    ), line


async def test_the_lines_of_other_calls_have_the_voice_and_no_characters(serve_front, lines):
    logged = lines(logging.INFO)
    async with serve_front() as served:
        voice = await add_reference(served)
        await served.stub.GetVoice(pb.GetVoiceRequest(id=voice.id))
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=voice.id))
        await served.stub.GetModelInfo(pb.GetModelInfoRequest())
    nothing = "characters=- queue_seconds=- first_audio_seconds=- audio_seconds=0.000"
    for line, method, name in zip(
        logged(), ("AddReference", "GetVoice", "DeleteVoice", "GetModelInfo"), (voice.id,) * 3 + ("-",), strict=True
    ):
        expected = (
            rf"rpc id=\w+ method={method} code=OK seconds={SECONDS} peer={PEER} caller={CALLER} voice={name} {nothing}"
        )
        assert re.fullmatch(expected, line), line


async def test_the_line_of_a_stream_without_a_slot_has_its_wait(serve_front, fake, lines):
    logged = lines(logging.INFO)
    pool = fake()
    for _ in range(4):
        await pool.slots.acquire()
    wait = Duration()
    wait.FromMilliseconds(50)
    async with serve_front(pool) as served:
        with pytest.raises(grpc.aio.AioRpcError, match="no slot became free"):
            await served.generate(pb.GenerateConfig(max_queue_time=wait), TEXT)
    [line] = logged()
    found = re.search(
        r" characters=21 queue_seconds=(\S+) first_audio_seconds=- audio_seconds=0.000 field=- error=", line
    )
    assert found and float(found[1]) >= 0.05, line


async def test_a_name_cannot_add_lines_or_keys(serve_front, lines):
    logged = lines(logging.DEBUG)
    async with serve_front() as served:
        with pytest.raises(grpc.aio.AioRpcError):
            await served.generate(conditioned(preset="a\n2026 rpc id=forged \x1b[2J" + 500 * "x"), TEXT)
    [line] = [line for line in logged() if line.startswith("rpc ")]
    assert re.search(r" voice=a_2026_rpc_id_forged__\[2Jx{72,78} characters=", line), line
    assert not any("\n" in line or "\x1b" in line for line in logged())


async def test_debug_lines_show_the_decisions_about_a_stream_and_not_its_text(serve_front, lines):
    logged = lines(logging.DEBUG)
    async with serve_front(presets=[ANNA]) as served:
        await served.generate(
            pb.GenerateConfig(request_id="one two", conditioning=pb.Conditioning(preset="anna")), TEXT
        )
    said = [line for line in logged() if not line.startswith("rpc ")]
    for expected in (
        rf"admitted method=Generate peer={PEER} streams=1",
        r"voice id=one_two voice=anna",
        r"stream id=one_two requests=\w+\.TURN\.SEGMENT",
        r"segment id=one_two turn=0 segment=0 characters=9 cut=sentence",
        r"slot id=one_two turn=0 segment=0 queue_seconds=0\.010 prompt_tokens=\d+ cached_tokens=2",
        r"spoken id=one_two turn=0 segment=0 reason=\w+",
        r"segment id=one_two turn=0 segment=1 characters=1\d cut=\w+",
    ):
        assert any(re.fullmatch(expected, line) for line in said), (expected, said)
    assert not any("secret" in line or "twice" in line for line in logged())


async def test_without_debug_there_are_no_such_lines(serve_front, lines):
    logged = lines(logging.INFO)
    async with serve_front() as served:
        await served.generate(TEXT)
    assert len(logged()) == 1


@pytest.mark.parametrize("process", ["", "engine cuda:0"])
def test_debug_is_for_our_packages_alone(process):
    script = (
        "import logging; from voxcpm_grpc import logs; logs.set_up(logs.LogOptions('debug'), sys.argv[1])\n"
        "for name in ('grpc._cython', 'asyncio', 'urllib3.connectionpool', 'numba.core'):\n"
        "    logging.getLogger(name).debug('hidden'); logging.getLogger(name).warning('shown %s', name)\n"
        "logging.getLogger('voxcpm_grpc.engine').debug('ours')\n"
        "logging.getLogger('voxcpm_server.rpc').debug('ours')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{script}", process], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("ours") == 2 and done.stderr.count("shown") == 4
    assert "hidden" not in done.stderr
    assert all(f" {process} voxcpm" in line for line in done.stderr.splitlines() if process and "ours" in line)
