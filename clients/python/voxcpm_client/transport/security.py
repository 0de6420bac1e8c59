"""TLS and the API key of a client."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from voxcpm_client.errors import METADATA_TOO_LONG, InvalidArgument
from voxcpm_client.transport.target import Target
from voxcpm_client.transport.tracing import Metadata
from voxcpm_client.values.arguments import check_string
from voxcpm_grpc.network.credentials import MAX_METADATA_BYTES, PAIR_BYTES, fault, size_of

PathOrStr = str | os.PathLike[str]
NAME = re.compile(r"[A-Za-z0-9_.-]+")  # gRPC takes these names of metadata
VALUE = re.compile(r"[ -~]*")
BINARY = "-bin"  # names whose values are bytes end so


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The encryption and the identity that a caller asks for. See the arguments of AsyncClient."""

    tls: bool = False
    ca: PathOrStr | None = None
    cert: PathOrStr | None = None
    key: PathOrStr | None = None
    api_key: str | None = None
    given: grpc.ChannelCredentials | None = None

    @property
    def encrypted(self) -> bool:
        """True if the connection uses TLS."""
        return self.given is not None or self.tls or self.has_files

    @property
    def has_files(self) -> bool:
        """True if any file is given; it implies TLS."""
        return not (self.ca is None and self.cert is None and self.key is None)

    def check(self, target: Target) -> None:
        """Raise InvalidArgument for options that contradict, and for an API key that would travel unencrypted."""
        if self.given is not None and (self.tls or self.has_files):
            raise InvalidArgument(
                "credentials cannot be combined with tls, ca, cert and key; give one of the two", field="credentials"
            )
        if self.api_key is None:
            return
        check_string(self.api_key, "api_key")
        if not self.api_key.isascii() or not self.api_key.isprintable() or not self.api_key.strip():
            raise InvalidArgument("api_key is empty or has characters that HTTP does not allow", field="api_key")
        if not self.encrypted and not target.is_loopback:
            raise InvalidArgument(
                f"the api_key would travel to {target.name} unencrypted; set tls, or connect to this host itself",
                field="api_key",
            )

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials of the channel; None for a connection without TLS. Raises OSError for unreadable files."""
        if self.given is not None or not self.encrypted:
            return self.given
        return tls_credentials(self.ca, self.cert, self.key)

    def metadata(self, others: Mapping[str, str] | None) -> Metadata:
        """The metadata of every call. Raises InvalidArgument for two credentials, and for what is too long."""
        pairs = lower_case(others or {})
        if self.api_key is not None:
            if "authorization" in pairs:
                raise InvalidArgument("api_key and metadata both give authorization; keep one of them", field="api_key")
            pairs["authorization"] = f"Bearer {self.api_key.strip()}"
        return checked(pairs, "metadata" if self.api_key is None else "api_key")


def checked(metadata: Mapping[str, str], field: str = "metadata") -> Metadata:
    """The metadata of a call. Raises InvalidArgument if it is longer than a server reads.

    field: the argument of the credential
    """
    if text := fault(size_of(metadata.get("authorization", ""))):
        raise InvalidArgument(text, field=field, reason="CREDENTIAL_TOO_LONG")
    size = sum(len(name) + len(value) + PAIR_BYTES for name, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        raise InvalidArgument(
            f"the metadata has {size} bytes and the limit is {MAX_METADATA_BYTES}; send less with each call",
            field="metadata",
            reason=METADATA_TOO_LONG,
        )
    return tuple(metadata.items())


def lower_case(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata with names in lower case, as HTTP/2 wants them.

    Raises TypeError for names and values of other types, and InvalidArgument for those that HTTP/2 does not allow.
    """
    found: dict[str, str] = {}
    for name, value in metadata.items():
        check_string(name, "a name of metadata")
        if not NAME.fullmatch(name):
            raise InvalidArgument(
                f"metadata has the name {name!r}; names have letters, digits and - _ . only", field="metadata"
            )
        if not (isinstance(value, bytes) and name.lower().endswith(BINARY)):
            check_string(value, f"the value of {name} in metadata")
            if not VALUE.fullmatch(value):
                raise InvalidArgument(
                    f"the value of {name} in metadata has a character that is not printable ASCII; encode it, or send "
                    f"bytes under a name that ends in {BINARY}",
                    field="metadata",
                )
        found[name.lower()] = value
    return found


def tls_credentials(
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> grpc.ChannelCredentials:
    """Credentials for a server with TLS. The arguments of the same names of a client make them, too.

    Args:
        ca: PEM file of the certificate authorities to trust. Default: `None`, those of the system.
        cert: PEM file of the client's certificate and its chain, for servers that ask for one. Default: `None`.
        key: PEM file of the private key of `cert`. Default: `None`.
    """
    if (cert is None) != (key is None):
        raise InvalidArgument("cert and key need each other: give both or none of them", field="cert")
    return grpc.ssl_channel_credentials(_read(ca), _read(key), _read(cert))


def _read(file: PathOrStr | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
