"""The memory of a request to the gateway is free when it has ended, without the garbage collector.

asyncio leaves a small cycle for each TCP connection: its transport.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import httpx2
from support.clients.websocket_options import DIRECT
from support.doubles.cycles import no_garbage
from support.doubles.rpc_tasks import rpc_tasks
from support.servers.uploads import recording
from support.servers.waiting import until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

TEXT = "Hello there. How are you?"
LONG = 10 * TEXT


async def speak(served: Any, gateway: Any) -> None:
    for form in ("audio", "sse"):
        assert (await gateway.speak(TEXT, response_format="flac", stream_format=form)).status_code == 200


async def fail(served: Any, gateway: Any) -> None:
    assert (await gateway.speak(TEXT, voice="nobody")).status_code == 404
    assert (await gateway.speak("...")).status_code == 400
    assert (await gateway.http.post("/v1/audio/speech", content=b"{")).status_code == 400
    served.pool.failures["Broken."] = (5, RuntimeError("secret"))
    with suppress(httpx2.HTTPError):
        await gateway.speak("Broken.", response_format="pcm")


async def leave(served: Any, gateway: Any) -> None:
    served.pool.hold_after = served.pool.steps + 3
    body = {"input": LONG, "response_format": "pcm"}
    async with gateway.http.stream("POST", "/v1/audio/speech", json=body) as response:
        await anext(response.aiter_raw())
    await go_on(served)


async def use_voices(served: Any, gateway: Any) -> None:
    files = {"audio_sample": ("a.wav", recording(), "audio/wav")}
    await gateway.http.post("/v1/audio/voices", files=files, data={"name": "ann", "consent": "given"})
    await gateway.http.get("/v1/audio/voices")
    await gateway.http.delete("/v1/audio/voices/ann")


async def use_sockets(served: Any, gateway: Any) -> None:
    interrupted = [text(TEXT), {"type": "flush"}, {"type": "interrupt"}, text(TEXT), {"type": "finish"}]
    await converse(gateway, {"type": "config"}, *interrupted)
    await converse(gateway, {"type": "config", "voice": "nobody"}, text(TEXT))
    await converse(gateway, {"type": "config"}, text(TEXT), {"type": "wrong"})
    await converse(gateway, {"type": "wrong"})
    served.pool.hold_after = served.pool.steps + 3
    async with socket(gateway) as connection:
        for message in ({"type": "config"}, text(LONG)):
            await connection.send(json.dumps(message))
        await connection.recv()
    await go_on(served)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def socket(gateway: Any) -> connect:
    host, port = gateway.address
    return connect(f"ws://{host}:{port}/v1/audio/stream", **DIRECT)


async def converse(gateway: Any, *messages: dict[str, str]) -> None:
    async with socket(gateway) as connection:
        with suppress(ConnectionClosed):
            for message in messages:
                await connection.send(json.dumps(message))
            async for _ in connection:
                pass


async def go_on(served: Any) -> None:
    """Let the pool go on when the call that it held has been cancelled."""
    await served.idle()
    served.pool.release()
    served.pool.released.clear()


async def test_requests_leave_nothing(served, gateway):
    async def once() -> None:
        for work in (speak, fail, leave, use_voices, use_sockets):
            await work(served, gateway)
        await served.idle()
        await until(lambda: not rpc_tasks())
        await served.generate("Next.")  # gRPC keeps the last call until the next one arrives

    await once()
    with no_garbage():
        await once()
