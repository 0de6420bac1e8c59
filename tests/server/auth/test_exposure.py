"""The warning about servers that anybody can reach."""

import pytest

from voxcpm_grpc.settings.http import HttpSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.security import AuthSettings, TlsSettings
from voxcpm_server.auth.exposure import exposure

TLS = TlsSettings(cert="cert.pem", key="key.pem")  # type: ignore[arg-type]
MUTUAL = TlsSettings(cert="cert.pem", key="key.pem", client_ca="ca.pem")  # type: ignore[arg-type]
KEYS = AuthSettings(keys="keys.toml")  # type: ignore[arg-type]


@pytest.mark.parametrize("listen", ["127.0.0.1:50051", "127.9.9.9:1", "localhost:50051", "[::1]:50051", "unix:/run/x"])
def test_addresses_of_this_host_need_no_warning(listen):
    assert exposure(Settings(listen=listen)) == ""


@pytest.mark.parametrize("listen", ["0.0.0.0:50051", "[::]:50051", "192.0.2.1:50051", "voxcpm.example:443"])
def test_other_addresses_need_encryption_and_authentication(listen):
    assert "without encryption (tls.cert and tls.key) and without authentication" in exposure(Settings(listen=listen))
    assert "without authentication" in exposure(Settings(listen=listen, tls=TLS))
    assert "without encryption" in exposure(Settings(listen=listen, auth=KEYS))
    assert exposure(Settings(listen=listen, tls=TLS, auth=KEYS)) == exposure(Settings(listen=listen, tls=MUTUAL)) == ""


def test_http_on_other_addresses_needs_a_proxy_with_tls_and_authentication():
    assert exposure(Settings(http=HttpSettings(listen="127.0.0.1:8000"))) == ""
    http = HttpSettings(listen="0.0.0.0:8000")
    assert "proxy with TLS), and without authentication" in exposure(Settings(http=http))
    assert exposure(Settings(http=http, auth=KEYS)).endswith("without encryption (a proxy with TLS)")
