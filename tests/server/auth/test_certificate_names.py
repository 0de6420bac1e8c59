"""The hosts that the certificate of a server names, by which its HTTP gateway may be called, too."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from voxcpm_server.auth.principal import certificate_names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cert.pem"


def test_alternative_names_count_and_those_that_are_no_hosts_do_not(path):
    names = ("tts.example", "*.apps.example", "192.0.2.1", "ada@mail.example")
    made = trustme.CA().issue_cert(*names, common_name="other.example")
    path.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
    assert certificate_names(path) == ("tts.example", "*.apps.example")


@pytest.mark.parametrize(("name", "expected"), [("tts.example", ("tts.example",)), ("*", ()), ("A server", ())])
def test_a_common_name_counts_without_alternative_names(path, name, expected):
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    assert certificate_names(path) == expected


def test_a_file_that_is_no_certificate_has_no_names(path):
    assert certificate_names(path) == ()
    path.write_text("no certificate")
    assert certificate_names(path) == ()
