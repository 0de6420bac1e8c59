"""Each address answers with and without a slash at its end, without a redirect."""

import re

import pytest
from support.clients.websocket_options import DIRECT
from websockets.asyncio.client import connect

from voxcpm_gateway.routes import openapi

BODIES = {
    "/v1/audio/speech": {"input": "Hello."},
    "/generate": {"target_text": "Hello."},
    "/generate_blocking": {"target_text": "Hello."},
    "/generate_blocking_wav": {"target_text": "Hello."},
}
ADDRESSES = [(method, path) for path, methods in openapi.document()["paths"].items() for method in methods]
NAMED = [
    ("get", "/docs"),
    ("get", "/openapi.json"),
    ("get", "/"),
    ("get", "/page/main.js"),
    ("get", "/page/model.json"),
]


@pytest.mark.parametrize(("method", "path"), [*ADDRESSES, *NAMED[:2], *NAMED[3:]])
async def test_an_address_answers_with_a_slash_as_without(gateway, method, path):
    path = re.sub(r"\{.*?\}", "tts-1" if path.startswith("/v1/models") else "nobody", path)
    plain, slashed = [
        await gateway.http.request(method, address, json=BODIES.get(path)) for address in (path, f"{path}/")
    ]
    assert plain.status_code not in (405, 500)
    assert "there is no such address" not in plain.text
    assert slashed.status_code == plain.status_code
    assert slashed.headers["content-type"] == plain.headers["content-type"]
    if plain.headers["content-type"] == "application/json" and path not in ("/v1/audio/voices", "/prompts"):
        assert slashed.json() == plain.json()
    doubled = await gateway.http.request(method, f"{path}//", json=BODIES.get(path))
    assert doubled.status_code in (404, 405)


async def test_the_metrics_count_an_address_with_a_slash_as_the_same(gateway):
    await gateway.http.get("/v1/models/")
    assert 'requests_total{route="/v1/models",status="200"} 1.0' in (await gateway.http.get("/metrics/")).text


async def test_the_websocket_opens_with_a_slash(gateway):
    async with connect("ws://{}:{}/v1/audio/stream/".format(*gateway.address), **DIRECT) as socket:
        await socket.close()


@pytest.mark.parametrize("path", ["/v1/", "/nothing/", "/v1/audio/speech//", "/page/", "/docs/openapi"])
async def test_unknown_addresses_stay_unknown(gateway, path):
    response = await gateway.http.get(path)
    assert response.status_code == 404
    assert "location" not in response.headers


async def test_a_slash_of_a_name_is_part_of_it(gateway):
    for written, name in (("a%2F", "a/"), ("a%2F/", "a/"), ("a", "a"), ("a/b", "a/b"), ("a/b/", "a/b")):
        response = await gateway.http.delete(f"/v1/audio/voices/{written}")
        assert response.status_code == 404
        assert repr(name) in response.json()["error"]["message"]
    assert (await gateway.http.delete("/v1/audio/voices/")).status_code == 405


async def test_links_of_the_page_of_routes_lead_somewhere(gateway):
    for address in ("/docs", "/docs/"):
        page = await gateway.http.get(address)
        [link] = re.findall(r'href="([^"]+)"', page.text)
        found = await gateway.http.get(page.url.join(link))
        assert found.json()["openapi"].startswith("3.1")
