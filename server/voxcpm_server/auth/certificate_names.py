"""The names of hosts that a certificate is for."""

from __future__ import annotations

import contextlib
from pathlib import Path

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.web_names import EVERY, allowed_host


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
