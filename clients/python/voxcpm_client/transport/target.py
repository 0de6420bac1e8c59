"""The address of a server, checked before it is used."""

from __future__ import annotations

import re
from dataclasses import dataclass

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.values.arguments import check_string
from voxcpm_grpc.network.addresses import LOCALHOST, ip_address, is_loopback

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
OPAQUE = ("unix:", "unix-abstract:", "vsock:", "ipv4:", "ipv6:", "xds:", "google-c2p:")  # gRPC alone resolves them
LITERAL = re.compile(r"ipv[46]:(.*)")  # commas separate the IP addresses
DEFAULT_PORT = 50051


@dataclass(frozen=True, slots=True)
class Target:
    """An address, for gRPC and in parts. host is empty and port 0 if only gRPC can resolve the address."""

    name: str
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """True if data for this address stays on this host."""
        if self.host:
            return is_loopback(self.host)
        listed = LITERAL.fullmatch(self.name)
        if listed is None:
            return self.name.startswith(("unix:", "unix-abstract:"))
        return all(is_loopback(_literal(address)[0]) for address in listed[1].split(","))


def parse(target: str) -> Target:
    """The parts of `HOST:PORT`, `dns:///HOST:PORT` or another name that gRPC resolves.

    Raises InvalidArgument, with the address as it should be written.
    """
    check_string(target, "target")
    if target.startswith(OPAQUE):
        literal = LITERAL.fullmatch(target)
        host, port = _literal(literal[1]) if literal else ("", 0)
        return Target(target, host, port)
    address = target
    if target.startswith("dns:"):
        address = target.removeprefix("dns:")
        if address.startswith("//"):
            address = address[2:].partition("/")[2]
    elif found := SCHEME.fullmatch(target):
        scheme, rest = found.groups()
        tls = " and set tls" if scheme.lower() in ("https", "grpcs") else ""
        raise _invalid(target, f"leave out {scheme}://, write {_suggestion(rest)}{tls}")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        raise _invalid(target, f"the port is missing, write {_suggestion(address)}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise _invalid(target, "write an IPv6 address in brackets, such as [::1]:50051")
    if not host:
        raise _invalid(target, f"the host is missing, write {_suggestion(f'{LOCALHOST}:{port}')}")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise _invalid(target, f"the port is {port!r} and must be 1 to 65535, as in {_suggestion(host)}")
    return Target(target, host.strip("[]"), int(port))


def _literal(address: str) -> tuple[str, int]:
    """The host and the port of an IP address with a port; an empty host for anything else."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return (host, int(port)) if ip_address(host) and port.isascii() and port.isdigit() else ("", 0)


def _invalid(target: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(f"target is {target!r}, which is not HOST:PORT: {remedy}", field="target")


def _suggestion(address: str) -> str:
    """An address without a path, and with a port."""
    address = address.partition("/")[0] or LOCALHOST
    if address.isdigit():
        address = f"{LOCALHOST}:{address}"
    has_port = ":" in address and not address.endswith((":", "]"))
    return address if has_port else f"{address.removesuffix(':')}:{DEFAULT_PORT}"
