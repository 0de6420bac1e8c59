"""Recordings from https addresses that callers name: only public hosts, within limits of size and time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from voxcpm_gateway.errors import HttpError

MAX_BYTES = 6 << 20  # bytes of a recording that is sent with a call
SECONDS = 10.0  # seconds for all of it
MAX_REDIRECTS = 3
PART_BYTES = 64 << 10
REDIRECTS = (301, 302, 303, 307, 308)
HTTPS_PORT = 443

Address = tuple[str, int]


async def fetch(url: str) -> bytes:
    """The body at an https address. Raises HttpError.

    Each host, also of a redirect, must have public addresses only. The connection goes to an address that was checked,
    so that a second answer of the name server has no effect.
    """
    try:
        async with asyncio.timeout(SECONDS):
            for _ in range(MAX_REDIRECTS + 1):
                parts = _checked(url)
                body, location = await _get(parts, await _addresses(parts))
                if location is None:
                    return body
                url = urljoin(url, location)
            raise _refused(f"it has more than {MAX_REDIRECTS} redirects")
    except TimeoutError:
        raise _refused(f"it was not complete after {SECONDS:g} s") from None
    except (OSError, h11.ProtocolError, ValueError):
        raise _refused("the host cannot be reached, or its answer is not HTTP over TLS") from None


def _checked(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise _refused("it must begin with https:// or be a data URL")
    if parts.username is not None or parts.password is not None:
        raise _refused("it must not have a name or a password")
    return parts


async def _addresses(parts: SplitResult) -> Sequence[Address]:
    host, port = parts.hostname or "", parts.port or HTTPS_PORT
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise _refused("its host has no address") from None
    addresses = [(str(entry[4][0]), port) for entry in found]
    if not addresses or not all(is_public(host) for host, _ in addresses):
        raise _refused("its host is not a public one")
    return addresses


def is_public(address: str) -> bool:
    """True if an IP address belongs to the public internet, also one that an IPv6 address contains."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo and parsed.teredo[1])
        if parsed in NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
    return parsed.is_global and not parsed.is_multicast


NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


async def _get(parts: SplitResult, addresses: Sequence[Address]) -> tuple[bytes, str | None]:
    """The body, or the address that it has moved to."""
    host, port = addresses[0]
    reader, writer = await asyncio.open_connection(host, port, ssl=_tls(), server_hostname=parts.hostname)
    try:
        return await _exchange(parts, reader, writer)
    finally:
        writer.transport.abort()


def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _exchange(
    parts: SplitResult, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[bytes, str | None]:
    http = h11.Connection(h11.CLIENT)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [("host", parts.netloc), ("accept", "audio/*"), ("connection", "close"), ("user-agent", "voxcpm-grpc")]
    request = http.send(h11.Request(method="GET", target=target, headers=headers))
    writer.write((request or b"") + (http.send(h11.EndOfMessage()) or b""))
    await writer.drain()
    body = bytearray()
    while True:
        event = http.next_event()
        match event:
            case h11.NEED_DATA:
                http.receive_data(await reader.read(PART_BYTES))
            case h11.Response(status_code=status) if status in REDIRECTS:
                for name, value in event.headers:
                    if name == b"location":
                        return b"", value.decode("ascii")
                raise _refused("it is a redirect to nowhere")
            case h11.Response(status_code=status) if status != 200:
                raise _refused(f"its host answers with the status {status}")
            case h11.Data():
                body += event.data
                if len(body) > MAX_BYTES:
                    raise _refused(f"it has more than {MAX_BYTES} bytes")
            case h11.EndOfMessage():
                return bytes(body), None
            case h11.ConnectionClosed() | h11.PAUSED:
                raise _refused("its host ended the connection early")


def _refused(reason: str) -> HttpError:
    return HttpError(400, f"the recording at ref_audio cannot be used: {reason}", param="ref_audio")
