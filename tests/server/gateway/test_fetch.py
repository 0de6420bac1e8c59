"""Recordings from addresses that callers name: only public hosts, and only within limits."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
import trustme
from support.servers.uploads import recording

from voxcpm_gateway.requests import fetch

WAV = recording(3)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "255.255.255.255", "198.18.0.1"),
    ],
)
def test_addresses_that_are_not_public_are_not_fetched_from(address):
    assert not fetch.is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "64:ff9b::808:808"])
def test_public_addresses_are(address):
    assert fetch.is_public(address)


@pytest.fixture
async def enabled(served, serve_gateway):
    async with serve_gateway(served.address, allow_ref_audio_urls=True) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.com/a.wav", "must begin with https://"),
        ("ftp://example.com/a.wav", "must begin with https://"),
        ("https://", "must begin with https://"),
        ("https://user:secret@example.com/", "a name or a password"),
        ("https://127.0.0.1/a.wav", "not a public one"),
        ("https://localhost/a.wav", "not a public one"),
        ("https://[::1]/a.wav", "not a public one"),
        ("https://169.254.169.254/latest/meta-data", "not a public one"),
        ("https://2130706433/", "not a public one"),
        ("https://0x7f.1/", "not a public one"),
        ("https://127.1:99999/", "cannot be reached"),
        ("https://no-such-host.invalid/", "has no address"),
    ],
)
async def test_an_address_inside_the_network_is_refused(enabled, served, url, words):
    response = await enabled.speak("Hello.", ref_audio=url)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "ref_audio"
    assert words in response.json()["error"]["message"]
    assert "secret" not in response.text
    assert not served.pool.requests


@asynccontextmanager
async def host(answer: bytes, monkeypatch, *, hang: bool = False):
    """A host with a certificate that is trusted, as recordings.example, which counts as public."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("recordings.example").configure_cert(context)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if hang:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    monkeypatch.setattr(fetch, "_tls", lambda: trusting)
    asked = []

    async def addresses(parts):
        asked.append(parts.hostname)
        if parts.hostname != "recordings.example":
            return await real(parts)
        return [("127.0.0.1", port)]

    real = fetch._addresses
    monkeypatch.setattr(fetch, "_addresses", addresses)
    try:
        yield asked
    finally:
        server.close()


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


URL = "https://recordings.example/a.wav"


async def test_a_recording_of_a_public_host_is_the_voice(enabled, served, monkeypatch):
    async with host(answer("200 OK", WAV), monkeypatch):
        response = await enabled.speak("Hello.", ref_audio=URL)
    assert response.status_code == 200, response.text
    assert served.pool.requests[0].conditioning.reference is not None


async def test_a_redirect_into_the_network_is_refused(enabled, monkeypatch):
    moved = answer("302 Found", b"", "location: https://169.254.169.254/latest/")
    async with host(moved, monkeypatch) as asked:
        response = await enabled.speak("Hello.", ref_audio=URL)
    assert "not a public one" in response.json()["error"]["message"]
    assert asked == ["recordings.example", "169.254.169.254"]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answer("404 Not Found", b"secret"), "status 404"),
        (answer("302 Found", b"", "location: /a.wav"), "more than 3 redirects"),
        (answer("302 Found", b"", "location: http://recordings.example/"), "https://"),
        (b"nonsense\r\n\r\n", "not HTTP over TLS"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n123", "not HTTP over TLS"),
    ],
)
async def test_a_host_that_misbehaves_is_refused(enabled, monkeypatch, reply, words):
    async with host(reply, monkeypatch):
        response = await enabled.speak("Hello.", ref_audio=URL)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert "secret" not in response.text


async def test_an_address_that_is_no_line_of_http_is_refused(enabled, monkeypatch):
    async with host(answer("200 OK", WAV), monkeypatch):
        response = await enabled.speak("Hello.", ref_audio="https://recordings.example/a b.wav")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "ref_audio"


async def test_the_size_and_the_time_of_a_recording_are_limited(enabled, monkeypatch):
    monkeypatch.setattr(fetch, "MAX_BYTES", 100)
    async with host(answer("200 OK", WAV), monkeypatch):
        response = await enabled.speak("Hello.", ref_audio=URL)
    assert "more than 100 bytes" in response.json()["error"]["message"]
    monkeypatch.setattr(fetch, "SECONDS", 0.3)
    async with host(b"HTTP/1.1 200 OK\r\n", monkeypatch, hang=True):
        response = await enabled.speak("Hello.", ref_audio=URL)
    assert "not complete after 0.3 s" in response.json()["error"]["message"]
