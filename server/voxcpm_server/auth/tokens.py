"""JSON web tokens, which an identity provider has signed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

from voxcpm_grpc.errors import Reason, StartupError, Unauthenticated
from voxcpm_grpc.settings.security import AuthSettings
from voxcpm_server.auth.principal import Principal

log = logging.getLogger(__name__)

ALGORITHMS = ("EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512")
"""Signatures with a private key. A token that names a shared secret or no signature at all is refused."""
LEEWAY_SECONDS = 30.0  # seconds between the clocks of the provider and of this host
FETCH_SECONDS = 5.0  # seconds of the longest download of the keys
KEEP_SECONDS = 300.0  # from this age on the keys are read again
RETRY_SECONDS = 10.0  # seconds between two reads because of unknown keys, which anybody can name
MAX_NAME_CHARS = 256


class Tokens:
    """Checks tokens against the public keys of a JWKS document, at a URL or in a file.

    A token needs `exp` and a subject; `aud` and `iss` are checked if they are configured. Raises StartupError if
    PyJWT is not installed or the document cannot be read.
    """

    def __init__(self, settings: AuthSettings) -> None:
        try:
            import jwt
            import jwt.algorithms
        except ImportError:
            jwt = None
        if jwt is None or not jwt.algorithms.has_crypto:
            raise StartupError("auth.jwks needs the package PyJWT with cryptography: pip install 'pyjwt[crypto]'")
        assert settings.jwks is not None
        self._jwt = jwt
        self._settings = settings
        url = settings.jwks if "://" in settings.jwks else ""
        try:
            self._client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=FETCH_SECONDS) if url else None
        except jwt.PyJWKClientError:
            raise StartupError(f"auth.jwks is {url}; it must be a URL with https or http, or a file") from None
        self._keys: dict[str, Any] = {}  # the keys of this map are ids
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the keys for the first time. Raises StartupError."""
        try:
            self._keys = await asyncio.to_thread(self._fetch)
        except Exception as error:
            raise StartupError(f"auth.jwks: {self._settings.jwks} cannot be read: {error}") from None
        self._read_at = time.monotonic()

    async def principal(self, token: str) -> Principal:
        """The principal of a token. Raises Unauthenticated, with the reason as far as its bearer may know it."""
        jwt = self._jwt
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp"], "verify_aud": self._settings.audience is not None},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated(
                "the token has expired; get a new one from your identity provider", reason=Reason.TOKEN_EXPIRED
            ) from None
        except jwt.ImmatureSignatureError:
            raise Unauthenticated("the token is not valid yet; check the clock of the host that issued it") from None
        except (jwt.InvalidAudienceError, jwt.InvalidIssuerError):
            raise Unauthenticated("the token is for another service or from another issuer") from None
        except jwt.PyJWTError:
            raise Unauthenticated("the token is not valid; get a new one from your identity provider") from None
        subject = claims.get(self._settings.principal_claim)
        if not isinstance(subject, str) or not subject:
            raise Unauthenticated(f"the token has no claim {self._settings.principal_claim}, which names its bearer")
        if len(subject) > MAX_NAME_CHARS or not subject.isprintable():
            raise Unauthenticated(
                f"the claim {self._settings.principal_claim} of the token has more than {MAX_NAME_CHARS} characters, "
                "or some that cannot be printed"
            )
        return Principal(f"jwt:{subject}", admin=self._is_admin(claims))

    async def _key(self, id: str) -> Any:
        """The public key that a token names. Keys are read again when they are old, and for an id that is new."""
        age = time.monotonic() - self._read_at
        known = id in self._keys or (not id and len(self._keys) == 1)
        if self._reading is None and age > (KEEP_SECONDS if known else RETRY_SECONDS):
            self._reading = asyncio.create_task(self._read_again())
        if not known and self._reading is not None:
            await asyncio.shield(self._reading)
        if not id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if id not in self._keys:
            raise Unauthenticated("the token was signed with a key that this server does not trust")
        return self._keys[id]

    async def _read_again(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._fetch)
        except Exception as error:
            log.error("auth.jwks: %s cannot be read: %s; the last keys stay in use", self._settings.jwks, error)
        finally:
            self._read_at = time.monotonic()
            self._reading = None

    def _fetch(self) -> dict[str, Any]:
        """Read the document. Raises exceptions of many kinds."""
        if self._client is not None:
            content = self._client.fetch_data()
        else:
            content = json.loads(Path(self._settings.jwks or "").read_text("utf-8"))
        keys = self._jwt.PyJWKSet.from_dict(content).keys
        return {key.key_id or "": key for key in keys if key.public_key_use in ("sig", None)}

    def _is_admin(self, claims: dict[str, Any]) -> bool:
        """True if the scopes or roles of a token, a list or words of a text, include the configured one."""
        wanted = self._settings.admin_scope
        if wanted is None:
            return False
        found = [claims.get(name) for name in ("scope", "scp", "roles")]
        lists = [value.split() if isinstance(value, str) else value for value in found]
        return any(isinstance(value, list) and wanted in value for value in lists)
