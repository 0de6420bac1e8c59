"""Settings of encryption and authentication."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from voxcpm_grpc.settings.types import Frozen


class TlsSettings(Frozen):
    """Encryption of connections."""

    cert: Path | None = Field(
        default=None,
        description="PEM file of the server's certificate and its chain; the server uses TLS if it is set, and reads "
        "the files again when they change",
    )
    key: Path | None = Field(default=None, description="PEM file of the private key of tls.cert")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of the certificate authorities of clients; if it is set, every client needs a "
        "certificate of theirs",
    )

    @model_validator(mode="after")
    def _complete(self) -> TlsSettings:
        if (self.cert is None) != (self.key is None):
            raise PydanticCustomError("tls", "tls.cert and tls.key need each other: set both or none of them")
        if self.client_ca is not None and self.cert is None:
            raise PydanticCustomError("tls", "tls.client_ca needs tls.cert and tls.key")
        return self


class AuthSettings(Frozen):
    """Authentication of callers."""

    keys: Path | None = Field(
        default=None,
        description="file of API keys, which `voxcpm-grpc keys new` writes; read again when it changes",
    )
    jwks: str | None = Field(
        default=None,
        description="public keys of the identity provider that signs JSON web tokens, a JWKS document: a URL, or a "
        "file",
    )
    issuer: str | None = Field(default=None, description="issuer (iss) that a token must have; default: any")
    audience: str | None = Field(default=None, description="audience (aud) that a token must have; default: any")
    principal_claim: str = Field(default="sub", min_length=1, description="claim of a token that names its bearer")
    admin_scope: str | None = Field(
        default=None,
        description="scope or role of tokens whose bearers may call VoxCPMAdminService and manage all voices; default: "
        "no token may",
    )
    admin_certificates: tuple[str, ...] = Field(
        default=(),
        description="names of client certificates (the first URI or DNS name, or the common name) whose bearers may do "
        "the same, with tls.client_ca and without keys and tokens",
    )

    @model_validator(mode="after")
    def _complete(self) -> AuthSettings:
        if self.jwks is None and (self.issuer, self.audience, self.admin_scope) != (None, None, None):
            raise PydanticCustomError("auth", "auth.issuer, auth.audience and auth.admin_scope need auth.jwks")
        return self
