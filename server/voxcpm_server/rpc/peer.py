"""The sender of an RPC, by which limits are shared out."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import unquote

IPV6_PREFIX = 64  # a host usually has all addresses of such a network


@dataclass(frozen=True, slots=True)
class Peer:
    """The sender of an RPC, as far as its connection tells.

    caller: key of a caller: an IPv4 address, the /64 network of an IPv6 address, or `unix` for all Unix sockets
    connection: key of one connection of the caller; empty if connections cannot be told apart
    """

    caller: str
    connection: str

    def __str__(self) -> str:
        return self.connection or self.caller

    @classmethod
    def of(cls, address: str) -> Peer:
        """The peer at an address as gRPC writes it, such as `ipv4:192.0.2.1:50123`."""
        kind, _, rest = unquote(address).partition(":")
        if kind not in ("ipv4", "ipv6"):
            return cls(caller=kind, connection="")
        host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
        try:
            parsed = ipaddress.ip_address(host)
        except ValueError:
            return cls(caller=host, connection=rest)
        if isinstance(parsed, ipaddress.IPv6Address):
            mapped = parsed.ipv4_mapped
            caller = str(mapped or ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))
        else:
            caller = str(parsed)
        return cls(caller=caller, connection=rest)
