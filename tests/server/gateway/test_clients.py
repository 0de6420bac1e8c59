"""Clients of the gateway that leave, stall, send too much, or come from somewhere else."""

import asyncio
import json
import logging

import pytest
from support.servers.waiting import until

SPEECH = {"input": "Hello there, this is a long text. " * 20, "response_format": "pcm"}


async def sent(gateway, body: bytes, *headers: str, path: str = "/v1/audio/speech", method: str = "POST"):
    """A connection on which a request was sent."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if not any(header.startswith(("Content-Length", "Transfer-Encoding")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    return reader, writer


async def status_of(reader) -> int:
    return int((await reader.readline()).split()[1])


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/generate", "/generate_blocking"])
async def test_a_client_that_goes_away_cancels_its_stream_within_a_step(gateway, served, path):
    served.pool.hold_after = 3
    body = {"target_text": SPEECH["input"]} if path != "/v1/audio/speech" else SPEECH
    _, writer = await sent(gateway, json.dumps(body).encode(), path=path)
    await until(lambda: served.pool.steps == 3)
    assert served.pool.running
    writer.transport.abort()
    await served.idle()  # while no step is made: the cancel does not wait for the next audio
    assert served.pool.steps == 3


async def test_a_client_that_goes_away_in_the_queue_leaves_it(gateway, served):
    for _ in range(4):
        await served.pool.slots.acquire()
    _, writer = await sent(gateway, json.dumps(SPEECH).encode())
    await until(lambda: served.pool.waiting)
    writer.transport.abort()
    await until(lambda: not served.pool.waiting)
    for _ in range(4):
        served.pool.slots.release()


async def test_a_slow_reader_costs_only_itself(gateway, served):
    body = json.dumps({"input": "x" * 4000 + ".", "response_format": "pcm", "sample_rate": 192000}).encode()
    reader, writer = await sent(gateway, body)
    assert await status_of(reader) == 200
    await served.pool.stalled()
    made = served.pool.steps
    assert made < 4000
    assert (await gateway.speak("Hello.")).status_code == 200
    writer.transport.abort()
    await served.idle()


async def test_a_client_that_reads_nothing_is_cut_off(served, serve_gateway):
    async with serve_gateway(served.address, write_seconds=0.2) as gateway:
        body = json.dumps({"input": "x" * 4000 + ".", "response_format": "pcm", "sample_rate": 192000}).encode()
        _, writer = await sent(gateway, body)
        await until(lambda: served.pool.running)
        await served.idle()  # though the client neither reads nor closes
        writer.transport.abort()


async def test_half_a_request_is_closed_and_a_whole_one_is_not(served, serve_gateway):
    async with serve_gateway(served.address, head_seconds=0.2) as gateway:
        for start in (b"", b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"):
            reader, writer = await asyncio.open_connection(*gateway.address)
            writer.write(start)
            assert await reader.read() == b""
            writer.close()
        served.pool.step_seconds = 0.05
        assert (await gateway.speak("Hello there.")).status_code == 200  # takes longer than the limit


async def test_a_body_that_stops_is_refused(served, serve_gateway):
    async with serve_gateway(served.address, read_seconds=0.2) as gateway:
        reader, writer = await sent(gateway, b'{"input": ', "Content-Length: 100")
        assert await status_of(reader) == 408
        assert b'"error"' in await reader.read()
        writer.close()


@pytest.mark.parametrize("header", ["Content-Length: 3000", "Transfer-Encoding: chunked"])
async def test_a_body_that_is_too_large_is_refused_early(served, serve_gateway, header):
    async with serve_gateway(served.address, max_body_bytes=2000) as gateway:
        body = b"x" * 3000
        reader, writer = await sent(gateway, b"bb8\r\n" + body if "chunked" in header else body[:100], header)
        assert await status_of(reader) == 413
        assert b"limit is 2000" in await reader.read()
        writer.close()
        assert gateway.state.gateway.bodies.held == 0


async def test_bodies_share_the_memory(served, serve_gateway):
    async with serve_gateway(served.address, max_bodies_bytes=1000) as gateway:
        held = [await sent(gateway, b"x" * 600, "Content-Length: 900")]
        await until(lambda: gateway.state.gateway.bodies.held == 600)
        response = await gateway.speak("x" * 600)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        held[0][1].transport.abort()
        await until(lambda: gateway.state.gateway.bodies.held == 0)
        assert (await gateway.speak("x." * 100)).status_code == 200


async def test_a_stream_that_fails_after_its_first_audio_has_no_end_of_the_body_or_an_event(gateway, served):
    served.pool.failures["Hello there."] = (5, RuntimeError("secret"))
    for form in ("audio", "sse"):
        body = {"input": "Hello there.", "response_format": "pcm", "stream_format": form}
        served.pool.released.clear()
        served.pool.hold_after = served.pool.steps + 3
        reader, writer = await sent(gateway, json.dumps(body).encode(), "Connection: close")
        assert await status_of(reader) == 200
        served.pool.release()
        answer = await reader.read()
        assert answer.endswith(b"\r\n0\r\n\r\n") == (form == "sse")
        assert b"secret" not in answer
        assert (b"speech.audio.error" in answer) == (form == "sse")
        writer.close()


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_pages_of_other_origins_are_refused(gateway, served, origin):
    response = await gateway.http.post("/v1/audio/speech", json={"input": "Hello."}, headers={"origin": origin})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in response.headers
    assert not served.pool.requests


async def test_origins_of_the_configuration_and_the_own_pages_may_call(served, serve_gateway):
    async with serve_gateway(served.address, allowed_origins=("https://app.example",)) as gateway:
        own = f"http://{gateway.address[0]}:{gateway.address[1]}"
        for origin in ("https://app.example", own):
            response = await gateway.http.post("/v1/audio/speech", json={"input": "Hello."}, headers={"origin": origin})
            assert response.status_code == 200
        asked = {
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        preflight = await gateway.http.options("/v1/audio/speech", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert (
            await gateway.http.options("/v1/audio/speech", headers=asked | {"origin": "https://x"})
        ).status_code == 403


async def test_the_log_has_one_line_for_a_request_without_its_text(gateway, caplog):
    caplog.set_level(logging.INFO, "voxcpm_gateway")
    response = await gateway.http.post(
        "/v1/audio/speech", json={"input": "Confidential words."}, headers={"x-request-id": "call-7"}
    )
    assert response.headers["x-request-id"] == "call-7"
    await gateway.http.get("/v1/models/secret-name")
    lines = [str(record.msg) for record in caplog.records if record.name == "voxcpm_gateway"]
    assert len(lines) == 2
    assert lines[0].startswith("http id=call-7 method=POST route=/v1/audio/speech status=200 ")
    assert "route=/v1/models/_id_ status=404 code=model_not_found" in lines[1]
    assert not any(word in line for line in lines for word in ("Confidential", "secret-name"))
