"""Hosts and addresses of servers, as settings and clients write them."""

from __future__ import annotations

import ipaddress

LOCALHOST = "localhost"


def is_loopback(host: str) -> bool:
    """True if a host, which is a name or an IP address without brackets, stands for this host itself."""
    name = host.lower().rstrip(".")
    if name == LOCALHOST or name.endswith(f".{LOCALHOST}"):
        return True
    address = ip_address(name)
    return address is not None and address.is_loopback


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address of a host that is written as an IP address, else None. An IPv4 address in IPv6 is the former."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
