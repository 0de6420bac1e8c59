"""JSON web tokens: signatures, claims, and the keys of the identity provider."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from support.clients.json_tokens import PRIVATE, by_hand, document, token

from voxcpm_grpc.errors import StartupError, Unauthenticated
from voxcpm_grpc.settings.security import AuthSettings
from voxcpm_server.auth import tokens
from voxcpm_server.auth.principal import Principal
from voxcpm_server.auth.tokens import Tokens


def principal(file: Path, text: str, **settings: Any) -> Principal:
    async def ask() -> Principal:
        opened = Tokens(AuthSettings(jwks=str(file), **settings))
        await opened.open()
        return await opened.principal(text)

    return asyncio.run(ask())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(document(*PRIVATE))
    return path


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_a_signed_token_names_its_bearer(file, algorithm):
    assert principal(file, token(algorithm)) == Principal("jwt:alice")


def test_the_only_key_of_a_document_needs_no_id(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_text(document("RS256"))
    assert principal(path, token("RS256", kid=None)) == Principal("jwt:alice")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: token(exp=time.time() - 60), "has expired"),
        (lambda: token(exp=None), "is not valid"),
        (lambda: token(nbf=time.time() + 600), "is not valid yet"),
        (lambda: token(key=ec.generate_private_key(ec.SECP256R1())), "is not valid"),
        (lambda: token(kid="another"), "a key that this server does not trust"),
        (lambda: token(kid=None), "a key that this server does not trust"),
        (
            lambda: by_hand(None, "none"),
            "is not valid",
        ),
        (
            lambda: by_hand("x" * 64, "HS256"),
            "is not valid",
        ),
        (lambda: token("ES256", kid="RS256"), "is not valid"),
        (lambda: token()[:-8], "is not valid"),
        (lambda: token().replace(".", "", 1), "is not valid"),
        (lambda: "x", "is not valid"),
        (lambda: "é.é.é", "is not valid"),
        (lambda: token(sub=None), "has no claim sub"),
        (lambda: token(sub=""), "has no claim sub"),
        (lambda: token(sub="a\nb"), "some that cannot be printed"),
    ],
)
def test_other_tokens_are_refused(file, made, reason):
    with pytest.raises(Unauthenticated, match=reason) as raised:
        principal(file, made())
    assert "alice" not in str(raised.value)


def test_issuer_and_audience_must_be_the_configured_ones(file):
    rules = {"issuer": "https://id.example", "audience": "voxcpm"}
    assert principal(file, token(iss="https://id.example", aud=["voxcpm", "other"]), **rules)
    for wrong in ({}, {"iss": "https://id.example"}, {"iss": "https://id.example", "aud": "other"}, {"aud": "voxcpm"}):
        with pytest.raises(Unauthenticated, match=r"another service|is not valid"):
            principal(file, token(**wrong), **rules)
    assert principal(file, token(aud="anything", iss="anybody"))


def test_a_claim_names_the_bearer_and_a_scope_makes_an_admin(file):
    rules = {"principal_claim": "email", "admin_scope": "voxcpm:admin"}
    plain = token(email="a@example.com", scope="read voxcpm:adminx")
    assert principal(file, plain, **rules) == Principal("jwt:a@example.com")
    some: list[dict[str, Any]] = [
        {"scope": "read voxcpm:admin"},
        {"roles": ["voxcpm:admin"]},
        {"scp": ["voxcpm:admin"]},
    ]
    for claims in some:
        assert principal(file, token(email="a@example.com", **claims), **rules).admin
    assert not principal(file, token(scope="voxcpm:admin")).admin
    others: list[dict[str, Any]] = [{"roles": 7}, {"scp": {"voxcpm:admin": True}}]
    for other in others:
        assert not principal(file, token(email="a@example.com", **other), **rules).admin


@dataclass
class Provider:
    """An identity provider that publishes `text`, and fails while it is empty."""

    text: str
    url: str = ""
    reads: list[str] = field(default_factory=list)


@contextmanager
def published(text: str) -> Iterator[Provider]:
    provider = Provider(text)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.reads.append(self.path)
            self.send_response(200 if provider.text else 503)
            self.end_headers()
            self.wfile.write(provider.text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_port}/jwks"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()


async def test_keys_are_read_again_for_a_new_id_but_not_for_every_unknown_one(monkeypatch):
    with published(document("ES256")) as provider:
        opened = Tokens(AuthSettings(jwks=provider.url))
        await opened.open()
        for _ in range(3):
            await opened.principal(token())
        assert len(provider.reads) == 1
        provider.text = document("RS256", "ES256")
        with pytest.raises(Unauthenticated):
            await opened.principal(token("RS256"))
        assert len(provider.reads) == 1, "anybody could make the server ask again and again"
        monkeypatch.setattr(tokens, "RETRY_SECONDS", 0.0)
        together = await asyncio.gather(*(opened.principal(token("RS256")) for _ in range(5)))
        assert set(together) == {Principal("jwt:alice")} and len(provider.reads) == 2


async def test_a_provider_that_is_down_leaves_the_last_keys_in_use(monkeypatch, caplog):
    with published(document("ES256")) as provider:
        opened = Tokens(AuthSettings(jwks=provider.url))
        await opened.open()
        provider.text = ""
        monkeypatch.setattr(tokens, "RETRY_SECONDS", 0.0)
        with pytest.raises(Unauthenticated):
            await opened.principal(token("RS256"))
        assert await opened.principal(token()) == Principal("jwt:alice")
        assert "the last keys stay in use" in caplog.text


async def test_a_document_that_cannot_be_read_is_an_error_at_the_start(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    with published("") as provider:
        for place in (provider.url, str(tmp_path / "missing.json"), str(tmp_path / "broken.json"), "ftp://x/y"):
            with pytest.raises(StartupError, match=r"auth\.jwks"):
                await Tokens(AuthSettings(jwks=place)).open()
