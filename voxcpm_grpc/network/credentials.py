"""The longest credential, the same at every door of a server and in its client, and the room that gRPC gives it."""

from __future__ import annotations

MAX_CREDENTIAL_BYTES = 32 << 10
"""The key or token of a call."""

MAX_METADATA_BYTES = 64 << 10
"""All that a caller sends beside the messages of a call, as HTTP/2 counts it: names, values and PAIR_BYTES for each."""

PAIR_BYTES = 32

TRANSPORT_BYTES = 128 << 10
"""The limit of gRPC, which refuses a longer call without a word of ours: room for what clients and proxies add, and to
read a credential that is too long."""

# Between the first limit and the second, gRPC refuses calls at random. By default they are 8 and 16 KiB.
CHANNEL_OPTIONS = (
    ("grpc.max_metadata_size", TRANSPORT_BYTES),
    ("grpc.absolute_max_metadata_size", TRANSPORT_BYTES),
)
"""Options for the servers and the channels of gRPC."""


def size_of(authorization: str) -> int:
    """The bytes of the credential in the value of a header `authorization`, ASCII text, without its scheme."""
    scheme, _, credential = authorization.strip().partition(" ")
    return len(credential.strip() or scheme)


def fault(size: int) -> str:
    """The fault of a credential of so many bytes, for people; empty if there is none."""
    if size <= MAX_CREDENTIAL_BYTES:
        return ""
    return (
        f"the credential has {size} bytes and the limit is {MAX_CREDENTIAL_BYTES}; use a shorter one: a token with "
        "fewer claims, or an API key"
    )
