"""The reason why a server does not answer, found with a connection of its own.

gRPC reports most of these faults as "failed to connect to all addresses". A short connection tells whether the server
speaks TLS, and whether its certificate is good.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import closing, suppress

from voxcpm_client.transport.security import Security
from voxcpm_client.transport.target import Target

SECONDS = 3.0  # seconds for each connection
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty SETTINGS frame follows
SETTINGS = 4  # the first frame of an HTTP/2 server has this type
TLS_RECORDS = (0x15, 0x16)  # the types are alert and handshake
CLIENT_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
WRONG_NAME, EXPIRED, WRONG_ADDRESS = 62, 10, 64  # OpenSSL calls them X509_V_ERR_*


async def diagnose(target: Target, security: Security) -> str:
    """A sentence about a wrong configuration that no retry can mend; empty if there is none to see."""
    if not target.host:
        return ""
    return await asyncio.to_thread(_diagnose, target, security)


def _diagnose(target: Target, security: Security) -> str:
    try:
        return _with_tls(target, security) if security.encrypted else _without_tls(target)
    except OSError:  # nothing listens there, or it does not answer: gRPC has said that already
        return ""


def _without_tls(target: Target) -> str:
    data = _plain_answer(target)
    if data[:5] == b"HTTP/":
        return f"the server at {target.name} is a web server of HTTP/1.1, not a gRPC server; check the port"
    if data[:1] in map(_byte, TLS_RECORDS) or (not data and _speaks_tls(target)):
        return f"the server at {target.name} uses TLS, and this client does not; set tls"
    return ""


def _with_tls(target: Target, security: Security) -> str:
    context = ssl.create_default_context(cafile=security.ca)
    if security.cert is not None:
        context.load_cert_chain(security.cert, security.key)
    if security.given is not None:  # its authorities are not known here
        context = _trusting()
    context.set_alpn_protocols(["h2"])
    try:
        with _connected(target) as plain, context.wrap_socket(plain, server_hostname=target.host) as encrypted:
            encrypted.sendall(PREFACE)
            if not encrypted.recv(1):  # a missing client certificate is refused after the handshake, often in silence
                return _about_client_certificate(target, security)
    except ssl.SSLCertVerificationError as error:
        return _about_certificate(target, error)
    except ssl.SSLError as error:
        if _is_http2(_plain_answer(target)):
            return f"the server at {target.name} does not use TLS, and this client does; leave out tls"
        if any(word in (error.reason or "") for word in CLIENT_CERTIFICATE):
            return _about_client_certificate(target, security)
        return f"the TLS handshake with {target.name} failed: {error.reason or error}"
    except ConnectionError:
        if _is_http2(_plain_answer(target)):
            return f"the server at {target.name} does not use TLS, and this client does; leave out tls"
    return ""


def _about_certificate(target: Target, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in (WRONG_NAME, WRONG_ADDRESS):
        remedy = "connect to a name that it has"
    elif error.verify_code == EXPIRED:
        remedy = "the server needs a new one"
    else:
        remedy = "set ca to the file of its authority"
    return f"the certificate of {target.name} is not trusted: {error.verify_message.rstrip('.')}; {remedy}"


def _about_client_certificate(target: Target, security: Security) -> str:
    remedy = "set cert and key" if security.cert is None else "it may not accept the one of cert"
    return f"the server at {target.name} ends TLS connections; it may ask for a client certificate: {remedy}"


def _connected(target: Target) -> socket.socket:
    return socket.create_connection((target.host, target.port), SECONDS)


def _plain_answer(target: Target) -> bytes:
    """The first bytes of the server after the preface of HTTP/2; empty if it ends the connection."""
    with closing(_connected(target)) as connection, suppress(ConnectionError):
        connection.sendall(PREFACE)
        return connection.recv(9)
    return b""


def _is_http2(data: bytes) -> bool:
    return len(data) > 3 and data[3] == SETTINGS


def _speaks_tls(target: Target) -> bool:
    try:
        with _connected(target) as plain, _trusting().wrap_socket(plain, server_hostname=target.host):
            return True
    except ssl.SSLError as error:
        return error.reason != "WRONG_VERSION_NUMBER" and "UNEXPECTED_EOF" not in (error.reason or "")
    except ConnectionError:
        return False


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _byte(number: int) -> bytes:
    return bytes([number])
