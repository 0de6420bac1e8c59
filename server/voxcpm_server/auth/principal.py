"""The caller: the principal of a credential, and the names in a certificate."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.network.web_names import EVERY, allowed_host


def certificate_names(path: Path) -> tuple[str, ...]:
    """The names of the first certificate of a PEM file, such as tts.example or *.tts.example. Raises StartupError.

    Its common name counts only if it has no alternative names, as for clients. A file that cannot be used has no names;
    the server refuses it when it opens its port.
    """
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        raise StartupError("http.listen with tls.cert needs packages: pip install 'voxcpm-grpc[http]'") from None
    names: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        try:
            alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = alternatives.get_values_for_type(x509.DNSName)
        except x509.ExtensionNotFound:
            names = [str(one.value) for one in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    return tuple(filter(_is_host, names))


def _is_host(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return allowed_host(name) != EVERY
    return False


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, who owns voices and has quotas.

    name: its kind and its name, such as `key:billing`, `jwt:alice` or `cert:gateway`
    admin: True if it may see and change the voices of all principals
    """

    name: str
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a call, as far as shares and voices are concerned.

    Voices belong to the principal that stores them. Those of an admin, and those that were stored without
    authentication, have no owner: everyone sees them.

    key: stands for the caller in the shares of streams, uploads and voices: its principal, or its address
    principal: owns the voices that the caller stores; empty for an admin and without authentication
    admin: True if the caller sees and may change all voices
    """

    key: str
    principal: str = ""
    admin: bool = False

    @classmethod
    def of(cls, principal: Principal | None, address: str) -> Caller:
        """The caller of a principal, or the one at an address if callers have no identity."""
        if principal is None:
            return cls(address)
        return cls(principal.name, "" if principal.admin else principal.name, principal.admin)

    @property
    def may_administer(self) -> bool:
        """True for admins, and for everyone if callers have no identity."""
        return self.admin or not self.principal

    def sees(self, owner: str) -> bool:
        """True if the caller may use the voices of this owner."""
        return self.admin or owner in ("", self.principal)

    def owns(self, owner: str) -> bool:
        """True if the voices of this owner are the caller's own."""
        return owner == self.principal

    def may_change(self, owner: str) -> bool:
        """True if the caller may change and delete the voices of this owner."""
        return self.admin or self.owns(owner)


OPERATOR = Caller("operator", admin=True)
"""The operator of the server, who adds the presets."""
