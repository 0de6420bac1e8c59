"""Names of hosts and origins of web pages, in the form in which equal ones are equal, for the HTTP gateway."""

from __future__ import annotations

import ipaddress
import re

EVERY = "*"
DEFAULT_PORTS = {"http": 80, "https": 443}
LABEL = "[A-Za-z0-9_-]+"
NAME_OR_ADDRESS = re.compile(rf"(?:({LABEL}(?:\.{LABEL})*)\.?|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{{0,5}}))?")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """The host of `HOST` or `HOST:PORT`, as the header Host has it, and the port; None for a text of another form.

    Names are in lower case and without a dot at their end, addresses of IPv6 short and in brackets.
    """
    found = NAME_OR_ADDRESS.fullmatch(text)
    if found is None:
        return None
    name, address, port = found.groups()
    if address is not None:
        try:
            name = f"[{ipaddress.IPv6Address(address)}]"
        except ValueError:
            return None
    return name.lower(), int(port) if port else None


def is_address(host: str) -> bool:
    """True for an address of IPv4, or one of IPv6 in brackets, as `host_and_port` returns it."""
    try:
        return host.startswith("[") or bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False


def origin(text: str) -> str | None:
    """An origin such as https://app.example; None for a text that is none, such as `null`."""
    scheme, _, rest = text.partition("://")
    found = host_and_port(rest)
    if found is None or not SCHEME.fullmatch(scheme):
        return None
    scheme, (host, port) = scheme.lower(), found
    return f"{scheme}://{host}" if port in (None, DEFAULT_PORTS.get(scheme)) else f"{scheme}://{host}:{port}"


def allowed_host(text: str) -> str:
    """A host from a setting: a name, `*.NAME` for the names directly below it, or `*`. Raises ValueError."""
    if text == EVERY:
        return text
    below = "*." if text.startswith("*.") else ""
    found = host_and_port(text.removeprefix(below))
    if found is None or found[1] is not None:
        raise ValueError(
            f"{text!a} is not the name of a host: give it without scheme, port and path, such as tts.example, "
            "*.tts.example for the names directly below it, or * for all; other scripts than ASCII as browsers send "
            "them (xn--...)"
        )
    return below + found[0]


def allowed_origin(text: str) -> str:
    """An origin from a setting, or `*`. Raises ValueError."""
    found = text if text == EVERY else origin(text.removesuffix("/"))
    if found is None:
        raise ValueError(
            f"{text!a} is not the origin of a web page: give scheme and host, and a port if the page has one, such as "
            "https://app.example or http://localhost:3000, or * for all, which includes pages without an origin (null)"
        )
    return found
