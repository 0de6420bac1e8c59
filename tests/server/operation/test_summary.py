"""The summary that the log shows when a server is ready."""

from __future__ import annotations

import json
import re

import pytest
import trustme
from support.servers.operated import operated
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc import __version__
from voxcpm_grpc.logs import JsonFormatter
from voxcpm_grpc.settings.security import TlsSettings
from voxcpm_server import summary
from voxcpm_server.auth.keys import create
from voxcpm_server.summary import public


@pytest.fixture(autouse=True)
def engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary waits for the engine, however busy the host is."""
    monkeypatch.setattr(summary, "ANSWER_SECONDS", HANG_SECONDS)


def summaries(caplog) -> list[str]:
    """The messages of log records that are summaries."""
    return [record.getMessage() for record in caplog.records if " is ready\n" in record.getMessage()]


async def test_one_record_describes_a_server_that_is_ready(tmp_path, caplog):
    caplog.set_level("INFO")
    async with operated(tmp_path) as server:
        [text] = summaries(caplog)
        lines = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in text.splitlines()[1:])
        assert text.startswith(f"voxcpm-grpc {__version__} is ready\n")
        assert lines == {
            "address": server.running.address,
            "tls": "off",
            "authentication": "off",
            "model": "fake, fake, float32",
            "devices": "cpu",
            "slots": "3",
            "kv positions": "4,096",
            "voices": str(tmp_path),
            "presets": "none",
            "metrics": "off",
            "http": "off",
            "admin": server.admin_address,
            "traces": "off",
        }
        [record] = [record for record in caplog.records if " is ready\n" in record.getMessage()]
        fields = json.loads(JsonFormatter().format(record))
        assert fields["message"] == f"voxcpm-grpc {__version__} is ready"
        assert (fields["slots"], fields["kv_positions"], fields["address"]) == (3, 4096, server.running.address)


async def test_it_names_the_means_of_authentication_and_no_key(tmp_path, caplog):
    caplog.set_level("INFO")
    ca = trustme.CA()
    made = ca.issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tls = TlsSettings(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    key = create("billing", tmp_path / "keys.toml")
    async with operated(tmp_path / "voices", auth={"keys": tmp_path / "keys.toml"}, tls=tls):
        [text] = summaries(caplog)
        assert "certificate of the server" in text and f"API keys of {tmp_path}/keys.toml" in text
        assert key not in caplog.text and key.split("_", 2)[2] not in caplog.text


def test_addresses_in_it_have_no_credentials():
    assert public("s3://key:secret@bucket/voices?token=1#2") == "s3://bucket/voices"
    assert public("/srv/voices") == "/srv/voices"
