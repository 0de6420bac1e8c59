"""The identification of callers by what their calls bring along."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from voxcpm_grpc.errors import Exhausted, Reason, Unauthenticated
from voxcpm_grpc.network.credentials import MAX_CREDENTIAL_BYTES, fault, size_of
from voxcpm_grpc.settings.schema import Settings
from voxcpm_server.auth.keys import PREFIX, Keys
from voxcpm_server.auth.principal import Principal
from voxcpm_server.auth.tokens import Tokens
from voxcpm_server.auth.watched_file import WatchedFiles

Metadata = Iterable[tuple[str, str | bytes]]
Certificate = Mapping[str, Iterable[bytes]]
"""The properties that `ServicerContext.auth_context` returns: `x509_common_name` and others."""
SCHEME = "bearer"


class Authenticator:
    """Identifies the callers of a server.

    With API keys or tokens configured, every call needs one of them. With client certificates alone, the certificate
    identifies the caller. With none of the three, callers have no identity.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises StartupError for a file that cannot be used."""
        auth = settings.auth
        self._keys = WatchedFiles((path,), lambda: Keys.read(path)) if (path := auth.keys) else None
        self._tokens = Tokens(auth) if auth.jwks else None
        self._certificates = settings.tls.client_ca is not None
        self._admins = frozenset(auth.admin_certificates)

    async def open(self) -> None:
        """Read the public keys of tokens. Raises StartupError."""
        if self._tokens is not None:
            await self._tokens.open()

    async def principal(self, metadata: Metadata, certificate: Callable[[], Certificate]) -> Principal | None:
        """The principal of a call; None if callers have no identity. Raises Unauthenticated and Exhausted.

        certificate: returns the properties of the client's certificate
        """
        check_length(metadata)
        if self._keys is None and self._tokens is None:
            return certificate_principal(certificate(), self._admins) if self._certificates else None
        credential = bearer(metadata)
        if credential.startswith(PREFIX):
            if self._keys is None:
                raise Unauthenticated("this server takes JSON web tokens and no API keys")
            if (principal := self._keys.value().principal(credential)) is None:
                raise Unauthenticated("the API key is not valid; it may have been revoked")
            return principal
        if self._tokens is None:
            raise Unauthenticated(f"the API key is not valid; keys of this server begin with {PREFIX}")
        return await self._tokens.principal(credential)


def check_length(metadata: Metadata) -> None:
    """Raise Exhausted for a credential that is too long, also if the server needs none."""
    for name, value in metadata:
        if name == "authorization" and isinstance(value, str) and (text := fault(size := size_of(value))):
            raise Exhausted(
                text,
                retry_after=math.inf,
                reason=Reason.CREDENTIAL_TOO_LONG,
                bytes=size,
                limit=MAX_CREDENTIAL_BYTES,
            )


def bearer(metadata: Metadata) -> str:
    """The credential of the header `authorization`. Raises Unauthenticated."""
    found = [value for name, value in metadata if name == "authorization" and isinstance(value, str)]
    if not found:
        raise Unauthenticated(
            "the call has no credential; send the key as `authorization: Bearer KEY`",
            reason=Reason.CREDENTIAL_MISSING,
        )
    if len(found) > 1:
        raise Unauthenticated("the call has several `authorization` headers; send one")
    scheme, _, credential = found[0].strip().partition(" ")
    if scheme.lower() != SCHEME or not credential.strip():
        raise Unauthenticated("the header `authorization` must be `Bearer KEY`")
    return credential.strip()


def certificate_principal(certificate: Certificate, admins: Collection[str] = ()) -> Principal:
    """The principal of a client certificate: its first URI or DNS name (SAN), or its common name.

    admins: names of admins
    """
    for field in ("peer_spiffe_id", "x509_subject_alternative_name", "x509_common_name"):
        for value in certificate.get(field, ()):
            if name := value.decode(errors="replace").strip():
                return Principal(f"cert:{name}", admin=name in admins)
    raise Unauthenticated("the client's certificate has no name")
