"""The HTTP proxies that the environment names, for connections of gRPC.

gRPC takes the proxy of a variable for every target, this host included, and understands only suffixes and networks in
`no_proxy`. This module decides on the targets that are to be reached directly, and describes the proxy of the others.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from voxcpm_grpc.network.addresses import ip_address, is_loopback

PROXY = ("grpc_proxy", "https_proxy", "http_proxy")  # the first one that is set counts, even if it is empty
NO_PROXY = ("no_grpc_proxy", "no_proxy", "NO_GRPC_PROXY", "NO_PROXY")  # gRPC itself reads the first two
DIRECT = (("grpc.enable_http_proxy", 0),)
"""Options of a channel of gRPC that uses no proxy of the environment."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy of the environment. `address` has no user and no password."""

    variable: str
    address: str
    used: bool  # gRPC connects directly if it is not used, because gRPC knows only http:// proxies

    def advice(self, host: str) -> str:
        """The part of the proxy in a failed connection to `host`, and the remedy."""
        if not self.used:
            return f"gRPC does not use the proxy {self.address} of {self.variable}: it takes http://HOST:PORT only"
        exempt = f"add {host} to no_proxy" if host else "name it in no_proxy"
        way = f"the connection goes through the proxy {self.address} of {self.variable}"
        return f"{way}; if the server needs none, {exempt}"


def proxy_of(host: str, port: int, environment: Mapping[str, str] | None = None) -> Proxy | None:
    """The proxy of connections to a host; None if they are direct.

    host: name or IP address without brackets; empty if only gRPC knows it
    port: 0 if only gRPC knows it
    environment: that of this process by default
    """
    variables = os.environ if environment is None else environment
    variable = next((name for name in PROXY if name in variables), None)
    if variable is None or not variables[variable] or is_loopback(host) or _is_exempt(host, port, variables):
        return None
    scheme, colon, rest = variables[variable].strip().rpartition("://")
    address = re.split("[/?#]", rest.rpartition("@")[2])[0]
    return Proxy(variable, f"{scheme}{colon}{address}", scheme == "http" and bool(address))


def _is_exempt(host: str, port: int, variables: Mapping[str, str]) -> bool:
    """True if the first list of hosts without a proxy has an entry for this one."""
    listed = next((variables[name] for name in NO_PROXY if variables.get(name)), "")
    return any(
        _matches(entry, host.lower().rstrip("."), port) for entry in re.split(r"[,\s]+", listed.lower()) if entry
    )


def _matches(entry: str, host: str, port: int) -> bool:
    """True if an entry names the host: `*`, a suffix such as .example.com, an IP address or a network, each perhaps
    with a port."""
    if entry == "*":
        return True
    name, colon, last = entry.rpartition(":")
    if colon and last.isdecimal() and (":" not in name or name.endswith("]")):  # an IPv6 address does not end here
        if int(last) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    if (address := ip_address(host)) is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)  # without a mask, the network has one address
        except ValueError:
            return False
    suffix = entry.removeprefix("*").strip(".")
    return bool(suffix) and host.endswith(suffix)  # gRPC also takes the end of a word
