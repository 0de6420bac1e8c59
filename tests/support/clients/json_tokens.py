"""JSON web tokens, and the documents of the keys that sign them."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

PRIVATE = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "RS256": rsa.generate_private_key(65537, 2048),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
WRITERS: dict[str, Any] = {"ES256": ECAlgorithm, "RS256": RSAAlgorithm, "EdDSA": OKPAlgorithm}


def document(*names: str) -> str:
    """A JWKS document with the public keys of these algorithms, whose names are the ids."""
    listed = [WRITERS[name].to_jwk(PRIVATE[name].public_key(), as_dict=True) | {"kid": name} for name in names]
    return json.dumps({"keys": listed})


def token(algorithm: str = "ES256", *, key: Any = None, kid: str | None = "", **claims: Any) -> str:
    headers = {} if kid is None else {"kid": kid or algorithm}
    content = {"sub": "alice", "exp": time.time() + 600} | claims
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key or PRIVATE[algorithm], algorithm=algorithm, headers=headers)


def by_hand(key: Any, algorithm: str) -> str:
    """A token that needs no private key to make."""
    return jwt.encode({"sub": "alice", "exp": 9e9}, key, algorithm=algorithm, headers={"kid": "ES256"})
