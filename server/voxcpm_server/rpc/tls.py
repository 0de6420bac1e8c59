"""The TLS credentials of a server, from files that may be replaced while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.security import TlsSettings
from voxcpm_server.auth.watched_file import WatchedFiles


def credentials(settings: TlsSettings) -> grpc.ServerCredentials | None:
    """The credentials of a server; None without TLS. Raises StartupError for files that cannot be used.

    New connections use a replaced certificate within a second; open connections go on.
    """
    if settings.cert is None or settings.key is None:
        return None
    cert, key, client_ca = settings.cert, settings.key, settings.client_ca
    given = tuple(path for path in (cert, key, client_ca) if path is not None)
    files = WatchedFiles(given, lambda: _configuration(cert, key, client_ca))
    return grpc.dynamic_ssl_server_credentials(
        files.value(), files.value, require_client_authentication=client_ca is not None
    )


def _configuration(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCertificateConfiguration:
    """Raises OSError, and StartupError for a pair that does not match or is not in PEM format."""
    chain, private, clients = cert.read_bytes(), key.read_bytes(), client_ca.read_bytes() if client_ca else None
    try:  # OpenSSL names the fault; gRPC would only log one and go on with the last certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, password=_no_password)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise StartupError(f"tls.cert {cert}, tls.key {key} or tls.client_ca cannot be used: {reason}") from None
    except ValueError as error:
        raise StartupError(f"tls.key {key} cannot be used: {error}") from None
    return grpc.ssl_server_certificate_configuration([(private, chain)], clients)


def _no_password() -> str:
    raise ValueError("it is encrypted; remove its password")
