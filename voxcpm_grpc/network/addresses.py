"""Hosts of servers, and addresses to listen on: HOST:PORT, an address of IPv6 in brackets, or unix:PATH."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from voxcpm_grpc.errors import StartupError

LOCALHOST = "localhost"
UNIX = "unix:"
ABSTRACT = "unix-abstract:"
MAX_PORT = 65535
MAX_UNIX_BYTES = 107
FORM = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[^:]*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host, without brackets, and a port; port 0 stands for any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen_address(text: str) -> ListenAddress:
    """The address of HOST:PORT. Raises ValueError, whose message says what is wrong with it and what to write."""
    if re.search(r"[\s/@?#,]", text):
        raise ValueError("it must be a host and a port alone, such as 127.0.0.1:50051")
    found = FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"an address of IPv6 needs brackets: write {_in_brackets(text)}")
    host, port = found["host"].strip("[]"), found["port"]
    if not host:
        raise ValueError("it has no host: write one, such as 127.0.0.1:50051, or 0.0.0.0:50051 for all interfaces")
    if not port:
        raise ValueError(f"it has no port: write {found['host']}:50051, or another port (0 takes a free one)")
    if not re.fullmatch(r"[0-9]{1,9}", port) or int(port) > MAX_PORT:
        raise ValueError(f"its port must be a whole number from 0, which takes a free port, to {MAX_PORT}")
    return ListenAddress(host, int(port))


def check_address_or_socket(text: str) -> str:
    """`text` if it is HOST:PORT or the address of a Unix socket. Raises ValueError, as `listen_address`."""
    if text in (UNIX, ABSTRACT):
        raise ValueError("it has no path: write one, such as unix:/run/voxcpm/grpc.sock")
    if not is_unix(text):
        listen_address(text)
    return text


def is_unix(text: str) -> bool:
    return text.startswith((UNIX, ABSTRACT))


def unix_path(text: str) -> Path | None:
    """The file of a Unix socket; None for other addresses, and for abstract sockets, which have none."""
    return Path(text.removeprefix(UNIX).removeprefix("//")) if text.startswith(UNIX) else None


def bound(text: str, *, shared: bool = False) -> socket.socket:
    """A socket with the address HOST:PORT, which does not listen yet. Raises StartupError.

    shared: other processes may have the same port
    """
    try:
        address = listen_address(text)
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, at in found[:-1]:  # a name may have addresses that this host lacks
            with suppress(OSError):
                return _bound(family, kind, protocol, at, shared)
        family, kind, protocol, _, at = found[-1]
        return _bound(family, kind, protocol, at, shared)
    except (OSError, ValueError) as error:
        raise cannot_listen(text, error) from None


def cannot_listen(text: str, error: OSError | ValueError) -> StartupError:
    """The error of a start that cannot have an address, with the cause and the remedy."""
    return StartupError(f"cannot listen on {text or repr(text)}: {_cause(text, error)}")


def check_unix(text: str) -> None:
    """Raises StartupError, with the cause, if a Unix socket cannot be opened."""
    path = unix_path(text)
    if path is None:
        return
    if len(bytes(path)) > MAX_UNIX_BYTES:
        raise StartupError(f"cannot listen on {text}: the path of a socket has at most {MAX_UNIX_BYTES} bytes")
    if not path.parent.is_dir():
        raise StartupError(f"cannot listen on {text}: there is no folder {path.parent}; create it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StartupError(f"cannot listen on {text}: this user may not write to {path.parent}; use another folder")
    if path.exists() and not path.is_socket():
        raise StartupError(f"cannot listen on {text}: that file is no socket; remove it, or use another path")


def _bound(family: int, kind: int, protocol: int, address: object, shared: bool) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections may linger
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(address)  # pyright: ignore[reportArgumentType] - of the form that its family has
    except OSError:
        opened.close()
        raise
    return opened


def _in_brackets(text: str) -> str:
    host, _, port = text.rpartition(":")
    for address, number in (host, port), (text, "50051"):
        with suppress(ValueError):
            return f"[{ipaddress.IPv6Address(address)}]:{number or 50051}"
    return "[::1]:50051"


def _cause(text: str, error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeError | socket.gaierror):
        return "the name of the host does not resolve; use an address, such as 127.0.0.1, or 0.0.0.0 for all interfaces"
    if not isinstance(error, OSError):
        return str(error)
    match error.errno:
        case errno.EADDRINUSE:
            return "the port is taken by another program; stop it, or use another port (0 takes a free one)"
        case errno.EADDRNOTAVAIL:
            return "the address is not this host's; use one that it has, or 0.0.0.0 for all interfaces"
        case errno.EACCES | errno.EPERM:
            return (
                f"this user may not have the port {text.rpartition(':')[2]}; use one from 1024 on, "
                "or give the program CAP_NET_BIND_SERVICE"
            )
        case errno.EAFNOSUPPORT:
            return "this host has no IPv6; use an address of IPv4, such as 127.0.0.1"
        case _:
            return error.strerror or str(error)


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
